"""Schema ids that nobody has registered: a batch asks for so many, and each comes in soon after it is there."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

from distributary.config import RegistryConfig
from distributary.engine.schemas import ASKED_AT_A_TIME, FEW, Schemas
from distributary.errors import Reason
from distributary.schemas.registry import Schema, open_registry
from tests.test_registry_cache import Clock

EVENT = 'syntax = "proto3"; message event { string user = 1; }'


class Counting:
    """The embedded registry, and which ids it was asked for."""

    def __init__(self, root: Path) -> None:
        self.inner = open_registry(RegistryConfig(path=str(root)))
        self.asked: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def get(self, schema_id: int) -> Schema:
        self.asked.append(schema_id)
        return self.inner.get(schema_id)


def test_a_flood_of_ids_is_not_asked_for_to_its_end_and_the_lowest_come_first(tmp_path: Path) -> None:
    registry = Counting(tmp_path)
    known = registry.register("a", EVENT).schema.id
    flood = range(1_000, 1_000 + 5 * ASKED_AT_A_TIME)
    schemas = Schemas(registry, max_unknown=10)
    compiled, refused = schemas.resolve([*flood, known])
    assert list(compiled) == [known]
    assert len(registry.asked) <= ASKED_AT_A_TIME
    assert {reason for reason, _ in refused.values()} == {Reason.UNKNOWN_SCHEMA_ID, Reason.TOO_MANY_SCHEMA_IDS}
    assert refused.keys() == {*flood}
    unbounded = Schemas(registry, max_unknown=10).resolve(flood, every=True)[1]
    assert {reason for reason, _ in unbounded.values()} == {Reason.UNKNOWN_SCHEMA_ID}


def test_ids_that_rest_leave_room_for_others(tmp_path: Path) -> None:
    registry, clock = Counting(tmp_path), Clock()
    schemas = Schemas(registry, max_unknown=ASKED_AT_A_TIME, clock=clock)
    registry.register("a", EVENT)
    low, high = range(100, 100 + ASKED_AT_A_TIME), range(900, 900 + ASKED_AT_A_TIME)
    for _ in range(2):
        schemas.resolve([*low, *high])
    assert set(registry.asked) == {*low}
    schemas.resolve([*low, *high])
    assert set(registry.asked) == {*low, *high}


def test_one_of_many_ids_that_are_asked_for_in_vain_rests_ever_longer_but_at_most_a_minute(tmp_path: Path) -> None:
    registry, clock = Counting(tmp_path), Clock()
    schemas = Schemas(registry, clock=clock)
    registry.register("a", EVENT)
    many = range(2, 3 + FEW)
    times = []
    for _ in range(1_000):
        before = registry.asked.count(2)
        assert schemas.resolve(many)[1][2][0] == Reason.UNKNOWN_SCHEMA_ID
        times += [clock.now] if registry.asked.count(2) > before else []
        clock.now += 1
    rests = [after - at for at, after in pairwise(times)]
    assert rests[:6] == [1, 10, 20, 40, 60, 60]
    assert max(rests) == 60
    registry.register("b", EVENT.replace("user", "name"))
    clock.now += 60
    assert list(schemas.resolve(many)[0]) == [2]


def test_a_few_ids_come_in_with_the_first_batch_after_their_registration(tmp_path: Path) -> None:
    registry, clock = Counting(tmp_path), Clock()
    schemas = Schemas(registry, clock=clock)
    registry.register("a", EVENT)
    for _ in range(5):
        assert schemas.resolve(range(2, 2 + FEW))[0] == {}
    registry.register("b", EVENT.replace("user", "name"))
    assert list(schemas.resolve(range(2, 2 + FEW))[0]) == [2]
