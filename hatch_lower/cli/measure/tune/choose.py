"""The choice of a model's recipe: candidates are lowered, verified and timed, and the best for an aim is taken."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import Protocol

from hatch_lower.cli.measure.command import Tell
from hatch_lower.cli.measure.figures import METRICS, Interval
from hatch_lower.cli.measure.tune.candidates import (
    Aim,
    Candidates,
    TunedCandidate,
    first_candidates,
    settings_text,
    tools_error,
    variants,
)
from hatch_lower.cli.measure.tune.lowered import LeftOutError, LoweredCandidate, left_out_reason
from hatch_lower.cli.measure.tune.race import (
    WORTH_OPTIONS,
    Preference,
    Race,
    Stopwatch,
    Timer,
    exactly,
    fast_once,
    pick,
    unfit_budget_error,
)
from hatch_lower.cli.measure.tune.timer import Calls, times_of_calls
from hatch_lower.config.settings import Settings
from hatch_lower.config.tables import Precision
from hatch_lower.config.timed import recipe_digest, timed_settings
from hatch_lower.errors import ConfigError, LowerError, ProgramError, nearest
from hatch_lower.format.evidence import Evidence, Measurement, TunedChoice
from hatch_lower.frozen import Frozen

LOADS = {"memory": 8}  # loads of a candidate, by aim
FEW_LOADS = 3
# Other work on the machine slows down an engine with several threads more than a single thread: on two cores, of which
# another process had one, a small network with a single thread was ahead in 8 of 10 runs by up to 7 %, and is 28 %
# behind without other work.
WORTH_THREADS = 1.1
UNEQUAL_LOAD = METRICS["memory-bytes"].difference  # bytes: a smaller difference of memory is no reason for a choice


class Wanted(Frozen):
    """The question: a model, the aim, and the candidates."""

    settings: Settings  # of the project
    model: str
    aim: Aim
    budget: float  # seconds of timing
    level: str
    threads: int
    backends: tuple[str, ...] = ()  # engines to try; empty: the known engines
    precisions: tuple[Precision, ...] = ()
    current: str = ""  # the recipe of this level so far


def current_recipe(settings: Settings, model: str, evidence: Evidence, level: str) -> str:
    """Return the choice of a level that the project has, else the recipe that `load` tries first."""
    (own,) = (each for each in settings.models if each.name == model)
    choice = evidence.choice(model, level)
    return own.recipes[0] if choice is None or choice.recipe not in own.recipes else choice.recipe


class CandidateBench(Protocol):
    """The means of a choice: lowering, loads, and heats."""

    calls: Calls

    def lowered(self, candidate: TunedCandidate) -> AbstractContextManager[LoweredCandidate]: ...

    def least_heat(self, timer: LoadTimer) -> float: ...

    def timer(self, candidates: Mapping[str, LoweredCandidate]) -> AbstractContextManager[LoadTimer]: ...


class LoadTimer(Timer, Protocol):
    notes: dict[str, None]
    samples: dict[str, list[tuple[float, ...]]]

    def eager_calls(self, model: str) -> dict[str, float]: ...

    def load(self, name: str, loads: int) -> dict[str, float]: ...


class TunedModel(Frozen):
    """The answer: the chosen recipe, and the measurements of all candidates that were timed."""

    choice: TunedChoice
    current: str
    chosen: TunedCandidate
    candidates: Mapping[str, TunedCandidate]
    measurements: tuple[Measurement, ...]
    ratios: Mapping[str, float]  # candidate to its figure of the aim, divided by the chosen candidate's
    left_out: Mapping[str, str]  # candidate to the reason
    is_certain: bool
    rough: tuple[str, ...] = ()  # candidates whose ratio is that of a single heat
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class Progress:
    candidates: dict[str, TunedCandidate] = field(default_factory=dict)
    lowered: dict[str, LoweredCandidate] = field(default_factory=dict)
    loads: dict[str, dict[str, float]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    samples: Mapping[str, list[tuple[float, ...]]] = field(default_factory=dict)  # of the timer

    def add(self, lowered: LoweredCandidate) -> None:
        """Add a lowered candidate; raise `LeftOutError` for a new recipe with the program of another candidate."""
        same = next((name for name, each in self.lowered.items() if each.program == lowered.program), None)
        if same is not None and not lowered.candidate.is_written:
            raise LeftOutError(f"the same program as `{same}`")
        self.lowered[lowered.candidate.name] = lowered


def tune_recipe(wanted: Wanted, bench: CandidateBench, tell: Tell, clock: Callable[[], float]) -> TunedModel:
    """Return the best recipe of a model for the aim."""
    found = first_candidates(wanted.settings, wanted.model, wanted.backends, wanted.precisions)
    state = Progress()
    with ExitStack() as stack:
        timer = stack.enter_context(bench.timer(state.lowered))
        state.samples = timer.samples
        watch = Stopwatch(timer, wanted.budget, tell, clock)
        refuse_small_budget(wanted, list(found), bench, timer, tell)
        names = prepare_candidates(wanted, list(found), bench, state, timer, stack, tell)
        watch.time_once(names)
        fast = [state.candidates[name] for name in fast_once(watch.race, names, WORTH_OPTIONS)]
        more = [each for candidate in fast for each in add_variants(found, candidate, wanted)]
        others = prepare_candidates(wanted, more, bench, state, timer, stack, tell)
        watch.time_once(others)
        state.left_out |= watch.race.failed
        timed = [name for name in (*names, *others) if name not in watch.race.failed]
        if not timed:
            raise no_candidate_error(wanted, state.left_out)
        if wanted.aim in ("latency", "throughput"):
            watch.contend(fast_once(watch.race, timed))
        return tuned_answer(wanted, bench.calls, state, watch.race, timed, tuple(timer.notes))


def refuse_small_budget(
    wanted: Wanted, candidates: Sequence[TunedCandidate], bench: CandidateBench, timer: LoadTimer, tell: Tell
) -> None:
    """Raise `ConfigError` for a budget that is smaller than a first heat, before minutes of lowering.

    The hint has the time for all installed candidates, of which some may be left out later.
    """
    tell(f"calling {wanted.model} eagerly")
    least = bench.least_heat(timer)
    if wanted.budget < least:
        installed = [each for each in candidates if tools_error(each, wanted.settings) is None]
        raise unfit_budget_error(wanted.budget, least, len(installed))


def add_variants(found: Candidates, candidate: TunedCandidate, wanted: Wanted) -> list[TunedCandidate]:
    """Add the candidates with other options of a candidate's engine."""
    tried = (found.add(*each) for each in variants(candidate, wanted.level, wanted.threads))
    return [each for each in tried if each is not None]


