from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import pytest

from hatch_lower.cli.measure.figures import METRICS, FigureSubject
from hatch_lower.cli.measure.limits import (
    LIMITS,
    Limit,
    LimitNames,
    check_names,
    dimensions_of,
    growth_limit,
    limits_for,
    ways,
)
from hatch_lower.config.reader import read_toml_table
from hatch_lower.config.tables import BenchTable, toml_key
from hatch_lower.errors import ConfigError
from hatch_lower.format.arguments import LiteralInput, Symbol, SymbolInput, TensorInput
from hatch_lower.format.expression import Compound
from hatch_lower.format.graph import Graph
from hatch_lower.format.plan import MethodPlan
from hatch_lower.format.tree import Leaf

FORWARD = FigureSubject("digits", "default", "forward")
LOAD = FigureSubject("digits", "default")
WHEEL = FigureSubject()


def table(**settings: Any) -> BenchTable:
    problems: list[str] = []
    read = read_toml_table(BenchTable, {toml_key(name): value for name, value in settings.items()}, "bench", problems)
    assert problems == []
    return read


def limit(bench: BenchTable, subject: FigureSubject, name: str) -> tuple[float | str, str] | None:
    found = {each.name: (each.value, each.setting) for each in limits_for(bench, subject)}
    return found.get(name)


def test_every_limit_of_the_tables_judges_metrics() -> None:
    others = {"sizes", "threads", "budget", "recipes", "models"}
    assert {toml_key(each.name) for each in fields(BenchTable)} - others == set(LIMITS)
    assert {metric for judged in LIMITS.values() for metric in judged.metrics} <= set(METRICS)


def test_without_settings_there_are_defaults_against_b_and_for_what_differs_in_kind() -> None:
    limits = limits_for(BenchTable(), WHEEL)
    assert {each.name: each.value for each in limits} == {
        "max-call-ratio": 1.05,
        "max-load-ratio": 1.1,
        "max-memory-ratio": 1.1,
        "max-instructions-ratio": 1.02,
        "max-wheel-growth": "5%",
        "max-delegated-loss": 0.05,
        "max-error": 1e300,
    }
    assert {each.setting for each in limits} == {"default"}
    assert [each.metric for each in limits if each.name == "max-instructions-ratio"] == [
        "call-instructions",
        "load-instructions",
    ]


def test_the_more_specific_table_decides_and_is_named() -> None:
    levels: list[dict[str, Any]] = [
        {"max_call_ratio": 1.1},
        {"recipes": {"default": {"max-call-ratio": 1.2}}},
        {"models": {"digits": {"max-call-ratio": 1.3}}},
        {"models": {"digits": {"recipes": {"default": {"max-call-ratio": 1.4}}}}},
        {"models": {"digits": {"methods": {"forward": {"max-call-ratio": 1.5}}}}},
    ]
    settings: dict[str, Any] = {}
    found = []
    for level in levels:
        for key, value in level.items():
            settings[key] = merged(settings.get(key, {}), value) if isinstance(value, dict) else value
        found.append(limit(table(**settings), FORWARD, "max-call-ratio"))
    assert found == [
        (1.1, "bench.max-call-ratio"),
        (1.2, "bench.recipes.default.max-call-ratio"),
        (1.3, "bench.models.digits.max-call-ratio"),
        (1.4, "bench.models.digits.recipes.default.max-call-ratio"),
        (1.5, "bench.models.digits.methods.forward.max-call-ratio"),
    ]


