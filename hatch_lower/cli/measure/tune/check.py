"""The check of a choice in CI: the chosen recipe beside the other candidates of the evidence."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import get_args

from hatch_lower.cli.measure.command import Tell
from hatch_lower.cli.measure.figures import FEWEST, Interval
from hatch_lower.cli.measure.tune.candidates import TunedCandidate, new_candidate, written_candidate
from hatch_lower.cli.measure.tune.choose import (
    CandidateBench,
    Progress,
    Wanted,
    bytes_of_aim,
    measurement,
    prepare_candidates,
    refuse_small_budget,
)
from hatch_lower.cli.measure.tune.race import SLOW_ONCE, Race, Stopwatch, exactly
from hatch_lower.cli.output import count
from hatch_lower.config.packages import file_name_problems
from hatch_lower.config.settings import RECIPE_NAME
from hatch_lower.config.tables import BackendChoice, Precision
from hatch_lower.errors import ConfigError, ProgramError
from hatch_lower.format.evidence import EVIDENCE_FILE, Evidence, Measurement, TunedChoice
from hatch_lower.frozen import Frozen

SETTINGS = {"backends", "precision", "float32", "calibrated"}  # keys of `timed_settings`
AGAIN = "run `hatch-lower tune --write` on a machine of this level, and check the files in"


class CheckedModel(Frozen):
    """The verdict on a choice: the ratio of each other candidate's figure to the figure of the chosen recipe."""

    choice: TunedChoice
    limit: float
    ratios: Mapping[str, Interval]
    left_out: Mapping[str, str]

    @property
    def better(self) -> dict[str, Interval]:
        """The candidates that are certainly better by more than the limit."""
        return {name: ratio for name, ratio in self.ratios.items() if ratio.high * self.limit < 1}

    @property
    def undecided(self) -> dict[str, Interval]:
        return {
            name: ratio for name, ratio in self.ratios.items() if ratio.low * self.limit < 1 <= ratio.high * self.limit
        }


def checked_choice(wanted: Wanted, evidence: Evidence) -> TunedChoice:
    """Return the choice to check; raise `ConfigError` if the project does not have the choice."""
    choice = evidence.choice(wanted.model, wanted.level)
    (model,) = (each for each in wanted.settings.models if each.name == wanted.model)
    if choice is None:
        levels = " and ".join(each.level for each in evidence.choices if each.model == wanted.model)
        raise ConfigError(
            f"no choice for the model `{wanted.model}` was measured on machines of this level",
            where=EVIDENCE_FILE,
            found=f"{f'a choice for {levels}' if levels else 'no choice'}; this machine is {wanted.level}",
            hint=AGAIN,
        )
    if choice.recipe not in model.recipes:
        raise ConfigError(
            f"the model `{wanted.model}` does not have the recipe that was chosen",
            where=EVIDENCE_FILE,
            found=f"`{choice.recipe}`; the project has {', '.join(f'`{name}`' for name in model.recipes)}",
            hint=AGAIN,
        )
    return choice


def candidates_of(wanted: Wanted, measured: list[Measurement]) -> Iterator[TunedCandidate]:
    """Yield the measured candidates, with the project's settings of recipes that the project has now."""
    known = {recipe.name: recipe for recipe in wanted.settings.recipes}
    for each in measured:
        if each.recipe in known:
            yield written_candidate(wanted.settings, known[each.recipe])
        else:
            yield measured_candidate(each, new_candidate(wanted.settings, wanted.model))


def measured_candidate(measured: Measurement, template: TunedCandidate) -> TunedCandidate:
    given = measured.settings
    precision = given.get("precision", "float32")
    try:
        # the name becomes a file name; a key of a newer hatch-lower would be ignored
        is_name = RECIPE_NAME.fullmatch(measured.recipe) and not file_name_problems(measured.recipe, "")
        if not is_name or not given.keys() <= SETTINGS or precision not in get_args(Precision):
            raise ValueError
        backends = tuple(BackendChoice(str(each["name"]), dict(each.get("options", {}))) for each in given["backends"])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            "the file of measured times has settings that are no recipe",
            where=f"{EVIDENCE_FILE}, recipe {measured.recipe!r:.100}",
            found=f"{given!r:.200}",
            hint=AGAIN,
        ) from error
    return template.of(measured.recipe, backends, precision)