def prepare_candidates(
    wanted: Wanted,
    candidates: Iterable[TunedCandidate],
    bench: CandidateBench,
    state: Progress,
    timer: LoadTimer,
    stack: ExitStack,
    tell: Tell,
) -> list[str]:
    """Lower, verify and load candidates; return the names of the candidates that can be timed."""
    names: list[str] = []
    last = ""
    for candidate in candidates:
        name = candidate.name
        state.candidates[name] = candidate
        if (error := tools_error(candidate, wanted.settings)) is not None:
            state.left_out[name] = f"not installed: {error.found or error.what}"
            continue
        tell(f"lowering {wanted.model} for {settings_text(candidate.recipe)}")
        try:
            state.add(stack.enter_context(bench.lowered(candidate)))
            tell(f"loading {name}")
            state.loads[name] = timer.load(name, LOADS.get(wanted.aim, FEW_LOADS))
        except LeftOutError as reason:
            state.left_out[name] = str(reason)
            continue
        except LowerError as refused:
            if not names and str(refused) == last:  # a fault of the model, which each candidate would repeat
                raise
            last, state.left_out[name] = str(refused), left_out_reason(refused)
            continue
        names.append(name)
    return names


def no_candidate_error(wanted: Wanted, left_out: Mapping[str, str]) -> ProgramError:
    return ProgramError(
        "no candidate is verified and runs on this machine",
        where=f"model `{wanted.model}`",
        found="\n".join(f"{name}: {reason}" for name, reason in left_out.items()),
        hint="`hatch build` with a single backend shows the whole error",
    )


