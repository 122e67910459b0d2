"""Notices: each trouble once, its worsening and its end; and nothing of it ever holds up or fails a stream."""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from distributary.config import Notices, load
from distributary.errors import ConfigError
from distributary.fleet import notices
from distributary.fleet.notices import Notice, Notifier

HOUR = 3600.0


class Told:
    """A notifier on a clock that only the test moves, and what it sent."""

    def __init__(self, **keys: Any) -> None:
        self.now = 1_800_000_000.0
        self.sent: list[Notice] = []
        self.notifier = Notifier("games", Notices(**keys), senders=[self.sent.append], now=lambda: self.now)

    def events(self) -> list[str]:
        self.notifier.close()
        return [f"{n.event} {n.subject}" for n in self.sent]


def test_the_same_failure_is_told_once_and_again_after_a_while() -> None:
    told = Told()
    for _ in range(5):
        told.notifier.failed("stream a", "no broker")
        told.now += 60
    assert told.events() == ["failure stream a"]
    told.now += HOUR
    told.notifier.failed("stream a", "no broker")
    assert told.events() == ["failure stream a"] * 2
    assert told.sent[-1].suppressed == 4 and "4 times before" in told.sent[-1].text


def test_that_it_got_worse_is_told_at_once_and_that_it_is_over_too() -> None:
    told = Told()
    told.notifier.failed("stream a", "no broker")
    told.notifier.parked("stream a", "no broker")
    told.notifier.parked("stream a", "no broker")
    told.notifier.recovered("stream a")
    told.notifier.recovered("stream a")
    assert told.events() == ["failure stream a", "parked stream a", "recovery stream a"]


def test_streams_are_told_apart() -> None:
    told = Told()
    told.notifier.failed("stream a", "x")
    told.notifier.failed("stream b", "x")
    told.notifier.recovered("stream b")
    assert told.events() == ["failure stream a", "failure stream b", "recovery stream b"]


def test_a_recovery_from_nothing_is_no_news() -> None:
    told = Told()
    told.notifier.recovered("stream a")
    assert told.events() == []


def test_a_stream_that_falls_and_rises_all_the_time_does_not_flood_anyone() -> None:
    told = Told()
    for _ in range(20):
        told.notifier.failed("stream a", "x")
        told.notifier.recovered("stream a")
        told.now += 60
    assert told.events() == ["failure stream a", "recovery stream a"]


def test_parked_tables_of_a_batch_are_one_notice() -> None:
    told = Told()
    told.notifier.batch({"parked": [f"game_{n}" for n in range(30)], "recovered": []})
    told.notifier.batch({"parked": ["game_1"], "recovered": ["never told"]})
    told.notifier.batch({"parked": ["game_1", "other"], "recovered": ["game_2"]})
    told.notifier.batch({"parked": [], "recovered": []})
    assert told.events() == ["parked tables", "parked tables", "recovery tables"]
    assert told.sent[0].detail.endswith("and 20 more")
    assert (told.sent[1].detail, told.sent[2].detail) == ("other", "game_2")


def test_only_the_events_that_were_asked_for_are_sent() -> None:
    told = Told(on=["parked"])
    told.notifier.failed("stream a", "x")
    told.notifier.parked("stream a", "x")
    told.notifier.recovered("stream a")
    assert told.events() == ["parked stream a"]


# -- receivers -----------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "PAUSE_SEC", 0.0)


class Hook:
    """A webhook on this machine that answers `statuses` in turn, the last one for ever."""

    def __init__(self, *statuses: int, slow_sec: float = 0) -> None:
        self.bodies: list[dict[str, Any]] = []
        hook, left = self, list(statuses)

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                time.sleep(slow_sec)
                hook.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(left.pop(0) if len(left) > 1 else left[0])
                self.end_headers()

            def log_message(self, *_: object) -> None: ...

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/services/SECRET"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def hooks() -> Iterator[list[Hook]]:
    made: list[Hook] = []
    yield made
    for hook in made:
        hook.server.shutdown()
        hook.server.server_close()


def notifier(*urls: str, **keys: Any) -> Notifier:
    return Notifier("games", Notices.model_validate({"webhooks": list(urls), **keys}))


def test_a_webhook_gets_json_with_a_text(hooks: list[Hook]) -> None:
    hooks.append(Hook(200))
    told = notifier(hooks[0].url)
    told.failed("stream 1-of-3", "the broker\nis <away>")
    told.close()
    (body,) = hooks[0].bodies
    assert body["text"] == "games: failed: stream 1-of-3: the broker is <away>"
    assert (body["event"], body["pipeline"], body["subject"]) == ("failure", "games", "stream 1-of-3")


def test_a_webhook_that_hiccups_gets_it_at_the_next_attempt(hooks: list[Hook]) -> None:
    hooks.append(Hook(500, 200))
    told = notifier(hooks[0].url)
    told.failed("stream a", "x")
    told.close()
    assert len(hooks[0].bodies) == 2


