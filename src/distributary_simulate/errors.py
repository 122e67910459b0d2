"""What goes wrong in producers and demos."""

from __future__ import annotations

from distributary.errors.roots import BadInput, Outage


class SimulationInvalid(BadInput):
    condition = "SIMULATION_INVALID"
    template = "simulate: {what}: {detail}."


class DemoFolderTaken(BadInput):
    condition = "DEMO_FOLDER_TAKEN"
    template = (
        "{folder} is not empty, and no demo made what is in it. Name a new or an empty folder: "
        "distributary demo games --dir DIR"
    )


class KafkaDown(Outage):
    """A producer or an admin call failed. Records that were not confirmed are not counted as sent."""

    condition = "KAFKA_DOWN"
    template = "Kafka at {servers}, topic {topic}: {detail}. Check that the broker runs and the topic may be written."