def tuned_answer(
    wanted: Wanted, calls: Calls, state: Progress, race: Race, timed: Sequence[str], notes: Sequence[str]
) -> TunedModel:
    measurements = {name: measurement(wanted, calls, state, race, name) for name in timed}
    ratios = ratios_to_best(wanted.aim, measurements, race)
    figures = {name: (ratios[name] if name in ratios else race.estimate(name)).value for name in timed}
    chosen = pick(ratios, {name: preference(wanted, state, name) for name in ratios})
    if wanted.aim == "latency" and chosen != wanted.current:
        chosen = with_own_threads(chosen, state.candidates, figures)
    return TunedModel(
        TunedChoice(wanted.model, wanted.level, wanted.aim, chosen),
        wanted.current,
        state.candidates[chosen],
        state.candidates,
        tuple(measurements.values()),
        {name: figure / figures[chosen] for name, figure in figures.items()},
        state.left_out,
        race.is_certain or wanted.aim in ("size", "memory"),
        tuple(name for name in timed if race.is_rough(name)) if race.leader else (),
        tuple(notes),
    )


def with_own_threads(chosen: str, candidates: Mapping[str, TunedCandidate], figures: Mapping[str, float]) -> str:
    """Return the candidate with the engine's own number of threads in place of a chosen number that gains little."""
    plain = candidates[chosen].without_threads()
    alike = (
        name
        for name, figure in figures.items()
        if figure <= WORTH_THREADS * figures[chosen]
        and candidates[name].recipe.backends == plain
        and candidates[name].recipe.precision == candidates[chosen].recipe.precision
    )
    return next(alike, chosen)


def ratios_to_best(aim: Aim, measurements: Mapping[str, Measurement], race: Race) -> dict[str, Interval]:
    """Return the ratio to the best figure of the aim, for each candidate that may be chosen."""
    if aim in ("latency", "throughput"):
        return {name: race.estimate(name) for name in race.contenders}
    figures = bytes_of_aim(aim, measurements)
    least = min(figures.values())
    return {name: exactly(figure / least) for name, figure in figures.items()}


def bytes_of_aim(aim: Aim, measurements: Mapping[str, Measurement]) -> dict[str, int]:
    """Return the bytes of each candidate, installed or in memory, of which small differences do not count."""
    if aim == "size":
        return {name: max(each.installed_bytes, 1) for name, each in measurements.items()}
    least = min(each.memory_bytes for each in measurements.values())
    return {
        name: least if each.memory_bytes <= least + UNEQUAL_LOAD else each.memory_bytes
        for name, each in measurements.items()
    }


def preference(wanted: Wanted, state: Progress, name: str) -> Preference:
    candidate = state.candidates[name]
    return Preference(
        is_current=name == wanted.current,
        is_exact=candidate.recipe.precision == "float32",
        options=candidate.options,
        installed_bytes=state.lowered[name].installed_bytes,
    )


def measurement(wanted: Wanted, calls: Calls, state: Progress, race: Race, name: str) -> Measurement:
    lowered, loads = state.lowered[name], state.loads[name]
    recipe = lowered.candidate.recipe
    (model,) = (each for each in wanted.settings.models if each.name == wanted.model)
    return Measurement(
        model=wanted.model,
        recipe=name,
        digest=recipe_digest(recipe, model),
        settings=timed_settings(recipe, model),
        level=wanted.level,
        threads=wanted.threads,
        calls=times_of_calls(calls, race.heats, state.samples[name], name),
        load_seconds=loads["load-seconds"],
        memory_bytes=round(loads["memory-bytes"]),
        wheel_bytes=lowered.wheel_bytes,
        installed_bytes=lowered.installed_bytes,
        accuracy=lowered.accuracy,
        versions=lowered.versions,
    )


def find_wanted_models(settings: Settings, named: str | None) -> list[str]:
    known = [model.name for model in settings.models]
    if named is not None and named not in known:
        raise ConfigError("the project has no such model", where=f"`{named}`", found=nearest(named, known))
    return known if named is None else [named]
