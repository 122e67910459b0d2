"""Keys of `source.security`: how Kafka's clients are let in."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, SecretStr, model_validator

from distributary.config.addresses import File, Url
from distributary.config.base import Model, fault
from distributary.config.quantities import Text


class OAuth(Model):
    """The client credentials grant of OAuth 2.0 (OIDC)."""

    token_url: Url = Field(description="The token endpoint of the identity provider.")
    client_id: Text = Field(description="The client's id there.")
    client_secret: SecretStr = Field(description="The client's secret.")
    scope: Text | None = Field(default=None, description="The scope that is asked for; some providers need one.")
    extensions: dict[str, Text] = Field(
        default={},
        description="SASL extensions, as `{logicalCluster: lkc-1, identityPoolId: pool-1}` for Confluent Cloud.",
    )
    ca_file: File | None = Field(
        default=None, description="PEM file of the authority that signed the certificate of the token endpoint."
    )


class Aws(Model):
    """IAM of Amazon MSK. Without profile and role, the credentials are those of AWS's default chain."""

    region: Text = Field(description="The cluster's region: `eu-west-1`.")
    profile: Text | None = Field(default=None, description="A named profile of the AWS configuration.")
    role_arn: Text | None = Field(default=None, description="A role to assume.")
    role_session: Text = Field(default="distributary", description="The session's name, with role_arn.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.profile is not None and self.role_arn is not None:
            raise fault("role_arn", "give profile or role_arn, not both")
        return self


class Kerberos(Model):
    principal: Text = Field(description="The client's principal: `distributary@EXAMPLE.ORG`.")
    keytab: File = Field(description="Its keytab file, on every machine that reads.")
    service: Text = Field(default="kafka", description="The brokers' principal without host and realm.")


class KafkaSecurity(Model):
    protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = Field(
        description="How clients talk to the brokers. The SASL protocols need a mechanism, and what it needs."
    )
    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "AWS_MSK_IAM", "GSSAPI"] | None = (
        Field(
            default=None,
            description="The SASL mechanism. PLAIN and SCRAM need username and password, OAUTHBEARER oauth, "
            "AWS_MSK_IAM aws, GSSAPI (Kerberos) kerberos.",
        )
    )
    username: Text | None = Field(default=None, description="The SASL user.")
    password: SecretStr | None = Field(default=None, description="The SASL password.")
    oauth: OAuth | None = Field(default=None, description="Where tokens come from, with mechanism OAUTHBEARER.")
    aws: Aws | None = Field(default=None, description="Whose credentials, with mechanism AWS_MSK_IAM.")
    kerberos: Kerberos | None = Field(default=None, description="Who it is, with mechanism GSSAPI.")
    ca_file: File | None = Field(
        default=None, description="PEM file of the authority that signed the brokers' certificates."
    )
    cert_file: File | None = Field(default=None, description="PEM file of the client's certificate.")
    key_file: File | None = Field(default=None, description="PEM file of the client's private key (PKCS#8).")
    key_password: SecretStr | None = Field(default=None, description="The password of key_file.")

    NEEDS: ClassVar = {"OAUTHBEARER": ("oauth",), "AWS_MSK_IAM": ("aws",), "GSSAPI": ("kerberos",)}
    """Mechanism -> keys that it needs; the others need username and password."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        self._check_sasl()
        if (self.cert_file is None) != (self.key_file is None):
            raise fault("key_file", "cert_file and key_file go together: give both or none")
        if not self.protocol.endswith("SSL") and (self.ca_file or self.cert_file):
            raise fault("ca_file", f"protocol {self.protocol} does not use certificates; allowed with SSL, SASL_SSL")
        return self

    def _check_sasl(self) -> None:
        named = ("username", "password")
        every = ("mechanism", *named, "oauth", "aws", "kerberos")
        if not self.protocol.startswith("SASL"):
            for key in every:
                if getattr(self, key) is not None:
                    raise fault(key, f"protocol {self.protocol} does not use it; allowed with SASL_PLAINTEXT, SASL_SSL")
            return
        needed = self.NEEDS.get(self.mechanism or "", named)
        setting = f"protocol {self.protocol}" if needed is named else f"mechanism {self.mechanism}"
        for key in ("mechanism", *needed):
            if getattr(self, key) is None:
                raise fault(key, f"{setting} needs {', '.join(('mechanism', *needed))}; {key} is missing")
        for key in every[1:]:
            if key not in needed and getattr(self, key) is not None:
                raise fault(key, f"mechanism {self.mechanism} does not use it; it needs {', '.join(needed)}")
        if self.mechanism == "AWS_MSK_IAM" and self.protocol != "SASL_SSL":
            raise fault("protocol", "AWS_MSK_IAM needs SASL_SSL")
