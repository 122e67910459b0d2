"""Tells people that a stream fell, was parked, or works again: by webhook and by e-mail.

A notice never holds anything up: it is queued, and a thread sends it. A receiver that is dead is logged and forgotten.
The same trouble is told once per `repeat_after`; that it got worse (parked) is always told; that it is over is told to
those who had heard of it.
"""

from __future__ import annotations

import json
import logging
import queue
import smtplib
import socket
import ssl
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from email.message import EmailMessage
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from distributary.backoff import Backoff
from distributary.config import Email, Notices
from distributary.names import printable, shown

log = logging.getLogger(__name__)

TIMEOUT_SEC = 10.0
ATTEMPTS = 3
PAUSE_SEC = 1.0
QUEUED = 100
"""Notices that wait for a slow receiver; more than these are dropped, and logged."""
_SHOWN = 10


@dataclass(frozen=True)
class Notice:
    """`subject`: what it is about, as `stream 1-of-3`. `at`: ISO 8601 in UTC. `suppressed`: equal ones not sent."""

    event: str
    pipeline: str
    subject: str
    detail: str
    at: str
    host: str
    suppressed: int = 0

    @property
    def text(self) -> str:
        word = {"failure": "failed", "parked": "parked", "recovery": "working again"}[self.event]
        suppressed_before = f" (and {self.suppressed} times before)" if self.suppressed else ""
        return f"{self.pipeline}: {word}: {self.subject}{suppressed_before}{': ' if self.detail else ''}{self.detail}"


Sender: TypeAlias = Callable[[Notice], None]


@dataclass
class _Trouble:
    """What people know of one subject. `told`: whether they have heard of this trouble."""

    event: str
    sent_at: float
    is_open: bool = True
    told: bool = True
    suppressed: int = 0


