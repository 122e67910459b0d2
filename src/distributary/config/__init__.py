"""The pipeline file: `load` reads and checks it; the models are its keys."""

from distributary.config.loading import load
from distributary.config.pipeline import Pipeline, Spark, Trigger
from distributary.config.reading import (
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
    "DeltaSource",
    "Engine",
    "Envelope",
    "Evolution",
    "EvolutionOverride",
    "KafkaSecurity",
    "KafkaSource",
    "Payload",
    "Pipeline",
    "Quarantine",
    "RegistryConfig",
    "RouteOverride",
    "Source",
    "Spark",
    "Tables",
    "Trigger",
    "load",
]
