"""The pipeline file: `load` reads and checks it; the models are its keys."""

from distributary.config.databricks import Databricks
from distributary.config.layouts import Bronze, Hop, Wide
from distributary.config.loading import load
from distributary.config.operating import Email, Grant, Notices
from distributary.config.pipeline import BY_ROUTE, Pipeline, Spark, Trigger
from distributary.config.reading import (
    DatastreamSource,
    DeltaSource,
    Envelope,
    KafkaSecurity,
    KafkaSource,
    Payload,
    RegistryConfig,
    Source,
)
from distributary.config.writing import Engine, Evolution, EvolutionOverride, Quarantine, RouteOverride, Tables

__all__ = [
    "BY_ROUTE",
    "Bronze",
    "Databricks",
    "DatastreamSource",
    "DeltaSource",
    "Email",
    "Engine",
    "Envelope",
    "Evolution",
    "EvolutionOverride",
    "Grant",
    "Hop",
    "KafkaSecurity",
    "KafkaSource",
    "Notices",
    "Payload",
    "Pipeline",
    "Quarantine",
    "RegistryConfig",
    "RouteOverride",
    "Source",
    "Spark",
    "Tables",
    "Trigger",
    "Wide",
    "load",
]