def merged(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    both = {key: merged(first[key], second[key]) for key in first.keys() & second.keys()}
    return {**first, **second, **both}


def test_tables_of_other_subjects_do_not_speak() -> None:
    bench = table(
        max_kernels=9,
        recipes={"portable": {"max-kernels": 1}},
        models={
            "letters": {"max-kernels": 2},
            "digits": {"recipes": {"portable": {"max-kernels": 3}}, "methods": {"embed": {"max-kernels": 4}}},
        },
    )
    assert limit(bench, FORWARD, "max-kernels") == (9, "bench.max-kernels")
    assert limit(bench, FigureSubject("digits", "portable", "forward"), "max-kernels") == (
        3,
        "bench.models.digits.recipes.portable.max-kernels",
    )
    assert limit(bench, FigureSubject("digits", "portable", "embed"), "max-kernels") == (
        4,
        "bench.models.digits.methods.embed.max-kernels",
    )
    assert limit(bench, FigureSubject("new", "portable", "embed"), "max-kernels") == (
        1,
        "bench.recipes.portable.max-kernels",
    )


def test_a_limit_of_0_is_a_limit() -> None:
    bench = table(max_error=1.0, models={"digits": {"max-error": 0}})
    assert limit(bench, FORWARD, "max-error") == (0.0, "bench.models.digits.max-error")


def test_a_table_of_a_method_says_nothing_about_loads() -> None:
    methods = {"forward": {"max-instructions-ratio": 2}}
    bench = table(max_load_ratio=1.3, models={"digits": {"methods": methods}})
    assert limit(bench, LOAD, "max-instructions-ratio") == (1.02, "default")
    assert limit(bench, FORWARD, "max-load-ratio") == (1.3, "bench.max-load-ratio")
    problems: list[str] = []
    read_toml_table(
        BenchTable, {"models": {"digits": {"methods": {"forward": {"max-load-ratio": 1}}}}}, "bench", problems
    )
    (problem,) = problems
    assert problem.startswith("`bench.models.digits.methods.forward.max-load-ratio` is not a setting")


def test_names_are_quoted_as_toml_does() -> None:
    bench = table(models={"digits.v2": {"max-kernels": 3}})
    assert limit(bench, FigureSubject("digits.v2"), "max-kernels") == (3, 'bench.models."digits.v2".max-kernels')


@pytest.mark.parametrize(
    ("name", "value", "figure", "other", "judged", "bound", "kept"),
    [
        ("max-call-ratio", 1.05, 2.1, 2.0, 1.05, 1.05, True),
        ("max-call-ratio", 1.05, 2.2, 2.0, 1.1, 1.05, False),
        ("max-instructions-ratio", 1.02, 1020, 1000, 1.02, 1.02, True),
        ("max-memory-ratio", 1.1, 0, 0, 1.0, 1.1, True),
        ("max-memory-ratio", 1.1, 1, 0, math.inf, 1.1, False),
        ("max-delegated-loss", 0.05, 0.95, 1.0, 0.05, 0.05, True),
        ("max-delegated-loss", 0.05, 0.9, 1.0, 0.1, 0.05, False),
        ("max-delegated-loss", 0, 1.0, 0.5, -0.5, 0, True),
        ("min-delegated", 0.95, 0.95, None, 0.95, 0.95, True),
        ("min-delegated", 0.95, 0.94, None, 0.94, 0.95, False),
        ("max-kernels", 3, 4, None, 4, 3, False),
        ("max-kernels", 3, 3, 1, 3, 3, True),
        ("max-wheel-growth", "5%", 1050, 1000, 1050, 1050, True),
        ("max-wheel-growth", "5%", 1051, 1000, 1051, 1050, False),
    ],
)
def test_a_limit_says_what_is_compared_and_whether_it_is_kept(
    name: str, value: float | str, figure: float, other: float | None, judged: float, bound: float, kept: bool
) -> None:
    about = LIMITS[name]
    subject = Limit(name, about.metrics[0], about.kind, value, "default")
    assert (subject.judged(figure, other), subject.bound(other)) == (judged, bound)
    assert subject.is_kept(judged, bound) == kept


@pytest.mark.parametrize("name", ["max-call-ratio", "max-delegated-loss", "max-wheel-growth"])
def test_nothing_is_judged_where_there_is_nothing_to_compare_with(name: str) -> None:
    about = LIMITS[name]
    assert Limit(name, about.metrics[0], about.kind, "5%", "default").judged(1.0, None) is None
    assert Limit(name, about.metrics[0], about.kind, "5%", "default").bound(None) is None


@pytest.mark.parametrize(
    ("text", "most"),
    [
        ("5%", 1050),
        ("0%", 1000),
        ("0.1%", 1001),
        ("0.19%", 1001),
        ("0 B", 1000),
        ("7B", 1007),
        ("2 kB", 3000),
        ("1.5 MB", 1_501_000),
        ("1GB", 1_000_001_000),
        ("2 KiB", 3048),
        ("0.5MiB", 525_288),
        ("1 GiB", 1_073_742_824),
    ],
)
def test_growth_is_a_share_or_a_size(text: str, most: int) -> None:
    assert table(max_wheel_growth=text).max_wheel_growth == text
    assert growth_limit(text, 1000) == most


def test_a_share_of_large_wheels_is_exact() -> None:
    assert growth_limit("0.1%", 3 * 10**17) == 3003 * 10**14


@pytest.mark.parametrize(
    "text", ["5", "5 %", "-5%", ".5%", "5 kb", "5 KB", "5  kB", "1,5 MB", "1e3 B", "5%\n", "\u0665%"]
)
def test_any_other_growth_is_refused(text: str) -> None:
    problems: list[str] = []
    read_toml_table(BenchTable, {"max-wheel-growth": text}, "bench", problems)
    (problem,) = problems
    assert problem.startswith(
        "`bench.max-wheel-growth` must be a share such as `5%`, or a size such as `200 kB` or `1.5 MiB`, found the "
    )


def test_without_settings_a_method_is_called_with_its_example_inputs_by_one_thread() -> None:
    assert ways(BenchTable(), FORWARD, ["batch"]) == [({}, 1)]
    assert ways(table(sizes=[], threads=[]), FORWARD, ["batch"]) == [({}, 1)]


def test_a_method_is_called_with_the_dimensions_that_it_has() -> None:
    bench = table(sizes=[{"tokens": 8, "batch": 1}, {"batch": 1}, {"tokens": 9}, {"batch": 32}])
    assert ways(bench, FORWARD, ["batch"]) == [({"batch": 1}, 1), ({"batch": 32}, 1)]
    assert ways(bench, FORWARD, ["tokens", "batch"]) == [
        ({"batch": 1, "tokens": 8}, 1),
        ({"batch": 1}, 1),
        ({"tokens": 9}, 1),
        ({"batch": 32}, 1),
    ]
    assert list(ways(bench, FORWARD, ["tokens", "batch"])[0][0]) == ["batch", "tokens"]
    assert ways(bench, FORWARD, []) == [({}, 1)]


def test_an_empty_size_is_that_of_the_example_inputs() -> None:
    assert ways(table(sizes=[{}, {"batch": 2}]), FORWARD, ["batch"]) == [({}, 1), ({"batch": 2}, 1)]


def test_each_size_is_called_with_each_number_of_threads() -> None:
    bench = table(sizes=[{"batch": 1}, {"batch": 2}], threads=[2, 1, 2])
    assert ways(bench, FORWARD, ["batch"]) == [
        ({"batch": 1}, 2),
        ({"batch": 1}, 1),
        ({"batch": 2}, 2),
        ({"batch": 2}, 1),
    ]


def test_a_method_may_be_called_in_its_own_ways() -> None:
    bench = table(sizes=[{"batch": 1}], models={"digits": {"methods": {"forward": {"sizes": [], "threads": [4]}}}})
    assert ways(bench, FORWARD, ["batch"]) == [({}, 4)]
    assert ways(bench, FigureSubject("digits", "default", "embed"), ["batch"]) == [({"batch": 1}, 1)]


BATCH, TOKENS, ROWS = Symbol(1, 64, "batch"), Symbol(2, 128, "tokens"), Symbol(3, None, "rows")
MODELS = {
    "digits": LimitNames(["default", "portable"], {"forward": [BATCH], "embed": []}),
    "bert": LimitNames(["default"], {"encode": [BATCH, TOKENS], "pool": [ROWS]}),
}


def problems(**settings: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        check_names(table(**settings), MODELS, "lower")
    return caught.value.found.split("\n")


def test_limits_of_what_exists_are_accepted() -> None:
    bench = table(
        sizes=[{"batch": 1, "tokens": 128}, {"rows": 10**6}, {}],
        recipes={"portable": {"max-kernels": 1, "sizes": [{"batch": 64}]}},
        models={
            "digits": {"recipes": {"portable": {"sizes": [{"batch": 2}]}}, "methods": {"forward": {"threads": [2]}}},
            "bert": {"sizes": [{"rows": 3}], "methods": {"encode": {"sizes": [{"tokens": 2}]}}},
        },
    )
    check_names(bench, MODELS, "lower")
    check_names(BenchTable(), {}, "lower")


def test_every_name_that_does_not_exist_is_in_one_error() -> None:
    bench = table(
        recipes={"portabel": {}},
        models={
            "digit": {"methods": {"anything": {}}, "sizes": [{"batc": 1}]},
            "digits": {"recipes": {"defalt": {}}, "methods": {"forwrad": {"sizes": [{"batc": 1}]}}},
            "bert": {"recipes": {"portable": {}}},
        },
    )
    with pytest.raises(ConfigError) as caught:
        check_names(bench, MODELS, "lower")
    assert str(caught.value) == (
        "5 settings of `hatch-lower bench` do not fit the models\n"
        "  found: `lower.bench.recipes.portabel` is not the name of a recipe; "
        "did you mean `portable`? known: `default`, `portable`\n"
        "    `lower.bench.models.digit` is not the name of a model; did you mean `digits`? known: `bert`, `digits`\n"
        "    `lower.bench.models.bert.recipes.portable` is not the name of a recipe of the model; known: `default`\n"
        "    `lower.bench.models.digits.recipes.defalt` is not the name of a recipe of the model; "
        "did you mean `default`? known: `default`, `portable`\n"
        "    `lower.bench.models.digits.methods.forwrad` is not the name of a method of the model; "
        "did you mean `forward`? known: `embed`, `forward`\n"
        "  to do: correct pyproject.toml (or hatch.toml); `hatch-lower inspect` shows models, methods and their sizes"
    )


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"sizes": [{}, {"bath": 1}]},
            "`lower.bench.sizes[1].bath` is not the name of a dynamic dimension; "
            "did you mean `batch`? known: `batch`, `rows`, `tokens`",
        ),
        (
            {"recipes": {"portable": {"sizes": [{"tokens": 8}]}}},
            "`lower.bench.recipes.portable.sizes[0].tokens` is not the name of a dynamic dimension; known: `batch`",
        ),
        (
            {"models": {"digits": {"sizes": [{"tokens": 8}]}}},
            "`lower.bench.models.digits.sizes[0].tokens` is not the name of a dynamic dimension; known: `batch`",
        ),
        (
            {"models": {"digits": {"recipes": {"portable": {"sizes": [{"tokens": 8}]}}}}},
            "`lower.bench.models.digits.recipes.portable.sizes[0].tokens` is not the name of a dynamic dimension; "
            "known: `batch`",
        ),
        (
            {"models": {"digits": {"methods": {"embed": {"sizes": [{"batch": 8}]}}}}},
            "`lower.bench.models.digits.methods.embed.sizes[0].batch` is not the name of a dynamic dimension; "
            "known: none",
        ),
        (
            {"sizes": [{"tokens": 128}, {"tokens": 129}]},
            "`lower.bench.sizes[1].tokens` must be at least 2 and at most 128 for `bert/encode`, found 129",
        ),
        (
            {"models": {"bert": {"sizes": [{"rows": 2}]}}},
            "`lower.bench.models.bert.sizes[0].rows` must be at least 3 for `bert/pool`, found 2",
        ),
    ],
)
def test_a_size_is_one_that_a_method_takes(settings: dict[str, Any], sentence: str) -> None:
    assert problems(**settings) == [sentence]


