"""What is, what would be, and whether it is right: `status`, `plan`, `verify`."""
