"""What all models of the pipeline file share."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict
from pydantic_core import PydanticCustomError


class Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, hide_input_in_errors=True)


def fault(key: str, detail: str) -> PydanticCustomError:
    """A fault between several keys, shown at `key` (dots separate keys below the model that raises it)."""
    return PydanticCustomError("between_keys", "{detail}", {"key": key, "detail": detail})


def is_given(model: Model, key: str) -> bool:
    """Does the key say anything but its default?"""
    return bool(getattr(model, key) != type(model).model_fields[key].get_default())
