"""Tokens of Amazon MSK's IAM for librdkafka; Java's client has a library of Amazon's for that."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from distributary.config.kafka_security import Aws
from distributary.errors import BadInput

EXTRA = "distributary[msk]"


def token_of(aws: Aws) -> Callable[[str], tuple[str, float]]:
    """Makes a token whenever librdkafka asks: the token, and until when it holds (seconds since 1970).

    Raises BadInput where Amazon's signer is not installed.
    """
    try:
        provider: Any = import_module("aws_msk_iam_sasl_signer.MSKAuthTokenProvider")
    except ImportError as e:
        raise BadInput(detail=f"source.security.mechanism AWS_MSK_IAM needs pip install '{EXTRA}': {e}") from e

    def token(_: str) -> tuple[str, float]:
        if aws.profile is not None:
            token_and_expiry = provider.generate_auth_token_from_profile(aws.region, aws.profile)
        elif aws.role_arn is not None:
            token_and_expiry = provider.generate_auth_token_from_role_arn(aws.region, aws.role_arn, aws.role_session)
        else:
            token_and_expiry = provider.generate_auth_token(aws.region)
        text, expires_ms = token_and_expiry
        return text, expires_ms / 1000

    return token
