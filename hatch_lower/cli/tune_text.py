"""Text output of `hatch-lower tune`: the candidates of a model, the best first."""

from __future__ import annotations

from collections.abc import Iterator

from hatch_lower.cli.measure.tune.candidates import settings_text
from hatch_lower.cli.measure.tune.choose import TunedModel
from hatch_lower.cli.profile import call_time_text
from hatch_lower.errors import size_text
from hatch_lower.format.evidence import MeasuredAccuracy, Measurement, mean_of
from hatch_lower.format.results import metric_text
from hatch_lower.hatch.terminal import table_lines

HEADINGS = (
    *("", "recipe", "settings", "call", "interval", "÷ best", "÷ eager"),
    *("load", "memory", "wheel", "installed", "accuracy"),
)
FIGURES = {"latency": "time", "throughput": "time", "size": "installed size", "memory": "memory"}
NUMBERS = tuple(range(3, len(HEADINGS)))  # columns


def tuned_lines(tuned: TunedModel) -> Iterator[str]:
    choice = tuned.choice
    threads = tuned.measurements[0].threads
    yield f"{choice.model}, for {choice.aim}, on {choice.level}, {threads} thread{'' if threads == 1 else 's'}"
    yield ""
    order = sorted(tuned.measurements, key=lambda each: (each.recipe != choice.recipe, tuned.ratios[each.recipe]))
    yield from table_lines([HEADINGS, *(tuned_cells(tuned, each) for each in order)], right=NUMBERS)
    yield ""
    yield from (f"left out: {name}: {reason}" for name, reason in tuned.left_out.items())
    yield from (f"note: {note}" for note in tuned.notes)
    if not tuned.is_certain:
        yield "note: the budget ended before the order of the best was certain"
    yield chosen_line(tuned)
    yield ""


def tuned_cells(tuned: TunedModel, measured: Measurement) -> tuple[str, ...]:
    name = measured.recipe
    low, high = (mean_of([getattr(call, end) for call in measured.calls]) for end in ("low", "high"))
    accuracy = measured.accuracy
    return (
        "→" if name == tuned.choice.recipe else "",
        name,
        settings_text(tuned.candidates[name].recipe),
        call_time_text(measured.call_seconds),
        f"{call_time_text(low)} … {call_time_text(high)}",
        f"{'≈ ' if name in tuned.rough else ''}{tuned.ratios[name]:.2f}",
        "" if measured.eager_ratio is None else f"{measured.eager_ratio:.2f}",
        call_time_text(measured.load_seconds),
        size_text(measured.memory_bytes),
        size_text(measured.wheel_bytes),
        size_text(measured.installed_bytes),
        "" if accuracy is None else accuracy_text(accuracy),
    )


def accuracy_text(accuracy: MeasuredAccuracy) -> str:
    """Return `error 1.5e-08`, or the metric beside eager's in as many digits as tell the two apart."""
    if accuracy.kind == "error":
        return f"error {accuracy.value:.2g}"
    if accuracy.eager is None:
        return f"metric {accuracy.value:.6g}"
    return f"metric {metric_text(accuracy.value, accuracy.eager)}"


def chosen_line(tuned: TunedModel) -> str:
    choice = tuned.choice
    if choice.recipe == tuned.current:
        return f"{choice.model} keeps the recipe `{choice.recipe}`"
    current = tuned.ratios.get(tuned.current)
    text = "" if current is None else f": `{tuned.current}` has {current:.2f} times its {FIGURES[choice.aim]}"
    return f"{choice.model} gets the recipe `{choice.recipe}`{text}"