def check_choice(
    wanted: Wanted, evidence: Evidence, limit: float, bench: CandidateBench, tell: Tell, clock: Callable[[], float]
) -> CheckedModel:
    """Return whether a candidate of the evidence has become better than the chosen recipe by more than the limit."""
    choice = checked_choice(wanted, evidence)
    state = Progress()
    with ExitStack() as stack:
        timer = stack.enter_context(bench.timer(state.lowered))
        state.samples = timer.samples
        watch = Stopwatch(timer, wanted.budget, tell, clock)
        candidates = list(candidates_of(wanted, evidence.of_model(wanted.model, wanted.level)))
        refuse_small_budget(wanted, candidates, bench, timer, tell)
        names = prepare_candidates(wanted, candidates, bench, state, timer, stack, tell)
        watch.time_once(names)
        race, chosen = watch.race, choice.recipe
        state.left_out |= race.failed
        if chosen in state.left_out:
            raise ProgramError(
                "the chosen recipe cannot be measured", where=f"{wanted.model}/{chosen}", found=state.left_out[chosen]
            )
        timed = [name for name in names if name not in race.failed]
        if wanted.aim in ("size", "memory"):
            measured = {name: measurement(wanted, bench.calls, state, race, name) for name in timed}
            figures = bytes_of_aim(wanted.aim, measured)
            ratios = {name: exactly(figure / figures[chosen]) for name, figure in figures.items()}
        else:
            ratios = raced_ratios(watch, timed, chosen, limit)
    return CheckedModel(choice, limit, {name: each for name, each in ratios.items() if name != chosen}, state.left_out)


def raced_ratios(watch: Stopwatch, timed: list[str], chosen: str, limit: float) -> dict[str, Interval]:
    """Return the ratios of times to the chosen recipe's; of a much slower candidate, the ratio of the first heats."""
    race = watch.race
    near = [name for name in timed if race.first_time(name) <= SLOW_ONCE * race.first_time(chosen)]

    def is_judged(found: Interval) -> bool:
        return found.high * limit < 1 or found.low * limit >= 1

    watch.contend(near, chosen, is_judged)
    return {name: ratio_to(race, name, chosen) for name in timed if name != chosen}


def ratio_to(race: Race, name: str, chosen: str) -> Interval:
    return race.ratio(name, chosen) if name in race.contenders else exactly(race.estimate(name).value)


def verdict_lines(checked: CheckedModel) -> Iterator[str]:
    choice = checked.choice
    for name, reason in checked.left_out.items():
        yield f"left out: {name}: {reason}"
    for name, ratio in checked.undecided.items():
        yield f"not decided: {ratio_words(name, ratio, choice)}"
    for name, ratio in checked.better.items():
        yield f"better: {ratio_words(name, ratio, choice)}; the limit is {checked.limit:g}"
    if not checked.better:
        measured = "measured " if checked.left_out else ""
        yield f"{choice.model}: no {measured}candidate is better than `{choice.recipe}` by more than {checked.limit:g}"


def ratio_words(name: str, ratio: Interval, choice: TunedChoice) -> str:
    ends = "" if ratio.low == ratio.high else f" ({ratio.low:.2f} to {ratio.high:.2f})"
    if ratio.too_few:
        ends = f" ({count(ratio.too_few, 'pair')} of processes; {FEWEST} are needed)"
    return (
        f"`{name}` has {ratio.value:.2f}{ends} of the figure of `{choice.recipe}`, for {choice.aim}, in {choice.model}"
    )
