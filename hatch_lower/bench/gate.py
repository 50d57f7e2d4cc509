"""The whole measurement: exact figures first, times only of what is not equal, and the rows that come of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hatch_lower.bench.builds import measure_builds
from hatch_lower.bench.counted import count, find_counter
from hatch_lower.bench.errors import measure_errors
from hatch_lower.bench.exact import exact_figures
from hatch_lower.bench.figures import METRICS, TIERS, Figures, Subject, Tier
from hatch_lower.bench.host import hosts
from hatch_lower.bench.limits import Limit, Names, check_names, dimensions_of, limits_for, ways
from hatch_lower.bench.side import Side, comparable
from hatch_lower.bench.statistics import interval_of
from hatch_lower.bench.timed import SHORTEST, Eager, Measured, Observations, Work, measure
from hatch_lower.bench.verdict import Row, exact_row, is_settled, timed_row
from hatch_lower.config.bench_tables import BenchTable
from hatch_lower.config.settings import HOOK_PATH
from hatch_lower.format.plan import MethodPlan

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Task:
    """What is to be measured, and how."""

    first: Side
    second: Side | None = None
    table: BenchTable = field(default_factory=BenchTable)
    table_path: str = HOOK_PATH  # dotted, of the hook's table
    eager: Mapping[str, Eager] = field(default_factory=dict)  # model to its module, where the project is at hand
    imports: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # recipe to modules that its programs need
    tier: Tier = "timed"
    budget: float | None = None  # seconds; `None`: as the table says
    time_equal: bool = False  # time also what is equal byte by byte
    builds: bool = False  # time builds of sides that have sources
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def sides(self) -> Mapping[str, Side]:
        return {"A": self.first} | ({} if self.second is None else {"B": self.second})

    @property
    def seconds(self) -> float:
        return self.table.budget if self.budget is None else self.budget

    def measures(self, tier: Tier) -> bool:
        return TIERS.index(tier) <= TIERS.index(self.tier)


@dataclass(frozen=True, slots=True)
class Result:
    rows: tuple[Row, ...]
    notes: tuple[str, ...]  # what was not measured, or not compared, and why
    figures: Mapping[str, Figures]  # side to its exact figures
    measured: Measured  # every value of the timed tier

    def figures_of(self, side: str) -> Figures:
        """Return all figures of a side, those that were measured several times as one number."""
        found = {subject: dict(each) for subject, each in self.figures[side].items()}
        for (subject, metric), each in self.measured.items():
            found.setdefault(subject, {})[metric] = interval_of(each.values[side]).value
        return found

    @property
    def is_broken(self) -> bool:
        return any(row.is_broken for row in self.rows)

    @property
    def is_undecided(self) -> bool:
        return any(row.is_undecided for row in self.rows)


def run(task: Task, tell: Tell) -> Result:
    """Measure one side, or two beside each other.

    Raises:
        LowerError: for sides that cannot be compared, and for what cannot be measured.
    """
    notes: list[str] = []
    methods = common_methods(task, notes)
    plans = {subject: plan_of(task.first, subject) for subject in methods}
    check_names(task.table, names_of(task, plans), task.table_path)
    tell("exact figures")
    figures = exact_tier(task, methods, notes)
    if task.measures("counted"):
        add_counts(task, methods, figures, notes, tell)
    rows = list(exact_rows(task, methods, figures))
    measured: Measured = {}
    if task.measures("timed"):
        works = list(works_of(task, plans, notes))
        with hosts(task.environment) as pool:
            measured = measure(
                works, pool, task.seconds, lambda *found: settled(task.table, *found), tell, notes.append
            )
    if task.builds:
        measured |= time_builds(task, notes, tell)
    rows += [timed_row(*key, found, limits_at(task.table, *key)) for key, found in measured.items()]
    return Result(tuple(rows), tuple(dict.fromkeys(notes)), figures, measured)


def limits_at(table: BenchTable, subject: Subject, metric: str) -> list[Limit]:
    return [limit for limit in limits_for(table, subject) if limit.metric == metric]


def settled(table: BenchTable, subject: Subject, metric: str, found: Observations) -> bool:
    return is_settled(metric, found, limits_at(table, subject, metric))


def common_methods(task: Task, notes: list[str]) -> list[Subject]:
    """Return the methods to measure: those of A, and of B if there is one; what only one has becomes a note."""
    if task.second is None:
        return [
            Subject(model, recipe, method)
            for model, folder in sorted(task.first.folders.items())
            for recipe, entry in sorted(folder.manifest.models[model].recipes.items())
            for method in sorted(entry.methods)
        ]
    rows, lines = comparable(task.first, task.second)
    notes += lines
    return [Subject(*row) for row in rows]


def exact_tier(task: Task, methods: Sequence[Subject], notes: list[str]) -> dict[str, Figures]:
    """Return the exact figures of each side, errors against eager included."""
    found: dict[str, Figures] = {}
    errors: dict[Subject, dict[str, float]] = {}
    for name, side in task.sides.items():
        if name == "A" or not all(is_equal(task, subject) for subject in methods):
            measured = measure_errors(side.folders, side.title, max(task.seconds, SHORTEST))
            errors = dict(measured.figures)
            notes += [f"no largest error of {subject}: {reason}" for subject, reason in measured.skipped.items()]
        figures = exact_figures(side)
        found[name] = {subject: {**each, **errors.get(subject, {})} for subject, each in figures.items()}
    return found


def add_counts(
    task: Task, methods: Sequence[Subject], figures: dict[str, Figures], notes: list[str], tell: Tell
) -> None:
    """Add what can be counted here to the figures of each side."""
    recipes = sorted({(each.model, each.recipe) for each in methods if task.time_equal or not is_equal(task, each)})
    if not recipes:
        return
    counter = find_counter(task.environment, slow=task.tier == "counted")
    if isinstance(counter, str):
        notes.append(f"instructions cannot be counted here: {counter}")
        return
    for name, side in task.sides.items():
        for model, recipe in recipes:
            tell(f"counting instructions of {model}/{recipe}, {name}")
            counts = count(counter, side.folders[model], model, recipe, task.environment)
            notes += [f"no instructions of {subject}, {name}: {reason}" for subject, reason in counts.reasons.items()]
            for subject, found in counts.figures.items():
                figures[name] = {**figures[name], subject: {**figures[name].get(subject, {}), **found}}


def exact_rows(task: Task, methods: Sequence[Subject], figures: Mapping[str, Figures]) -> Iterator[Row]:
    """Yield a row for each figure that is a number and nothing else, of what both sides have."""
    kept = {part for subject in methods for part in parts_of(subject)}
    first, second = figures["A"], figures.get("B", {})
    for subject in sorted(kept & first.keys()):
        for metric in METRICS:
            value = first[subject].get(metric)
            if value is not None:
                other = second.get(subject, {}).get(metric)
                yield exact_row(subject, metric, value, other, limits_at(task.table, subject, metric))


def parts_of(subject: Subject) -> tuple[Subject, ...]:
    """Return a method, its recipe, its model and the wheel."""
    recipe = replace(subject, method="")
    return subject, recipe, Subject(subject.model), Subject()


def works_of(task: Task, plans: Mapping[Subject, MethodPlan], notes: list[str]) -> Iterator[Work]:
    """Yield what the timed tier measures: nothing of a recipe that is equal byte by byte."""
    calls: dict[tuple[str, str, int], list[tuple[Subject, Mapping[str, int]]]] = {}
    for subject, plan in plans.items():
        if is_equal(task, subject) and not task.time_equal:
            notes.append(f"{subject.model}/{subject.recipe} is equal byte by byte, and not timed")
            continue
        for sizes, threads in ways(task.table, subject, [symbol.name for symbol in dimensions_of(plan)]):
            size = ", ".join(f"{name}={value}" for name, value in sizes.items())
            way = replace(subject, size=size, threads=threads)
            calls.setdefault((subject.model, subject.recipe, threads), []).append((way, sizes))
    for (model, recipe, threads), ways_ in calls.items():
        folders = {name: side.folders[model].path for name, side in task.sides.items()}
        imports = task.imports.get(recipe, ())
        yield Work(model, recipe, threads, tuple(ways_), folders, task.eager.get(model), imports)


def time_builds(task: Task, notes: list[str], tell: Tell) -> Measured:
    missing = [name for name, side in task.sides.items() if side.source is None]
    if missing:
        notes.append(f"no builds are timed: {' and '.join(missing)} came without sources; name a project or a revision")
        return {}
    return measure_builds(task.sides, task.environment, task.seconds, lambda *found: settled(task.table, *found), tell)


def plan_of(side: Side, subject: Subject) -> MethodPlan:
    (contents,) = (each for each in side.contents if subject.model in each.models)
    plan = contents.plan(contents.manifest.models[subject.model].recipes[subject.recipe])
    return plan.methods[subject.method]


def names_of(task: Task, plans: Mapping[Subject, MethodPlan]) -> dict[str, Names]:
    """Return what limits may name: whatever A has, and the dynamic dimensions of what is measured."""
    found = {}
    for model, folder in task.first.folders.items():
        recipes = folder.manifest.models[model].recipes
        methods = {method: () for recipe in recipes.values() for method in recipe.methods}
        measured = {each.method: dimensions_of(plan) for each, plan in plans.items() if each.model == model}
        found[model] = Names(tuple(recipes), {**methods, **measured})
    return found


def is_equal(task: Task, subject: Subject) -> bool:
    """Return whether both sides have the same bytes of all that running a recipe needs."""
    return task.second is not None and run_digests(task.first, subject) == run_digests(task.second, subject)


def run_digests(side: Side, subject: Subject) -> list[object]:
    model = side.folders[subject.model].manifest.models[subject.model]
    recipe = model.recipes[subject.recipe]
    # the check inputs are what is called with, and a plan names its delegates' files
    files = [recipe.plan, model.constants, model.check, *recipe.delegates]
    return [*sorted(file.sha256 for file in files if file is not None), recipe.imports, recipe.target]
