"""The limits of `hatch-lower bench`, and the verdicts on figures and limits (better, same, worse, not decided) as
rows, and their text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import fields
from fractions import Fraction
from typing import Any, Literal, TypeAlias

from hatch_lower.cli.measure.figures import FEWEST, METRICS, FigureSubject, Interval, interval_of
from hatch_lower.cli.measure.timed import MetricRounds, has_enough
from hatch_lower.config.settings import unknown_limits, unknown_tables
from hatch_lower.config.tables import BenchTable, MethodLimits, ModelLimits, quote_key, toml_key
from hatch_lower.errors import ConfigError, nearest, size_text
from hatch_lower.format.arguments import Symbol, TensorInput, expressions_in
from hatch_lower.format.expression import symbols_in
from hatch_lower.format.plan import MethodPlan
from hatch_lower.frozen import Frozen

Kind: TypeAlias = Literal["ratio to B", "loss against B", "growth against B", "greatest", "least"]
Tables: TypeAlias = Sequence[tuple[str, MethodLimits]]  # the most specific table first, each with its dotted name

SIZE_UNITS = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


class Judged(Frozen):
    """The metrics of A that a limit judges, and the kind of comparison."""

    kind: Kind
    metrics: tuple[str, ...]


LIMITS: Mapping[str, Judged] = {
    "max-call-ratio": Judged("ratio to B", ("call-seconds",)),
    "max-load-ratio": Judged("ratio to B", ("load-seconds",)),
    "max-memory-ratio": Judged("ratio to B", ("memory-bytes",)),
    "max-instructions-ratio": Judged("ratio to B", ("call-instructions", "load-instructions")),
    "max-wheel-growth": Judged("growth against B", ("wheel-bytes",)),
    "max-delegated-loss": Judged("loss against B", ("delegated",)),
    "min-delegated": Judged("least", ("delegated",)),
    "max-kernels": Judged("greatest", ("kernels",)),
    "max-error": Judged("greatest", ("error",)),
}


class Limit(Frozen):
    """A limit of a metric for a subject."""

    name: str  # `max-call-ratio`
    metric: str
    kind: Kind
    value: float | str  # text for a growth: see `growth_limit`
    setting: str  # `bench.models.digits.max-call-ratio`, or `default`

    def bound(self, other: float | None) -> float | None:
        """Return the bound for `judged`; `other` is the figure of B."""
        if not isinstance(self.value, str):
            return self.value
        return None if other is None else growth_limit(self.value, int(other))

    def judged(self, figure: float, other: float | None) -> float | None:
        """Return the number that the limit bounds; `None` without a figure to compare."""
        if self.kind in ("greatest", "least"):
            return figure
        if other is None:
            return None
        if self.kind == "growth against B":
            return figure
        if self.kind == "loss against B":
            return round(other - figure, 9)  # 1 - 0.95 is more than 0.05
        if other == 0:
            return math.inf if figure > 0 else 1.0
        return figure / other

    def is_kept(self, judged: float, bound: float) -> bool:
        return judged >= bound if self.kind == "least" else judged <= bound


class LimitNames(Frozen):
    """The names that limits of a model may use."""

    recipes: Collection[str]
    methods: Mapping[str, Collection[Symbol]]  # with their `dimensions_of`


def limits_for(table: BenchTable, subject: FigureSubject) -> tuple[Limit, ...]:
    """Return the configured limits of a subject, and the defaults."""
    tables = tables_for(table, subject)
    return tuple(
        Limit(name, metric, judged.kind, value, setting)
        for name, judged in LIMITS.items()
        for value, setting in [resolve(tables, name)]
        if value is not None
        for metric in judged.metrics
    )


def ways(table: BenchTable, subject: FigureSubject, dimensions: Collection[str]) -> list[tuple[dict[str, int], int]]:
    """Return sizes and numbers of threads for the calls of a method; no sizes: the sizes of the example inputs."""
    tables = tables_for(table, subject)
    sizes, _ = resolve(tables, "sizes")
    threads, _ = resolve(tables, "threads")
    kept: list[dict[str, int]] = []
    for entry in sizes or ():
        size = {name: entry[name] for name in sorted(entry.keys() & set(dimensions))}
        if (size or not entry) and size not in kept:
            kept.append(size)
    return [(size, count) for size in kept or [{}] for count in dict.fromkeys(threads or (1,))]


def tables_for(table: BenchTable, subject: FigureSubject) -> Tables:
    model = table.models.get(subject.model, ModelLimits())
    of_model = f"bench.models.{quote_key(subject.model)}"
    found = [
        (f"{of_model}.methods.{quote_key(subject.method)}", model.methods.get(subject.method)),
        (f"{of_model}.recipes.{quote_key(subject.recipe)}", model.recipes.get(subject.recipe)),
        (of_model, model),
        (f"bench.recipes.{quote_key(subject.recipe)}", table.recipes.get(subject.recipe)),
        ("bench", table),
    ]
    return [(name, each) for name, each in found if each is not None]


def resolve(tables: Tables, key: str) -> tuple[Any, str]:
    """Return a setting's value, and its dotted name or `default`."""
    (setting,) = (each for each in fields(BenchTable) if toml_key(each.name) == key)
    for name, table in tables:
        # the table of a method has no limits of recipes, and only the whole wheel's has all
        value = getattr(table, setting.name, None)
        if value is not None:
            return value, f"{name}.{key}"
    return setting.metadata.get("default"), "default"