def test_a_size_out_of_range_is_told_once_for_all_recipes() -> None:
    assert problems(sizes=[{"batch": 65}]) == [
        f"`lower.bench.sizes[0].batch` must be at least 1 and at most 64 for `{method}`, found 65"
        for method in ("digits/forward", "bert/encode")
    ]


def test_dimensions_are_the_symbols_of_inputs() -> None:
    row = TensorInput("float32", ("s0", 4), ("u0", 1))
    twice = TensorInput("float32", (Compound("mul", (2, "s1")),), (1,))
    symbols = {"s1": TOKENS, "s0": BATCH, "s2": ROWS, "u0": Symbol(0, None, "u0")}
    inputs = (row, twice, LiteralInput(2), SymbolInput("s2"))
    method = MethodPlan((), inputs, symbols, Graph((), (), ()), (), (), Leaf())
    assert dimensions_of(method) == (BATCH, TOKENS, ROWS)


def test_a_size_that_another_table_replaces_is_not_out_of_range() -> None:
    check_names(table(sizes=[{"tokens": 500}], models={"bert": {"sizes": [{"tokens": 9}]}}), MODELS, "lower")


def test_one_problem_is_singular() -> None:
    with pytest.raises(ConfigError, match=r"^a setting of `hatch-lower bench` does not fit the models\n"):
        check_names(table(models={"digit": {}}), MODELS, "lower")
