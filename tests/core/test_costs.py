"""What a recipe took is kept by its name, if something was done for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.kept_events import Events

from hatch_lower.cache.recipes import cost_key, put_cost, read_cost
from hatch_lower.cache.store import Store
from hatch_lower.driver.worker import StageSeconds, keep_costs
from hatch_lower.events import Event
from hatch_lower.format.manifest import ModelEntry
from hatch_lower.format.record import ModelReport
from hatch_lower.format.results import MethodRow


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path, "on", pytest.fail)


def row(recipe: str, level: int, partitions: int = 1) -> MethodRow:
    return MethodRow(
        model="net",
        recipe=recipe,
        method="forward",
        nodes=3,
        delegated=2,
        partitions=partitions,
        bytes=10,
        seconds=0.5,
        reused=partitions if level else 0,
        level=level,
    )


def keep(store: Store, *rows: MethodRow) -> dict[str, float | None]:
    """Keep the costs of a model whose export took 2 s, its recipe `a` 3 s, and `b` 5 s."""
    timed = StageSeconds(Events())
    for stage, recipe, seconds in [("export", "", 2.0), ("lower", "a", 1.0), ("verify", "a", 2.0), ("lower", "b", 5.0)]:
        timed.report(Event(stage, "start", "net", recipe))
        timed.report(Event(stage, "going", "net", recipe, seconds=100.0))
        timed.report(Event(stage, "end", "net", recipe, seconds=seconds))
    keep_costs(store, "net", ModelReport("net", ModelEntry((), None, None, {}), (), rows), timed)
    return {name: read_cost(store, "net", f"net/{name}") for name in ("a", "b")}


def test_a_recipe_costs_its_own_stages_and_those_that_serve_all(store: Store) -> None:
    assert keep(store, row("a", 0), row("b", 0)) == {"a": 5.0, "b": 7.0}


def test_what_was_not_lowered_has_no_cost(store: Store) -> None:
    assert keep(store, row("a", 1), row("b", 2)) == {"a": None, "b": None}


def test_joining_what_was_lowered_before_does_not_lower_the_estimate(store: Store) -> None:
    put_cost(store, "net", "net/a", 60.0)
    assert keep(store, row("a", 3), row("b", 3)) == {"a": 60.0, "b": 7.0}
    assert keep(store, row("a", 3), row("a", 0)) == {"a": 5.0, "b": 7.0}, "one method was lowered"


def test_what_has_nothing_to_lower_may_have_been_joined_too(store: Store) -> None:
    put_cost(store, "net", "net/a", 60.0)
    put_cost(store, "net", "net/b", 1.0)
    assert keep(store, row("a", 0, partitions=0), row("b", 0, partitions=0)) == {"a": 60.0, "b": 7.0}


@pytest.mark.parametrize(
    "value", [None, {}, [], {"seconds": "9"}, {"seconds": -1}, {"seconds": 1e400}, {"seconds": True}]
)
def test_a_cost_that_nobody_can_have_written_is_none(
    store: Store, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Store, "find", lambda self, key: value if key == cost_key("net", "net/a") else None)
    assert read_cost(store, "net", "net/a") is None


def test_projects_with_models_of_one_name_have_costs_of_their_own(store: Store) -> None:
    put_cost(store, "net", "net/a", 1.0)
    put_cost(store, "other", "net/a", 2.0)
    assert (read_cost(store, "net", "net/a"), read_cost(store, "other", "net/a")) == (1.0, 2.0)