def growth_limit(text: str, bytes_of_b: int) -> int:
    """Return the largest number of bytes of A for a limit such as `5%` or `200 kB`."""
    number, unit = re.findall(r"[0-9.]+|[A-Za-z%]+", text)
    added = Fraction(number) * (Fraction(bytes_of_b, 100) if unit == "%" else SIZE_UNITS[unit])
    return bytes_of_b + math.floor(added)


def dimensions_of(method: MethodPlan) -> tuple[Symbol, ...]:
    """Return the symbols of the input sizes of a method; other symbols are known at run time only."""
    sizes = [entry.shape if isinstance(entry, TensorInput) else expressions_in(entry) for entry in method.inputs]
    used = {key for shape in sizes for size in shape for key in symbols_in(size)}
    return tuple(method.symbols[key] for key in sorted(used))


def check_names(table: BenchTable, models: Mapping[str, LimitNames], path: str) -> None:
    """Refuse tables of models, recipes and methods that do not exist, and sizes that no method takes.

    `path` is the dotted name of the hook's table, for a message that lists all errors.
    """
    recipes = {recipe for names in models.values() for recipe in names.recipes}
    problems = list(unknown_limits(table, path, recipes, {name: each.recipes for name, each in models.items()}))
    for name, model in table.models.items():
        if name in models:
            here = f"{path}.bench.models.{quote_key(name)}.methods"
            problems += unknown_tables(model.methods, models[name].methods, here, "method of the model")
    problems += unknown_dimensions(table, models, path)
    problems += dict.fromkeys(sizes_out_of_range(table, models, path))
    if problems:
        count = "a setting" if len(problems) == 1 else f"{len(problems)} settings"
        raise ConfigError(
            f"{count} of `hatch-lower bench` {'does' if len(problems) == 1 else 'do'} not fit the models",
            found="\n".join(problems),
            hint="correct pyproject.toml (or hatch.toml); `hatch-lower inspect` shows models, methods and their sizes",
        )


def unknown_dimensions(table: BenchTable, models: Mapping[str, LimitNames], path: str) -> Iterator[str]:
    for here, each, methods in tables_with_methods(table, models):
        known = {symbol.name for symbols in methods for symbol in symbols}
        for i, size in enumerate(each.sizes or ()):
            for name in size:
                if name not in known:
                    where = f"{path}.{here}.sizes[{i}].{quote_key(name)}"
                    yield f"`{where}` is not the name of a dynamic dimension; {nearest(name, known)}"