class Notifier:
    """Sends notices of one pipeline. All methods return at once and never raise."""

    def __init__(
        self,
        pipeline: str,
        config: Notices,
        *,
        senders: Sequence[Sender] | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._pipeline = pipeline
        self._config = config
        self._senders = senders_of(config) if senders is None else list(senders)
        self._now = now
        self._known: dict[str, _Trouble] = {}
        self._tables: set[str] = set()
        self._queue: queue.Queue[Notice | None] = queue.Queue(QUEUED)
        self._thread: threading.Thread | None = None

    def failed(self, subject: str, detail: str) -> None:
        """It fell, and will be tried again."""
        self._trouble("failure", subject, detail)

    def parked(self, subject: str, detail: str) -> None:
        """It is given up for now."""
        self._trouble("parked", subject, detail)

    def recovered(self, subject: str, detail: str = "") -> None:
        trouble = self._known.get(subject)
        if trouble is None or not trouble.is_open:
            return
        trouble.is_open = False
        if trouble.told:
            self._send("recovery", subject, detail, 0)

    def batch(self, report: Mapping[str, Any]) -> None:
        """Tables that a batch could not write, and those that it could again (`BatchReport`, or its JSON)."""
        parked, back = set(report.get("parked", ())), set(report.get("recovered", ())) & self._tables
        if new := parked - self._tables:
            self._known.pop("tables", None)
            self._trouble("parked", "tables", _names(new))
        if back:
            self._send("recovery", "tables", _names(back), 0)
        self._tables = (self._tables | parked) - back

    def close(self, timeout_sec: float = TIMEOUT_SEC) -> None:
        """Wait for what is queued, but not for long."""
        if self._thread is not None:
            self._put(None)
            self._thread.join(timeout_sec)
            self._thread = None

    def _trouble(self, event: str, subject: str, detail: str) -> None:
        now, trouble = self._now(), self._known.get(subject)
        worse = trouble is not None and event == "parked" and trouble.event != "parked"
        if trouble is None or worse or now >= trouble.sent_at + self._config.repeat_after:
            self._known[subject] = _Trouble(event, now)
            self._send(event, subject, detail, trouble.suppressed if trouble is not None else 0)
            return
        trouble.told = trouble.told and trouble.is_open
        trouble.is_open = True
        trouble.suppressed += 1

    def _send(self, event: str, subject: str, detail: str, suppressed: int) -> None:
        if event not in self._config.on or not self._senders:
            return
        sent_at = datetime.fromtimestamp(self._now(), UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        line = printable(" ".join(detail.split())[:1000])
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="notices", daemon=True)
            self._thread.start()
        self._put(Notice(event, self._pipeline, subject, line, sent_at, socket.gethostname(), suppressed))

    def _put(self, notice: Notice | None) -> None:
        try:
            self._queue.put_nowait(notice)
        except queue.Full:
            log.warning("a notice is dropped, because %d wait already: %s", QUEUED, notice.text if notice else "")

    def _work(self) -> None:
        while (notice := self._queue.get()) is not None:
            for sender in self._senders:
                try:
                    sender(notice)
                except Exception as e:  # a receiver's fault, of whatever kind, is nobody else's
                    log.warning("a notice could not be sent: %s", e)


@contextmanager
def told(pipeline: str, config: Notices) -> Iterator[Notifier]:
    """A notifier for one run that nobody supervises: tells of the error that ends the block, and waits for the last."""
    notifier = Notifier(pipeline, config)
    try:
        yield notifier
    except Exception as e:
        notifier.parked("the run", f"it ended: {e}")
        raise
    finally:
        notifier.close()


def senders_of(config: Notices) -> list[Sender]:
    """A sender per receiver."""
    senders: list[Sender] = [_webhook(address.get_secret_value()) for address in config.webhooks]
    return senders + ([_email(config.email)] if config.email is not None else [])


def _webhook(address: str) -> Sender:
    # An address like Slack's is a secret itself: messages name its host only.
    host = urlsplit(address).hostname or "webhook"

    def send(notice: Notice) -> None:
        body = json.dumps({"text": notice.text, **asdict(notice)}).encode()
        request = urllib.request.Request(address, body, {"Content-Type": "application/json"}, method="POST")

        def post() -> None:
            with urllib.request.urlopen(request, timeout=TIMEOUT_SEC):
                pass

        _insist(post, f"the webhook at {host}")

    return send


def _email(config: Email) -> Sender:
    def send(notice: Notice) -> None:
        message = EmailMessage()
        message["Subject"] = printable(notice.text[:120])
        message["From"] = config.sender
        message["To"] = ", ".join(config.to)
        lines = [
            notice.text,
            "",
            f"at {notice.at}, on {notice.host}",
            f"distributary status tells more of {notice.pipeline}",
        ]
        message.set_content("\n".join(lines) + "\n")
        _insist(lambda: _deliver(config, message), f"the SMTP server {config.host}")

    return send


def _deliver(config: Email, message: EmailMessage) -> None:
    context = ssl.create_default_context()
    # Else smtplib asks the resolver for this machine's full name, which can take longer than all the rest.
    name = socket.gethostname()
    ours = name if "." in name else "[127.0.0.1]"
    if config.security == "tls":
        server: smtplib.SMTP = smtplib.SMTP_SSL(config.host, config.port, ours, timeout=TIMEOUT_SEC, context=context)
    else:
        server = smtplib.SMTP(config.host, config.port, ours, timeout=TIMEOUT_SEC)
    try:
        if config.security == "starttls":
            server.starttls(context=context)
        if config.username is not None and config.password is not None:
            server.login(config.username, config.password.get_secret_value())
        server.send_message(message)
    finally:
        # A message that was taken is sent, however the goodbye goes.
        with suppress(OSError, smtplib.SMTPException):
            server.quit()
        server.close()


def _insist(send: Callable[[], None], receiver: str) -> None:
    """Try a few times. Raises OSError that names the receiver and the kind of fault, and no address."""
    for attempt in range(ATTEMPTS):
        try:
            send()
            return
        except Exception as e:  # also what an address makes urllib raise, which would show it
            if attempt == ATTEMPTS - 1:
                code = getattr(e, "code", None) or getattr(e, "smtp_code", None) or getattr(e, "reason", None)
                raise OSError(f"{receiver}: {type(e).__name__}{f' ({code})' if code else ''}") from None
            time.sleep(Backoff(PAUSE_SEC).rest_sec(attempt + 1))


def _names(routes: Iterable[str]) -> str:
    names = sorted(routes)
    others = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(map(shown, names[:_SHOWN])) + others
