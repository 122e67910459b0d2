"""The pipeline file: `load` reads and checks it; the models are its keys."""

from distributary.config.databricks import Databricks
from distributary.config.describing import Description, Pattern
from distributary.config.evolution import Evolution, EvolutionOverride
from distributary.config.file_sources import ChangeFilesSource
from distributary.config.kafka_security import KafkaSecurity
from distributary.config.layouts import Bronze, Wide
from distributary.config.loading import load, load_document
from distributary.config.operating import Email, Grant, Metrics, Notices, Otlp
from distributary.config.payload import Payload
from distributary.config.pipeline import Pipeline, Spark, Trigger
from distributary.config.reading import (
    Envelope,
    RegistryConfig,
)
from distributary.config.sources import (
    DeltaSource,
    KafkaSource,
    Source,
)
from distributary.config.state_folder import DeclarativeFolder, HopFolder, SharesFolder, StateFolder
from distributary.config.unity import Unity
from distributary.config.writing import Engine, Quarantine, RouteOverride, Tables

__all__ = [
    "Bronze",
    "ChangeFilesSource",
    "Databricks",
    "DeclarativeFolder",
    "DeltaSource",
    "Description",
    "Email",
    "Engine",
    "Envelope",
    "Evolution",
    "EvolutionOverride",
    "Grant",
    "HopFolder",
    "KafkaSecurity",
    "KafkaSource",
    "Metrics",
    "Notices",
    "Otlp",
    "Pattern",
    "Payload",
    "Pipeline",
    "Quarantine",
    "RegistryConfig",
    "RouteOverride",
    "SharesFolder",
    "Source",
    "Spark",
    "StateFolder",
    "Tables",
    "Trigger",
    "Unity",
    "Wide",
    "load",
    "load_document",
]