def tables_with_methods(
    table: BenchTable, models: Mapping[str, LimitNames]
) -> Iterator[tuple[str, MethodLimits, list[Collection[Symbol]]]]:
    """Yield each table with its dotted name and the dynamic dimensions of its methods."""
    yield "bench", table, [symbols for each in models.values() for symbols in each.methods.values()]
    for recipe, limits in table.recipes.items():
        lowered = [each for each in models.values() if recipe in each.recipes]
        yield f"bench.recipes.{quote_key(recipe)}", limits, [s for each in lowered for s in each.methods.values()]
    for name, model in table.models.items():
        if name not in models:
            continue
        here, methods = f"bench.models.{quote_key(name)}", models[name].methods
        yield here, model, list(methods.values())
        for recipe, limits in model.recipes.items():
            yield f"{here}.recipes.{quote_key(recipe)}", limits, list(methods.values())
        for method, calls in model.methods.items():
            if method in methods:
                yield f"{here}.methods.{quote_key(method)}", calls, [methods[method]]


def sizes_out_of_range(table: BenchTable, models: Mapping[str, LimitNames], path: str) -> Iterator[str]:
    for name, model in models.items():
        for method, symbols in model.methods.items():
            for recipe in model.recipes:
                sizes, setting = resolve(tables_for(table, FigureSubject(name, recipe, method)), "sizes")
                for i, size in enumerate(sizes or ()):
                    for symbol in symbols:
                        value = size.get(symbol.name, symbol.min)
                        if value < symbol.min or (symbol.max is not None and value > symbol.max):
                            where = f"{path}.{setting}[{i}].{quote_key(symbol.name)}"
                            most = "" if symbol.max is None else f" and at most {symbol.max}"
                            yield f"`{where}` must be at least {symbol.min}{most} for `{name}/{method}`, found {value}"


SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))

Outcome: TypeAlias = Literal["better", "same", "worse", "not decided", ""]


class Breach(Frozen):
    """A limit that is broken or not decided."""

    limit: Limit
    bound: float  # the allowed value
    found: Interval
    is_certain: bool


class VerdictRow(Frozen):
    subject: FigureSubject
    metric: str
    first: float
    second: float | None
    eager: float | None
    ratio: Interval | None  # of A to B
    eager_ratio: Interval | None  # of A to eager
    outcome: Outcome  # empty without a comparison
    breaches: tuple[Breach, ...]
    judged: tuple[Limit, ...]  # the limits that were compared

    @property
    def is_broken(self) -> bool:
        return any(breach.is_certain for breach in self.breaches)

    @property
    def is_undecided(self) -> bool:
        return any(not breach.is_certain for breach in self.breaches)


def exact_row(
    subject: FigureSubject, metric: str, first: float, second: float | None, limits: Sequence[Limit]
) -> VerdictRow:
    breaches, used = [], []
    for limit in limits:
        bound, judged = limit.bound(second), limit.judged(first, second)
        if bound is None or judged is None:
            continue
        used.append(limit)
        if not limit.is_kept(judged, bound):
            breaches.append(Breach(limit, bound, certain(judged), is_certain=True))
    ratio = certain(first / second) if second else None
    outcome = exact_outcome(metric, first, second)
    return VerdictRow(subject, metric, first, second, None, ratio, None, outcome, tuple(breaches), tuple(used))


def certain(value: float) -> Interval:
    return Interval(value, value, value)


def exact_outcome(metric: str, first: float, second: float | None) -> Outcome:
    if second is None:
        return ""
    known = METRICS[metric]
    if first == second or 0 < max(first, second) <= min(first, second) * known.ratio:
        return "same"
    if known.better == "neither":
        return ""
    return "better" if (first < second) == (known.better == "less") else "worse"


def timed_row(subject: FigureSubject, metric: str, found: MetricRounds, limits: Sequence[Limit]) -> VerdictRow:
    means = {side: interval_of(values) for side, values in found.values.items()}
    ratio = interval_of(found.ratios) if found.ratios else None
    eager_ratio = interval_of(found.eager_ratios) if found.eager_ratios else None
    second, eager = (means[side].value if side in means else None for side in ("B", "eager"))
    first, breaches = means["A"].value, []
    outcome: Outcome = ""
    if ratio is None:  # all limits of times and of memory are ratios to B
        return VerdictRow(subject, metric, first, second, eager, ratio, eager_ratio, outcome, (), ())
    bounds = [bound_of(limit, metric, second) for limit in limits]
    for limit, bound in zip(limits, bounds, strict=True):
        if not has_enough(found) or ratio.low <= bound < ratio.high:
            breaches.append(Breach(limit, bound, ratio, is_certain=False))
        elif ratio.low > bound:
            breaches.append(Breach(limit, bound, ratio, is_certain=True))
    if limits or has_enough(found):
        undecided = any(not each.is_certain for each in breaches)
        outcome = "not decided" if undecided else timed_outcome(ratio, metric, bounds)
    return VerdictRow(
        subject, metric, first, second, eager, ratio, eager_ratio, outcome, tuple(breaches), tuple(limits)
    )


