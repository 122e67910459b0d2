"""Which errors speak of the whole store: asked of real clients, with names that sound like an outage."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from distributary.errors import StoreDown, StoreUnreadable
from distributary.errors.border import TableFault
from distributary.tables.outage import is_store_fault, own_fault
from distributary.tables.put_once import put_once
from distributary.tables.store import Store
from distributary.tables.table import Table

EVIL = "SlowDown_ServiceUnavailable_503_os_error_28"
"""A name that a producer may choose."""
BODY = '<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{code}</Code><Key>InvalidAccessKeyId</Key></Error>'


@contextmanager
def answering(status: int, code: str) -> Iterator[Store]:
    """A store that answers every request so."""

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            body = BODY.format(code=code).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = answer

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield Store(
            {
                "aws_endpoint": f"http://127.0.0.1:{server.server_port}",
                "aws_access_key_id": "key",
                "aws_secret_access_key": "secret",
                "aws_region": "us-east-1",
                "allow_http": "true",
                "max_retries": "0",
                "timeout": "5s",
            }
        )
    finally:
        server.shutdown()
        server.server_close()


def fault(work: Callable[[], Any]) -> Exception:
    with pytest.raises(OSError) as caught:
        work()
    return caught.value


@pytest.mark.parametrize(
    ("status", "code", "of_all"),
    [
        (400, "SlowDown", False),
        (401, "SlowDown", True),
        (403, "AccessDenied", False),
        (403, "InvalidAccessKeyId", True),
    ],
)
def test_the_status_of_a_store_s_answer_says_whose_fault_it_is(status: int, code: str, of_all: bool) -> None:
    """Neither the table's name nor the rest of the answer plays a part."""
    uri = f"s3://bucket/{EVIL} {EVIL}"
    with answering(status, code) as store:
        assert is_store_fault(fault(lambda: Table(uri, store).open())) == of_all
        assert is_store_fault(fault(lambda: put_once(uri, store, "_delta_log", EVIL, b"x"))) == of_all


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_store_that_is_busy_or_broken_is_away(status: int) -> None:
    with answering(status, "Anything") as store:
        assert is_store_fault(fault(lambda: Table(f"s3://bucket/{EVIL}", store).open()))


@pytest.mark.parametrize(
    "error",
    [
        TableFault(f"column {EVIL}: Generic S3 error: Error performing GET http://h/ in 1s - HTTP error: 503"),
        TableFault(f"{EVIL} 503 Service Unavailable SlowDown (os error 28)"),
        OSError(f"Object at location {EVIL} not found: Connection refused (os error 111)"),
        OSError("Generic LocalFileSystem error: /lake/No space left on device (os error 28)/x: Denied (os error 13)"),
        ValueError("No space left on device (os error 28)"),
        RecursionError("dns error: operation timed out"),
        PermissionError(13, f"Permission denied: {EVIL}"),
    ],
    ids=lambda e: type(e).__name__,
)
def test_text_alone_never_makes_an_outage(error: BaseException) -> None:
    assert not is_store_fault(error)


def test_what_says_so_by_its_type_is_one() -> None:
    for error in (StoreDown(path="p", detail="d"), ConnectionResetError(), TimeoutError(), OSError(28, "full")):
        assert is_store_fault(error)


def test_a_table_named_after_an_outage_is_no_outage(tmp_path: Path) -> None:
    (tmp_path / EVIL).mkdir()
    (tmp_path / EVIL / "_delta_log").mkdir()
    (tmp_path / EVIL / "_delta_log" / f"{0:020d}.json").write_text("{broken")
    assert not is_store_fault(fault(lambda: Table(str(tmp_path / EVIL), Store()).open()))


def test_an_error_stays_with_its_table_unless_it_speaks_of_the_whole_store() -> None:
    assert own_fault(ValueError("odd"), "/lake/a") == "ValueError: odd"
    for outage in (StoreDown, StoreUnreadable):
        with pytest.raises(outage) as caught:
            own_fault(ConnectionError("gone"), "/lake/a", outage)
        assert caught.value.parameters == {"path": "/lake/a", "detail": "ConnectionError: gone"}
    with pytest.raises(KeyboardInterrupt):
        own_fault(KeyboardInterrupt(), "/lake/a")