def test_a_dead_webhook_is_only_logged_without_its_address_and_the_others_get_it(
    hooks: list[Hook], caplog: pytest.LogCaptureFixture
) -> None:
    hooks += [Hook(200), Hook(404)]
    told = notifier("http://127.0.0.1:1/services/SECRET", hooks[1].url, hooks[0].url)
    told.failed("stream a", "x")
    told.close()
    assert len(hooks[0].bodies) == 1
    assert caplog.text.count("127.0.0.1") == 2 and "404" in caplog.text
    assert "SECRET" not in caplog.text


def test_a_slow_webhook_holds_nobody_up(hooks: list[Hook], caplog: pytest.LogCaptureFixture) -> None:
    hooks.append(Hook(200, slow_sec=0.3))
    told = notifier(hooks[0].url)
    begun = time.monotonic()
    with caplog.at_level(logging.CRITICAL):
        for n in range(500):
            told.failed(f"stream {n}", "x")
    told.close(timeout_sec=0.1)
    assert time.monotonic() - begun < 60  # held up, it were 150


def test_a_run_that_nobody_supervises_tells_of_its_end(hooks: list[Hook]) -> None:
    hooks.append(Hook(200))
    with (
        pytest.raises(RuntimeError),
        notices.told("games", Notices.model_validate({"webhooks": [hooks[0].url]})) as told,
    ):
        told.batch({"parked": ["ann_game"], "recovered": []})
        raise RuntimeError("no disk")
    assert [b["text"] for b in hooks[0].bodies] == [
        "games: parked: tables: ann_game",
        "games: parked: the run: it ended: no disk",
    ]


class Mail(threading.Thread):
    """As much of an SMTP server as one message takes."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        self.commands: list[str] = []
        self.body = ""

    def run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self._serve(self.socket.accept()[0])

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()
        self.join(60)

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rw", newline="\r\n", encoding="utf-8") as stream:

            def say(line: str) -> None:
                stream.write(line + "\r\n")
                stream.flush()

            say("220 test")
            while line := stream.readline().strip():
                self.commands.append(line)
                if line == "data":
                    say("354 go")
                    while (text := stream.readline()).strip() != ".":
                        self.body += text
                say("221 bye" if line.lower() == "quit" else "250 ok")


def test_an_email_has_the_text_and_goes_to_all() -> None:
    mail = Mail()
    mail.start()
    email = {
        "host": "127.0.0.1",
        "port": mail.port,
        "security": "none",
        "sender": "a@x.org",
        "to": ["b@x.org", "c@x.org"],
    }
    told = notifier(email=email)
    told.parked("stream a", "no broker\r\nBcc: everyone@x.org")
    told.close()
    mail.close()
    assert [c for c in mail.commands if c.startswith("rcpt")] == ["rcpt TO:<b@x.org>", "rcpt TO:<c@x.org>"]
    assert "Subject: games: parked: stream a: no broker Bcc: everyone@x.org" in mail.body.replace("\r\n ", " ")
    assert "\nBcc:" not in mail.body


def test_a_mail_server_without_encryption_gets_nothing(caplog: pytest.LogCaptureFixture) -> None:
    mail = Mail()
    mail.start()
    email = {"host": "127.0.0.1", "port": mail.port, "sender": "a@x.org", "to": ["b@x.org"]}
    told = notifier(email=email)
    told.parked("stream a", "x")
    told.close()
    mail.close()
    assert not any(c.startswith("mail") for c in mail.commands)
    assert "SMTP server 127.0.0.1" in caplog.text


# -- configuration -------------------------------------------------------------------------------------------

FILE = """\
pipeline: games
source: {type: delta, path: /s}
registry: {path: /r}
tables: {root: /t}
notices:
"""


def test_addresses_and_passwords_come_from_references_and_are_never_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOOK", "https://hooks.example.org/SECRET")
    file = tmp_path / "p.yaml"
    file.write_text(FILE + '  webhooks: ["${env:HOOK}"]\n  repeat_after: 10 minutes\n')
    config = load(file)
    assert config.notices.webhooks[0].get_secret_value() == "https://hooks.example.org/SECRET"
    assert config.notices.repeat_after == 600
    assert "SECRET" not in repr(config) + str(config.as_dict_masked())


@pytest.mark.parametrize(
    ("keys", "key"),
    [
        ('  webhooks: ["ftp://x"]', "notices.webhooks"),
        ("  on: [everything]", "notices.on[0]"),
        ("  email: {host: h, sender: a@x, to: [b@x], password: p}", "notices.email.password"),
        (
            "  email: {host: h, sender: a@x, to: [b@x], username: u, password: p, security: none}",
            "notices.email.security",
        ),
        ("  email: {host: h, sender: a@x, to: []}", "notices.email.to"),
        ('  email: {host: h, sender: "a@x\\nBcc: b@x", to: [b@x]}', "notices.email.sender"),
    ],
)
def test_a_receiver_that_cannot_work_is_refused_at_its_key(keys: str, key: str, tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(FILE + keys + "\n")
    with pytest.raises(ConfigError) as caught:
        load(file)
    assert caught.value.parameters["key"] == key
