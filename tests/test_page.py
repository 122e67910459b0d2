"""The page about a pipeline: its figures are the ledger's, its texts are text, and a real browser shows it."""

from __future__ import annotations

import base64
import hashlib
import html
import http.client
import json
import os
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distributary.audit.page import Facts, Gatherer, document, served
from distributary.audit.page.loopback import HOST, Site
from distributary.audit.quarantined import quarantined_rows
from distributary.audit.status import Status, status
from distributary.cli.entry import execute
from distributary.errors import BadInput, Exit
from distributary.shares import Cluster, Division
from distributary.state.divisions import Current, follow
from distributary.state.ledger import totals
from tests.extent import either
from tests.lake import Lake

ODD = "<b>[red]&amp;</script>"
BATCHES = 6
NOBODY = {"type": "delta", "path": "/there/is/none"}
"""A broker that is away takes ten seconds to be found so."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """For those who only read."""
    return pipeline(tmp_path_factory.mktemp("page"))


@pytest.fixture
def mine(lake: Path) -> Lake:
    return pipeline(lake)


def pipeline(root: Path) -> Lake:
    """Schema ids change at batch 4; rows are set aside, and one table is parked at the end."""
    made = Lake(root, source=NOBODY)
    for number in range(BATCHES):
        rows = {f"game_{n}": {1 + number // 4: 10 * n + 5} for n in range(4)}
        made.batch(number, rows, bad={"game_1": number % 2, None: 1 if number == 3 else 0})
    made.batch(BATCHES, {ODD: {1: 2}}, parked={"game_2": 3})
    return made


def gatherer(made: Lake) -> Gatherer:
    return Gatherer(made.config, lambda: status(made.config), lambda: quarantined_rows(made.config))


def facts_in(page: str) -> Any:
    found = re.search(r'<script type="application/json" id="facts">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


# -- what it says ------------------------------------------------------------------------------------------


def test_the_figures_of_the_page_are_those_of_the_ledger(made: Lake) -> None:
    said = facts_in(document(gatherer(made).gather()))
    entries = made.ledger.entries()
    sums = totals(entries)
    assert {t["route"]: (t["rows"], t["quarantined"]) for t in said["tables"]} == {
        route: (entry.rows_written, entry.rows_quarantined) for route, entry in sums.items() if route is not None
    }
    assert said["rows"] == sum(entry.rows_written for entry in entries)
    for point in said["batches"]:
        own = [entry for entry in entries if entry.batch == point["batch"]]
        assert point["rows"] == sum(entry.rows_written for entry in own)
        assert point["quarantined"] == sum(entry.rows_quarantined for entry in own)
    assert [point["batch"] for point in said["batches"]] == list(range(BATCHES + 1))
    assert sum(group["rows"] for group in said["groups"]) == said["quarantined"] == 7
    assert said["tables"][0]["route"] == "game_2" and said["unwell"] == ["1 table parked"]


def test_it_says_which_schema_came_when_and_what_it_added(made: Lake) -> None:
    found = gatherer(made).gather(histories=2)
    came = [(one.route, one.batch, one.schemas, one.created) for one in found.changes if one.route == "game_3"]
    assert came == [("game_3", 4, (2,), False), ("game_3", 0, (1,), True)]
    assert found.changes[0].route == ODD, "newest first"
    past = found.histories[ODD]
    assert [dict(step.new_columns) for step in past.steps if step.created] == [{"user": "string"}]
    assert past.schemas[0].first_offset, "with the offsets"
    assert len(found.histories) == 2


def test_batches_that_the_ledger_has_added_up_stay_on_a_page_that_has_seen_them(
    mine: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = gatherer(mine)
    before = live.gather().batches
    monkeypatch.setattr("distributary.state.ledger.KEPT_ROWS", 3)
    mine.ledger.compact()
    assert live.gather().batches == before
    assert len(gatherer(mine).gather().batches) < len(before)


def test_it_says_which_cluster_has_which_routes(lake: Path) -> None:
    whole = Lake(lake, source=NOBODY)
    division = Division((Cluster("left", ("ann",)), Cluster("right")), ("right",))
    follow(whole.config, Current(division, 1), whole.store)
    whole.batch(0, {"ann": {1: 4}, "bob": {1: 5}})
    found = gatherer(whole).gather().placement
    assert [(one.name, one.routes, one.rows) for one in found] == [("left", ("ann",), 4), ("right", ("bob",), 5)]


def test_a_quarantine_that_cannot_be_read_is_a_note(made: Lake) -> None:
    def fails() -> Any:
        raise OSError("no such bucket")

    found = Gatherer(made.config, lambda: status(made.config), fails).gather()
    assert found.rejections is None and "no such bucket" in found.notes[0]
    assert "no such bucket" in document(found)


# -- text is text ------------------------------------------------------------------------------------------


def test_the_page_is_one_file_that_asks_nobody(made: Lake) -> None:
    page = document(gatherer(made).gather(histories=20))
    outside = re.findall(r"""(?:src|href|url|action)\s*[=(]\s*["']?(?!data:)[^"'\s>)]+""", page.split("<script>")[0])
    assert outside == []
    assert "connect-src 'none'" in html.unescape(page)
    assert page.count("<script") == page.count("</script>") == 3


@settings(max_examples=either(20, 2000))
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_no_name_ends_an_element_or_begins_one(name: str) -> None:
    found = Facts(Status(name, "now", True, 1, "then", 1, 1, 1, (), (name,), (name,)), (), (), None)
    page = document(found)
    plain = document(replace(found, status=replace(found.status, pipeline="p", attention=("p",), notes=("p",))))
    assert page.count("<") == plain.count("<")
    assert facts_in(page)["pipeline"] == name


def test_only_its_own_scripts_may_run(made: Lake) -> None:
    page = document(gatherer(made).gather())
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    digests = {base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts}
    assert set(re.findall(r"sha256-([^']+)'", html.unescape(policy[1]))) == digests
    assert "unsafe-inline" not in html.unescape(policy[1]).split("script-src")[1]


# -- live --------------------------------------------------------------------------------------------------


def asked(address: str, path: str, host: str | None = None) -> tuple[int, str, str]:
    port = int(address.rstrip("/").rsplit(":", 1)[1])
    connection = http.client.HTTPConnection(HOST, port, timeout=30)
    connection.request("GET", path, headers={} if host is None else {"Host": host})
    answer = connection.getresponse()
    said = answer.read().decode()
    connection.close()
    return answer.status, answer.getheader("Content-Type", ""), said


def test_the_live_page_gives_newer_facts_and_a_history(mine: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distributary.audit.page.loopback.FRESH_SEC", 0.0)
    with served(gatherer(mine), 0) as address:
        assert address.startswith("http://127.0.0.1:")
        code, kind, page = asked(address, "/")
        assert (code, kind) == (200, "text/html; charset=utf-8") and "connect-src &#39;self&#39;" in page
        mine.batch(BATCHES + 1, {"game_0": {3: 7}})
        assert json.loads(asked(address, "/facts.json")[2])["batches"][-1]["rows"] == 7
        code, _, said = asked(address, "/history.json?route=game_0")
        assert code == 200 and [one["id"] for one in json.loads(said)["schemas"]] == [1, 2, 3]
        assert asked(address, "/history.json?route=nobody")[0] == 404
        assert asked(address, "/etc/passwd")[0] == 404
        assert asked(address, "/healthz")[0] == 200
        assert asked(address, "/readyz")[::2] == (503, "1 table parked\n")
        code, _, figures = asked(address, "/metrics")
        assert (
            code == 200 and 'distributary_table_parked{pipeline="games",route="game_2",stream="whole"} 1.0' in figures
        )


def test_another_site_s_page_cannot_read_it(made: Lake) -> None:
    with served(gatherer(made), 0) as address:
        assert asked(address, "/facts.json", host="evil.example:80")[0] == 403
        assert asked(address, "/facts.json", host="localhost:1")[0] == 200


def test_state_that_cannot_be_read_is_said_and_the_page_stays_up(mine: Lake) -> None:
    site = Site(gatherer(mine))
    assert site.answer("/readyz")[0] == 503
    shutil.rmtree(Path(mine.config.state_root, "ledger", "_delta_log"))
    Path(mine.config.state_root, "ledger", "_delta_log").write_text("no folder")
    site._seen = None
    code, _, said = site.answer("/facts.json")
    assert code in (500, 503) and said


def test_a_port_that_is_taken_says_so(made: Lake) -> None:
    with served(gatherer(made), 0) as address:
        port = int(address.rstrip("/").rsplit(":", 1)[1])
        with pytest.raises(BadInput, match="give another"), served(gatherer(made), port):
            pass


def test_status_writes_the_same_page(made: Lake, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = tmp_path / "p.yaml", tmp_path / "page.html"
    file.write_text(json.dumps(made.config.model_dump(mode="json", exclude_unset=True)))
    assert execute(["status", str(file), "--html", str(out)]) == Exit.OK
    facts = facts_in(out.read_text())
    assert facts["histories"].keys() >= {"game_0", ODD}
    assert any(f"distributary quarantine {file}" in line for line in facts["attention"])


# -- in a browser ------------------------------------------------------------------------------------------

BROWSERS = ("chromium-headless-shell", "chromium", "google-chrome", "chrome")
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--enable-logging=stderr")


@pytest.fixture(scope="module")
def browser() -> str:
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None and os.environ.get("REQUIRE_SERVICES"):
        pytest.fail("no browser; install one: apt-get install chromium-headless-shell")
    if found is None:
        pytest.skip("no browser is installed (chromium-headless-shell)")
    return found


def seen(browser: str, folder: Path, page: str, state: str = "", *flags: str) -> tuple[str, list[str]]:
    """The document as the browser has it in the end, and what it said on its console."""
    file = folder / "page.html"
    file.write_text(page)
    address = f"{file.as_uri()}#{state}"
    command = [browser, *FLAGS, *flags, f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=5000"]
    done = subprocess.run([*command, "--dump-dom", address], capture_output=True, text=True, timeout=400, check=True)
    return done.stdout, [line for line in done.stderr.splitlines() if ":CONSOLE" in line]


def cells(dom: str) -> list[list[str]]:
    """The rows of the table of tables."""
    body = re.search(r'id="tables".*?<tbody>(.*?)</tbody>', dom, re.DOTALL)
    assert body is not None
    rows = re.findall(r"<tr.*?</tr>", body[1], re.DOTALL)
    return [[html.unescape(cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", row, re.DOTALL)] for row in rows]


PRESSED = """
const press = (key) => {
  const event = new KeyboardEvent("keydown", {key, bubbles: true});
  (document.activeElement || document.body).dispatchEvent(event);
};
press("/");
document.body.dataset.searching = document.activeElement.id;
press("Escape"); press("j"); press("j"); press("Enter");
document.body.dataset.opened = document.getElementById("h-detail").textContent;
press("Escape");
document.body.dataset.closed = document.getElementById("detail").hidden;
document.body.dataset.back = document.activeElement.dataset.route;
console.error("this is how an error looks");
"""


def with_script(page: str, script: str) -> str:
    """The page with one more script that may run."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    page = page.replace("script-src ", f"script-src &#39;sha256-{digest}&#39; ", 1)
    return page.replace("</body>", f"<script>{script}</script></body>")


def test_a_browser_shows_the_ledger_s_figures_without_an_error(made: Lake, browser: str, tmp_path: Path) -> None:
    page = document(gatherer(made).gather(histories=20))
    dom, console = seen(browser, tmp_path, page, "sort=rows&dir=desc&route=game_1")
    assert console == []
    sums = totals(made.ledger.entries())
    expected = sorted(((e.rows_written, r, e.rows_quarantined) for r, e in sums.items() if r is not None), reverse=True)
    assert [(row[2], row[0], row[6]) for row in cells(dom)] == [(f"{n:,}", r, f"{bad:,}") for n, r, bad in expected]
    assert 'class="unwell" id="head"' in dom or 'id="head" class="unwell"' in dom
    assert dom.count("<canvas") == 2, "both charts are drawn"
    assert 'data-reason="CORRUPT_PAYLOAD" data-rows="4"' in dom and 'data-reason="TABLE_PARKED" data-rows="3"' in dom
    assert "schema id 2: 30 rows, first in batch 4" in dom, "the history of the route that was asked for"


def test_a_browser_finds_one_of_3000_routes_and_is_used_by_keyboard(made: Lake, browser: str, tmp_path: Path) -> None:
    found = gatherer(made).gather()
    one = found.status.tables[0]
    many = tuple(replace(one, route=f"route_{n:04}", state="written", failures=0) for n in range(3_000))
    page = document(replace(found, status=replace(found.status, tables=many)))
    dom, console = seen(browser, tmp_path, with_script(page, PRESSED))
    assert len(console) == 1 and "this is how an error looks" in console[0]
    assert len(cells(dom)) == 100 and "100 of 3,000" in dom and "show 100 more" in dom
    for key, value in {"searching": "q", "opened": "route_0001", "closed": "true", "back": "route_0001"}.items():
        assert f'data-{key}="{value}"' in dom
    dom, console = seen(browser, tmp_path, page, "q=E_27&sort=route&dir=desc")
    assert console == [] and [row[0] for row in cells(dom)] == [f"route_27{n:02}" for n in range(99, -1, -1)]