def bound_of(limit: Limit, metric: str, second: float | None) -> float:
    """Return the bound of a limit on time or memory; bounds on ratios from 1 allow negligible differences."""
    bound = limit.bound(None)
    assert bound is not None  # limits of times are numbers
    if limit.kind == "ratio to B" and bound >= 1 and second:
        return max(bound, 1 + METRICS[metric].difference / second)
    return bound


def timed_outcome(ratio: Interval, metric: str, bounds: Sequence[float]) -> Outcome:
    """Return the certain outcome of a ratio; between the limit and its inverse two sides are the same."""
    same = max([METRICS[metric].ratio] if not bounds or min(bounds) < 1 else bounds)
    if ratio.low > same:
        return "worse"
    if ratio.high < 1 / same or (ratio.low < 1 / same and ratio.high < 1):
        return "better"
    return "same" if ratio.high <= same else ""


def are_limits_settled(metric: str, found: MetricRounds, limits: Sequence[Limit]) -> bool:
    """Return whether every limit is certainly kept or broken, so that more pairs change nothing."""
    return not limits or (has_enough(found) and not timed_row(FigureSubject(), metric, found, limits).is_undecided)


def breach_text(row: VerdictRow, breach: Breach) -> str:
    """Return the sentence of a broken or undecided limit."""
    word = "beyond its limit" if breach.is_certain else "not decided"
    return f"{word}: {METRICS[row.metric].words} of {row.subject} is {found_text(row, breach)}"


def found_text(row: VerdictRow, breach: Breach) -> str:
    """Return `1.21 (1.18 to 1.24) times B's, where max-call-ratio = 1.05 (bench.models.digits)`."""
    found = breach.found
    is_open = math.isinf(found.high) and found.low < found.high
    match breach.limit.kind:
        case "ratio to B":
            text = f"{found.value:.3f}" if is_open else ratio_text(found)
            text += " times B's"
        case "loss against B":
            text = f"{100 * found.value:.4g} percentage points less than B's"
        case _:
            text = "infinite" if math.isinf(found.value) else figure_text(row.metric, found.value)
    setting = breach.limit.setting.removesuffix(f".{breach.limit.name}")
    if is_open:
        text += f", from {found.too_few} of {FEWEST} pairs: raise `--budget`"
    return f"{text}, where {limit_text(breach)} ({setting})"


def limit_text(breach: Breach) -> str:
    return f"{breach.limit.name} = {breach.limit.value}"


def figure_text(metric: str, value: float | None) -> str:
    if value is None:
        return ""
    if math.isinf(value):  # an error with a difference that is not finite
        return "differs"
    match METRICS[metric].unit:
        case "s":
            scale, unit = next(((scale, unit) for scale, unit in SECONDS if value >= scale), SECONDS[-1])
            return f"{value / scale:.3g} {unit}"
        case "B":
            return size_text(round(value))
    if metric == "delegated":
        return f"{100 * value:.4g} %"
    if metric == "metric":
        return f"{value:.6g}"
    return f"{round(value):,}" if value == round(value) else f"{value:.3g}"


def ratio_text(ratio: Interval) -> str:
    """Return `1.012 (0.998 to 1.027)`, or a certain value without the interval."""
    if ratio.low == ratio.high:
        return f"{ratio.value:.3f}"
    if math.isinf(ratio.high):
        return f"{ratio.value:.3f} ({ratio.too_few} of {FEWEST} pairs)"
    return f"{ratio.value:.3f} ({ratio.low:.3f} to {ratio.high:.3f})"
