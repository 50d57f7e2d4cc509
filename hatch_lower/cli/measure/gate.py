"""The whole measurement: exact figures first, then times of recipes that differ, then the rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import field
from functools import cache

from hatch_lower.cli.measure.apart import process_settings
from hatch_lower.cli.measure.command import Host, Tell
from hatch_lower.cli.measure.counted import count_instructions, find_counter
from hatch_lower.cli.measure.errors import measure_errors
from hatch_lower.cli.measure.exact import exact_figures
from hatch_lower.cli.measure.figures import METRICS, Figures, FigureSubject, Tier, interval_of
from hatch_lower.cli.measure.limits import (
    Limit,
    LimitNames,
    VerdictRow,
    are_limits_settled,
    check_names,
    dimensions_of,
    exact_row,
    limits_for,
    timed_row,
    ways,
)
from hatch_lower.cli.measure.side import BenchSide, comparable, have_other_inputs, run_digests
from hatch_lower.cli.measure.timed import (
    SHORTEST,
    Eager,
    Measured,
    MetricRounds,
    TimedWork,
    measure,
    measure_builds,
)
from hatch_lower.config.settings import HOOK_PATH
from hatch_lower.config.tables import BenchTable
from hatch_lower.format.plan import MethodPlan
from hatch_lower.frozen import Frozen

OWN = ("greatest", "least")  # kinds of limits that need no B
OF_INPUTS = ("error", "call-instructions")  # metrics that depend on the packaged check inputs
OTHER_INPUTS = "both sides are timed with those of A, and errors and instructions are not compared"


class Task(Frozen):
    first: BenchSide
    second: BenchSide | None = None
    table: BenchTable = field(default_factory=BenchTable)
    table_path: str = HOOK_PATH  # dotted, of the hook's table
    eager: Mapping[str, Eager] = field(default_factory=dict)  # model to its module, where the project is at hand
    imports: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # recipe to modules that its programs need
    budget: float | None = None  # seconds; 0: exact figures only; `None`: the table's budget
    builds: bool = False  # time builds of sides that have sources
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def sides(self) -> Mapping[str, BenchSide]:
        return {"A": self.first} | ({} if self.second is None else {"B": self.second})

    @property
    def seconds(self) -> float:
        return self.table.budget if self.budget is None else self.budget

    def limits(self, subject: FigureSubject, metric: str) -> list[Limit]:
        return [limit for limit in limits_for(self.table, subject) if limit.metric == metric]

    def is_settled(self, subject: FigureSubject, metric: str, found: MetricRounds) -> bool:
        return are_limits_settled(metric, found, self.limits(subject, metric))

    def is_equal(self, subject: FigureSubject) -> bool:
        return self.second is not None and run_digests(self.first, subject) == run_digests(self.second, subject)

    def measures(self, tier: Tier) -> bool:
        return tier == "exact" or self.seconds > 0


class Result(Frozen):
    rows: tuple[VerdictRow, ...]
    notes: tuple[str, ...]  # figures that were not measured or compared, and why
    figures: Mapping[str, Figures]  # side to its exact figures
    measured: Measured  # every value of the timed tier
    unjudged: tuple[str, ...] = ()  # configured limits without a figure, and refused recipes

    def figures_of(self, side: str) -> Figures:
        """Return all figures of a side; repeated measurements become a single number."""
        found = {subject: dict(each) for subject, each in self.figures[side].items()}
        for (subject, metric), each in self.measured.items():
            found.setdefault(subject, {})[metric] = interval_of(each.values[side]).value
        return found

    @property
    def is_broken(self) -> bool:
        return any(row.is_broken for row in self.rows)

    @property
    def is_undecided(self) -> bool:
        return bool(self.unjudged) or any(row.is_undecided for row in self.rows)


def measure_sides(task: Task, tell: Tell, announce: Tell = lambda line: None) -> Result:
    """Measure a side alone, or beside another side; `announce` receives the timed work and its limit at the start."""
    refused: list[str] = []
    methods, notes = comparable(task.first, task.second or task.first)
    plans = {subject: plan_of(task.first, subject) for subject in methods}
    check_names(task.table, limit_names(task.first), task.table_path)
    differing = [
        model for model in sorted({each.model for each in methods}) if have_other_inputs(task.sides.values(), model)
    ]
    notes += [f"the check inputs of {model} differ: {OTHER_INPUTS}" for model in differing]
    not_timed: list[str] = []
    works = list(works_of(task, plans, not_timed)) if task.measures("timed") else []
    for line in announced_lines(task, works):
        announce(line)
    tell("exact figures")
    figures = exact_tier(task, methods, notes)
    if task.measures("counted"):
        add_counts(task, methods, figures, notes, tell)
    rows = list(exact_rows(task, methods, figures, differing))
    measured: Measured = {}
    if task.measures("timed"):
        notes += not_timed
        with ExitStack() as stack:
            hosts = cache(lambda threads: stack.enter_context(Host(threads, task.environment)))
            measured = measure(works, hosts, task.seconds, task.is_settled, tell, notes.append, refused.append)
    if task.builds:
        measured |= time_builds(task, notes, tell)
    rows += [timed_row(*key, found, task.limits(*key)) for key, found in measured.items()]
    unjudged = [*refused, *unjudged_limits(task, methods, rows)]
    return Result(tuple(rows), tuple(dict.fromkeys(notes)), figures, measured, tuple(dict.fromkeys(unjudged)))


def announced_lines(task: Task, works: Sequence[TimedWork]) -> Iterator[str]:
    """Yield a line for the calls and loads that are timed, and for the builds."""
    limit = f"{task.seconds:g} s at most, unless the first measurements alone take longer"
    if works:
        yield f"timing {', '.join(dict.fromkeys(f'{work.model}/{work.recipe}' for work in works))}: {limit}"
    if task.builds and not sides_without_sources(task):
        yield f"timing builds of {' and '.join(task.sides)}: {limit}"


def sides_without_sources(task: Task) -> list[str]:
    return [name for name, side in task.sides.items() if side.source is None]


def exact_tier(task: Task, methods: Sequence[FigureSubject], notes: list[str]) -> dict[str, Figures]:
    found: dict[str, Figures] = {}
    errors: Figures = {}
    for name, side in task.sides.items():
        if name == "A" or not all(task.is_equal(subject) for subject in methods):
            measured = measure_errors(side.folders, side.title, max(task.seconds, SHORTEST), task.imports)
            errors = measured.figures
            reasons = measured.reasons.items()
            notes += [f"no largest error of {subject}, {name}: {reason}" for subject, reason in reasons]
        figures = exact_figures(side)
        found[name] = {subject: {**each, **errors.get(subject, {})} for subject, each in figures.items()}
    return found


def add_counts(
    task: Task, methods: Sequence[FigureSubject], figures: dict[str, Figures], notes: list[str], tell: Tell
) -> None:
    recipes = sorted({FigureSubject(each.model, each.recipe) for each in methods if not task.is_equal(each)})
    if not recipes:
        return
    counter = find_counter(task.environment)
    if isinstance(counter, str):
        notes.append(f"instructions cannot be counted here: {counter}")
        return
    for name, side in task.sides.items():
        for recipe in recipes:
            tell(f"counting instructions of {recipe}, {name}")
            imports = task.imports.get(recipe.recipe, ())
            counts = count_instructions(counter, side.folders[recipe.model], recipe, imports)
            notes += [f"no instructions of {subject}, {name}: {reason}" for subject, reason in counts.reasons.items()]
            for subject, found in counts.figures.items():
                figures[name] = {**figures[name], subject: {**figures[name].get(subject, {}), **found}}


def exact_rows(
    task: Task, methods: Sequence[FigureSubject], figures: Mapping[str, Figures], differing: Sequence[str]
) -> Iterator[VerdictRow]:
    """Yield a row for each exact figure of subjects that both sides have."""
    kept = {part for subject in methods for part in subject.parts()}
    first, second = figures["A"], figures.get("B", {})
    for subject in sorted(kept & first.keys()):
        for metric in METRICS:
            value = first[subject].get(metric)
            if value is None:
                continue
            other = None
            if metric not in OF_INPUTS or subject.model not in differing:
                other = second.get(subject, {}).get(metric)
            yield exact_row(subject, metric, value, other, task.limits(subject, metric))


def works_of(task: Task, plans: Mapping[FigureSubject, MethodPlan], notes: list[str]) -> Iterator[TimedWork]:
    """Yield the work of the timed tier, without recipes that are equal byte by byte."""
    calls: dict[tuple[str, str, int], list[tuple[FigureSubject, Mapping[str, int]]]] = {}
    for subject, plan in plans.items():
        if not is_timed(task, subject):
            notes.append(f"{subject.model}/{subject.recipe} is equal byte by byte, and not timed")
            continue
        for sizes, threads in ways(task.table, subject, [symbol.name for symbol in dimensions_of(plan)]):
            way = subject.called(sizes, threads)
            calls.setdefault((subject.model, subject.recipe, threads), []).append((way, sizes))
    for (model, recipe, threads), ways_ in calls.items():
        folders = {name: side.folders[model].path for name, side in task.sides.items()}
        imports, eager = task.imports.get(recipe, ()), task.eager.get(model)
        settings = {name: process_settings(side.plan(model, recipe).delegates) for name, side in task.sides.items()}
        yield TimedWork(model, recipe, threads, tuple(ways_), folders, eager, imports, settings=settings)


def time_builds(task: Task, notes: list[str], tell: Tell) -> Measured:
    if missing := sides_without_sources(task):
        notes.append(f"no builds are timed: {' and '.join(missing)} came without sources; name a project or a revision")
        return {}
    return measure_builds(task.sides, task.environment, task.seconds, task.is_settled, tell)


def plan_of(side: BenchSide, subject: FigureSubject) -> MethodPlan:
    return side.plan(subject.model, subject.recipe).methods[subject.method]


def limit_names(side: BenchSide) -> dict[str, LimitNames]:
    found = {}
    for model, folder in side.folders.items():
        recipes = folder.manifest.models[model].recipes
        rows = [FigureSubject(model, recipe, method) for recipe, entry in recipes.items() for method in entry.methods]
        found[model] = LimitNames(tuple(recipes), {row.method: dimensions_of(plan_of(side, row)) for row in rows})
    return found


def unjudged_limits(task: Task, methods: Sequence[FigureSubject], rows: Sequence[VerdictRow]) -> Iterator[str]:
    """Yield a line for each configured limit without a figure to compare."""
    judged = {limit.setting for row in rows for limit in row.judged}
    for subject in sorted({part for method in methods for part in method.parts()}):
        for limit in limits_for(task.table, subject):
            if limit.setting == "default" or limit.setting in judged or not concerns(task, methods, limit):
                continue
            yield f"{limit.setting} = {limit.value}: no figure to compare"


def concerns(task: Task, methods: Sequence[FigureSubject], limit: Limit) -> bool:
    if not task.measures(METRICS[limit.metric].tier):
        return False
    if limit.kind in OWN:
        return True
    # equal bytes keep the limit
    return task.second is not None and not all(task.is_equal(subject) for subject in methods)


def is_timed(task: Task, subject: FigureSubject) -> bool:
    """Return whether calls and loads of a method are measured: if the sides differ."""
    return not task.is_equal(subject)
