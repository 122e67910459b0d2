"""The JSON schema of pipeline files, for editors and for checks elsewhere."""

from __future__ import annotations

from typing import Any

from distributary.config.pipeline import Pipeline


def pipeline_schema() -> dict[str, Any]:
    """What may be written in a pipeline file (JSON Schema 2020-12)."""
    schema = Pipeline.model_json_schema()
    trigger = schema["properties"]["trigger"]
    trigger["anyOf"] = [{"$ref": trigger.pop("$ref")}, {"enum": ["once", "continuous"]}]
    # Managed tables have a name in place of a folder.
    tables = schema["$defs"]["Tables"]
    tables["required"].remove("root")
    tables["anyOf"] = [{"required": ["root"]}, {"required": ["managed", "database"]}]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
