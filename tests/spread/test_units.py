"""Which units a build has, which of them a machine makes, and what is said where there is no such unit."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

from hatch_lower.driver.units import Unit, divide_units, read_shard, select_units, shard_of
from hatch_lower.errors import ConfigError


def unit(name: str, seconds: float | None = None) -> Unit:
    model, _, recipe = name.partition("/")
    return Unit(model, recipe, name, False, seconds)


NAMES = ["digits/default", "digits/portable", "faces/default", "faces/fast", "words/default"]
UNITS = [*map(unit, reversed(NAMES)), unit("digits"), unit("faces"), unit("words")]


def names_of(units: Sequence[Unit]) -> list[str]:
    return [each.name for each in units]


def test_a_name_stands_for_a_recipe_or_for_all_of_a_model() -> None:
    assert names_of(select_units(UNITS, ())) == NAMES
    assert names_of(select_units(UNITS, ["words", "faces/fast", "faces/fast"])) == ["faces/fast", "words/default"]
    assert names_of(select_units(UNITS, ["digits/portable", "digits"])) == ["digits/default", "digits/portable"]


@pytest.mark.parametrize(
    ("name", "what", "found"),
    [
        ("digit", "the project has no such model", "did you mean `digits`?"),
        ("digit/default", "the project has no such model", "did you mean `digits`?"),
        ("faces/fats", "the model `faces` has no such recipe", "did you mean `faces/fast`?"),
        ("faces/", "the model `faces` has no such recipe", "did you mean"),
    ],
)
def test_a_name_of_nothing_is_refused_with_the_nearest_one(name: str, what: str, found: str) -> None:
    with pytest.raises(ConfigError, match=what) as caught:
        select_units(UNITS, [name])
    assert caught.value.where == f"`{name}`"
    assert found in caught.value.found


@pytest.mark.parametrize("count", range(1, 8))
def test_shards_are_all_units_once_in_whatever_order_a_machine_knows_them(count: int) -> None:
    units = select_units(UNITS, ())
    shards = [shard_of(units, number, count) for number in range(1, count + 1)]
    assert sorted(names_of([each for shard in shards for each in shard])) == NAMES
    assert max(map(len, shards)) - min(map(len, shards)) <= 1
    assert shards == [shard_of(units[::-1], number, count) for number in range(1, count + 1)]


def test_a_shard_is_a_number_of_how_many() -> None:
    assert read_shard("3/8") == (3, 8)


@pytest.mark.parametrize("text", ["0/3", "4/3", "x", "", "1/0", "1", "-1/3", "1/3/3", "\u0661/\u0663", "1/99999999"])
def test_what_is_no_shard_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="there is no such shard") as caught:
        read_shard(text)
    assert (caught.value.where, caught.value.found) == ("`--shard`", f"`{text}`")
    assert "`1/3`, `2/3` and `3/3`" in caught.value.hint


def test_parts_take_about_as_long_each() -> None:
    units = [unit(f"m/{number}", float(seconds)) for number, seconds in enumerate([9, 1, 1, 1, 5, 4, 3, 3, 2, 1])]
    parts = divide_units(units, 3)
    assert sorted(names_of(list(itertools.chain(*parts)))) == sorted(names_of(units))
    assert [sum(each.seconds or 0 for each in part) for part in parts] == [10, 10, 10]
    assert divide_units(units[::-1], 3) == parts


def test_a_unit_of_which_nothing_is_known_takes_as_long_as_others() -> None:
    parts = divide_units([unit("m/a", 10), unit("m/b"), unit("m/c", 20), unit("m/d")], 2)
    assert [names_of(part) for part in parts] == [["m/a", "m/c"], ["m/b", "m/d"]]
    assert [len(part) for part in divide_units([unit(name) for name in NAMES], 2)] == [3, 2]


def test_no_part_is_empty() -> None:
    assert [names_of(part) for part in divide_units([unit("m/a"), unit("m/b")], 5)] == [["m/a"], ["m/b"]]
    assert divide_units([], 5) == []
