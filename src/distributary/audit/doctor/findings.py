"""Findings, and the checks that make them, run side by side."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from distributary.config import Pipeline
from distributary.errors import DistributaryError, Exit
from distributary.errors.border import in_words
from distributary.redaction import redacted

Level = Literal["ok", "warning", "fault"]


@dataclass(frozen=True)
class Finding:
    """What one check found. `remedy`: what to do; None where nothing is wrong."""

    check: str
    level: Level
    detail: str
    remedy: str | None = None


@dataclass(frozen=True)
class Check:
    """`run`: looks, and says what it finds. `remedy`: where it ends with an error that says none."""

    name: str
    run: Callable[[Pipeline], Iterator[Finding]]
    remedy: str


@dataclass(frozen=True)
class Diagnosis:
    """All findings, in the order of the checks."""

    pipeline: str
    findings: tuple[Finding, ...]

    @property
    def exit_code(self) -> Exit:
        """ENVIRONMENT where a run would fail; warnings are none."""
        return Exit.ENVIRONMENT if any(finding.level == "fault" for finding in self.findings) else Exit.OK

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def diagnose(config: Pipeline, within_sec: float, checks: Sequence[Check] | None = None) -> Diagnosis:
    """Run all checks at once; none is waited for longer than `within_sec`, and none keeps another from being told.

    A check that does not end goes on in a thread of its own, which ends with the process.
    """
    if checks is None:
        from distributary.audit.doctor.checks import CHECKS

        checks = CHECKS
    until = time.monotonic() + within_sec
    running = [_Running(check, config) for check in checks]
    findings = [finding for running_check in running for finding in running_check.findings(until, within_sec)]
    return Diagnosis(config.pipeline, tuple(findings))


class _Running:
    """A check in a thread of its own."""

    def __init__(self, check: Check, config: Pipeline) -> None:
        self._check = check
        self._found: list[Finding] = []
        self._thread = threading.Thread(target=self._work, args=(config,), name=f"check {check.name}", daemon=True)
        self._thread.start()

    def findings(self, until: float, within_sec: float) -> list[Finding]:
        self._thread.join(max(0.0, until - time.monotonic()))
        findings = list(self._found)
        if self._thread.is_alive():
            findings.append(
                Finding(self._check.name, "fault", f"no answer within {within_sec:g} s", self._check.remedy)
            )
        return findings

    def _work(self, config: Pipeline) -> None:
        name = self._check.name
        try:
            for finding in self._check.run(config):
                self._found.append(finding)
        except DistributaryError as e:
            # Its own words say what to do.
            self._found.append(Finding(name, "fault", redacted(str(e)), self._check.remedy))
        except Exception as e:  # of whatever kind: it must not hide the other checks
            self._found.append(Finding(name, "fault", redacted(in_words(e)), self._check.remedy))
