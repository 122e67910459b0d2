"""Keys of Unity Catalog's REST API."""

from __future__ import annotations

from typing import Self

from pydantic import Field, SecretStr, model_validator

from distributary.config.addresses import Url
from distributary.config.base import Model, fault


class Unity(Model):
    url: Url = Field(description="Where its REST API is: `https://acme.cloud.databricks.com`, `http://localhost:8080`.")
    token: SecretStr | None = Field(
        default=None, description="Who asks: a token. Without it, as a server without authorization takes it."
    )
    names: bool = Field(
        default=False,
        description="Enter the tables of tables.database in this catalog by its REST API, for a Spark that does not "
        "know the catalog. Else Spark does it.",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if "@" in self.url or "," in self.url:
            raise fault("url", "allowed: one address, without credentials; who asks is said by token")
        if self.token is not None and not self.token.get_secret_value().strip():
            raise fault("token", "is empty: give the token, or leave the key out")
        return self
