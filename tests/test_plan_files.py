"""What `plan` says of change files is what `run` then does; without Spark."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from distributary.audit.plan import PlanReport, plan_changes
from distributary.cli.render import plan_text
from distributary.engine.changes.writer import ChangeWriter
from distributary.errors import QuarantineLimit
from tests.scenarios import dying
from tests.shop import change, mysql_table, order
from tests.sparkless import Sparkless
from tests.test_shown import printed

ORDERS = mysql_table()


def test_what_a_plan_says_of_change_files_is_what_the_run_then_does(lake: Path) -> None:
    """Batches by the limit of files, files that cannot be read or are empty, files that were given to a run which died,
    a table that rests, and the limit of the quarantine."""
    shop = Sparkless(lake, source={"max_files_per_batch": 2}, tables={"retry_after": "1 hour"})

    def agree() -> PlanReport:
        found, before = plan_changes(shop.config), len(shop.batches)
        with suppress(QuarantineLimit):
            shop.run()
        done = shop.batches[before:]
        sums = [sum(getattr(b, name) for b in done) for name in ("rows_in", "rows_written", "rows_quarantined")]
        if found.stops is None:
            assert [found.rows_in, found.rows_written, found.rows_quarantined] == sums
            assert found.batches == len(done)
        return found

    others = [mysql_table(f"orders{n}") for n in range(5)]
    for number, table in enumerate(others):
        shop.send(change(table, "INSERT", order(number, "new"), 100))
    first = agree()
    assert (first.files, first.batches, len(first.tables)) == (5, 3, 5)
    assert (agree().batches, agree().files) == (0, 0)

    shop.garbage()
    shop.garbage("shop_orders/2026/01/01/00/00/empty.jsonl", b"\n")
    broken = agree()
    assert (broken.files, broken.batches, broken.reasons["FILE_BROKEN"]) == (2, 1, 1)
    assert "nothing is waiting" not in printed(plan_text(broken))
    assert "2 files with 1 event are waiting" in printed(plan_text(broken))

    shop.send(change(ORDERS, "INSERT", order(1, "new"), 100), change(others[0], "INSERT", order(9, "new"), 200, sec=70))
    with dying(ChangeWriter, "take"):
        shop.run()
    assert agree().rows_written == 2, "the run that died had taken the files into its ledger"

    Path(shop.config.tables.root, "shop_parked_log").write_text("no folder")
    parked = mysql_table("parked")
    for sec in (0, 70):
        shop.send(change(parked, "INSERT", order(sec, "new"), 100 + sec, sec=sec))
        rests = agree()
        assert rests.reasons == {"TABLE_PARKED": 1}
        assert rests.tables[0].parked is not None
    shop.configure(source={"max_files_per_batch": 1}, quarantine={"max_ratio": 0.1, "min_rows": 1})
    shop.garbage("shop_orders/2026/01/01/00/07/broken.avro")
    shop.send(change(ORDERS, "INSERT", order(5, "new"), 900, sec=900))
    limited = agree()
    assert (limited.batches, limited.rows_written, limited.stops) == (1, 0, "max_ratio 0.1")
    assert agree().rows_written == 1
