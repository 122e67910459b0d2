"""One batch: cut by route, decided by the driver, delivered by the tasks, concluded by the driver."""
