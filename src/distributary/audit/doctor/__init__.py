"""What a pipeline needs, tried out: each check by itself, side by side, none waited for longer than it may take."""

from distributary.audit.doctor.findings import Diagnosis, Finding, diagnose

__all__ = ["Diagnosis", "Finding", "diagnose"]
