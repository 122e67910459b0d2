"""A state folder that was lost, emptied or changed for another: seen before every row is written twice."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from distributary.engine.messages.attempt import Attempt
from distributary.engine.messages.wide_attempt import WideAttempt
from distributary.errors import StateLost
from tests.scenarios import Scenario, dying, message

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]

EVENT = 'syntax = "proto3"; message event { string user = 1; }'


def sent(scenario: Scenario, *users: str) -> None:
    schema = scenario.schema("event", EVENT)
    scenario.send(*(scenario.event("a", schema, message(EVENT, "event", user=user)) for user in users))


@pytest.mark.parametrize("layout", ["fanout", "wide"])
def test_a_lost_or_changed_state_folder_is_refused_unless_one_goes_on_knowingly(lake: Path, layout: str) -> None:
    keys: dict[str, Any] = {"layout": layout, "state": str(lake / "state")}
    scenario = Scenario(lake, **keys)
    sent(scenario, "0")
    # A first batch that dies between tables and ledger is known by its checkpoint.
    with dying(WideAttempt if layout == "wide" else Attempt, "run", after=True, raises=(Exception,)):
        scenario.run()
    scenario.run()
    scenario.check()
    shutil.move(lake / "state", lake / "elsewhere")
    for _ in range(2):
        with pytest.raises(StateLost) as caught:
            scenario.run()
        assert caught.value.parameters["state"] == str(lake / "state")
    shutil.rmtree(lake / "state")
    shutil.move(lake / "elsewhere", lake / "state")
    scenario.run()
    scenario.check()
    if layout == "fanout":
        scenario.configure(**keys | {"state": str(lake / "new"), "new_state": "continue"})
        scenario.run()
        assert scenario.values("a", "user") == ["0", "0"]
        scenario.run()
        assert scenario.values("a", "user") == ["0", "0"]
