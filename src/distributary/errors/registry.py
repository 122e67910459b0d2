"""What a schema registry or a schema of it can be at fault for."""

from __future__ import annotations

from distributary.errors.roots import BadInput, EnvironmentFault, Outage


class SchemaNotFound(BadInput):
    """The registry answered that it has no such schema (HTTP 404): a fact about data, not an outage."""

    condition = "SCHEMA_NOT_FOUND"
    template = "{registry} has no schema {what}."


class SchemaBroken(BadInput):
    """A schema text that does not compile. Only its own id is affected."""

    condition = "SCHEMA_BROKEN"
    template = "schema {what} does not compile: {detail}"


class SchemaIncompatible(BadInput):
    condition = "SCHEMA_INCOMPATIBLE"
    template = (
        "{subject}: the new schema is not compatible ({level}) with version {version}: {detail}. "
        "Change the schema, or the subject's compatibility level."
    )


class RegistryDenied(EnvironmentFault):
    condition = "REGISTRY_DENIED"
    template = "the schema registry {registry} refused the credentials (HTTP {status}). Check registry.{keys}."


class RegistryRefused(BadInput):
    """The registry answered, but not with what its API promises: a wrong URL, a wrong level, a wrong request."""

    condition = "REGISTRY_REFUSED"
    template = "the schema registry {registry} refused {what} (HTTP {status}): {detail}. {remedy}"


class SchemaInUse(BadInput):
    condition = "SCHEMA_IN_USE"
    template = "{registry}: {what} cannot be deleted, because {detail}. Delete the schemas that refer to it first."


class RegistryTlsFailed(EnvironmentFault):
    """No trust between the two ends: waiting does not help, so it is not an outage."""

    condition = "REGISTRY_TLS_FAILED"
    template = (
        "TLS with the schema registry {registry} failed: {detail}. "
        "Check registry.ca_file, registry.cert_file and registry.key_file."
    )


class RegistryDown(Outage):
    condition = "REGISTRY_DOWN"
    template = (
        "the schema registry {registry} did not answer after {attempts} attempts: {detail}. "
        "Nothing was written. Try again once it answers; a run that goes on does so by itself."
    )


class CompilerDown(Outage):
    """The process that compiles schemas can't be had: nothing is known about any schema."""

    condition = "COMPILER_DOWN"
    template = (
        "the schema compiler, a process that this one starts, gave no answer: {detail}. "
        "Nothing was written. Check the machine's memory, its number of processes and its temporary folder; "
        "a run that goes on tries again by itself."
    )
