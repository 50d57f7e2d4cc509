"""`lowering-times.json`, beside the project's pyproject.toml: the measurements behind the order and choice of recipes.

`hatch-lower tune --write` writes the file, and version control keeps the file. The file has no time, no host name and
no path. A machine replaces the measurements of its own instruction set level; measurements of other levels stay.
"""

import json
import math
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeAlias

from hatch_lower.errors import ConfigError, ProgramError
from hatch_lower.format.codec import Damage, encode, parse_json, read_float, reader_of, show_value
from hatch_lower.format.values import Digest, Natural, Text
from hatch_lower.frozen import Frozen

EVIDENCE_FILE = "lowering-times.json"
EVIDENCE_SCHEMA = 1
DIGITS = 4  # significant digits of a number in the file
HINT = f"restore {EVIDENCE_FILE} from version control, or remove it and run `hatch-lower tune --write`"


def read_above_zero(value: object) -> float:
    number = read_float(value)
    if number <= 0:
        raise Damage(f"{show_value(value)} instead of a number above 0")
    return number


Positive: TypeAlias = Annotated[float, read_above_zero]


class MeasuredCall(Frozen):
    """Seconds of a call of a method."""

    method: Text
    sizes: Mapping[Text, Natural]  # of dynamic dimensions; empty: sizes of the example inputs
    median: Positive
    low: Positive  # of an interval with a confidence of 99 %, or of the range where the measurements are few
    high: Positive
    # time of eager, by its ratio to the recipe in common processes; `None` without a comparison
    eager: Positive | None = None

    def validate(self) -> None:
        if not self.low <= self.median <= self.high:
            raise Damage("a median outside of its interval")


class MeasuredAccuracy(Frozen):
    """The largest absolute difference from eager's outputs, or the model's metric, of which more is better."""

    kind: Literal["error", "metric"]
    value: float
    eager: float | None = None  # the metric of eager


class Measurement(Frozen):
    """A recipe of a model on machines of a level, with a number of threads."""

    model: Text
    recipe: Text
    digest: Digest  # `recipe_digest` of the recipe's settings
    settings: Mapping[str, Any]  # `timed_settings` of the recipe
    level: Text  # `machine_level`: `x86-64-v3`; elsewhere the name of the architecture
    threads: Natural
    calls: tuple[MeasuredCall, ...]
    load_seconds: Positive
    memory_bytes: Natural  # growth by a load and some calls
    wheel_bytes: Natural  # of the recipe alone: its compressed files, weights included
    installed_bytes: Natural  # of the recipe's files, and of the distributions that the recipe requires
    accuracy: MeasuredAccuracy | None
    versions: Mapping[Text, Text]  # of torch and of the distributions of the engines

    def validate(self) -> None:
        if not self.calls:
            raise Damage("no calls", ".calls")
        if not self.threads:
            raise Damage("0 instead of a number above 0", ".threads")

    @property
    def key(self) -> tuple[str, str, str, int]:
        return self.model, self.recipe, self.level, self.threads

    @property
    def call_seconds(self) -> float:
        """The geometric mean of the medians of all calls: of two recipes with the same calls, less is faster."""
        return mean_of([call.median for call in self.calls])

    @property
    def eager_ratio(self) -> float | None:
        """The geometric mean of the ratios to eager's medians; `None` if no call was compared with eager."""
        ratios = [call.median / call.eager for call in self.calls if call.eager is not None]
        return mean_of(ratios) if ratios else None


def mean_of(numbers: Sequence[float]) -> float:
    """Return the geometric mean of positive numbers."""
    return math.exp(math.fsum(map(math.log, numbers)) / len(numbers))


class TunedChoice(Frozen):
    """The recipe that `hatch-lower tune` chose for a model on machines of a level."""

    model: Text
    level: Text
    aim: Literal["latency", "throughput", "size", "memory"]
    recipe: Text


class Evidence(Frozen):
    measurements: tuple[Measurement, ...] = ()  # by `key`
    choices: tuple[TunedChoice, ...] = ()  # by model and level

    def validate(self) -> None:
        keys = [each.key for each in self.measurements]
        if len(set(keys)) < len(keys):
            raise Damage("two measurements of a recipe, level and number of threads", ".measurements")
        places = [(each.model, each.level) for each in self.choices]
        if len(set(places)) < len(places):
            raise Damage("two choices of a model and level", ".choices")

    def choice(self, model: str, level: str) -> TunedChoice | None:
        return next((each for each in self.choices if (each.model, each.level) == (model, level)), None)

    def of_model(self, model: str, level: str) -> list[Measurement]:
        return [each for each in self.measurements if (each.model, each.level) == (model, level)]

    def with_model(
        self, choice: TunedChoice, measured: Iterable[Measurement], left_out: Container[str] = ()
    ) -> "Evidence":
        """Return the evidence with other measurements and another choice of a model and level; the rest stays.

        `left_out`: recipes of the project that could not be measured now, whose earlier measurements stay.
        """
        place = choice.model, choice.level
        kept = [each for each in self.measurements if (each.model, each.level) != place or each.recipe in left_out]
        choices = [each for each in self.choices if (each.model, each.level) != place]
        return Evidence(
            tuple(sorted([*kept, *measured], key=lambda each: each.key)),
            tuple(sorted([*choices, choice], key=lambda each: (each.model, each.level))),
        )


def read_evidence(data: bytes, where: str) -> Evidence:
    """Return the measurements in a file; raise `ConfigError` for a damaged file or a newer schema."""
    try:
        value = parse_json(data, where)
    except ProgramError as error:
        raise damaged_evidence(where, error.found) from error
    version = value.pop("schema", None) if isinstance(value, dict) else None
    if type(version) is not int or version < 1:
        raise damaged_evidence(where, "no JSON object with the key `schema`")
    if version > EVIDENCE_SCHEMA:
        raise ConfigError(
            "the file of measured times needs a newer hatch-lower",
            where=where,
            found=f"schema {version}; this hatch-lower reads schema {EVIDENCE_SCHEMA}",
            hint="upgrade hatch-lower",
        )
    try:
        evidence: Evidence = reader_of(Evidence)(value)
    except Damage as damage:
        raise damaged_evidence(f"{where}: {damage.path.removeprefix('.')}", damage.found) from damage
    except RecursionError as error:
        raise damaged_evidence(where, "JSON that nests too deeply") from error
    return evidence


def damaged_evidence(where: str, found: str) -> ConfigError:
    return ConfigError("the file of measured times is damaged", where=where, found=found, hint=HINT)


def write_evidence(evidence: Evidence) -> bytes:
    """Return the file's contents: equal measurements give equal bytes, and a line of a difference is a single fact."""
    value = {"schema": EVIDENCE_SCHEMA, **encode(evidence, packaged=True)}
    return (json.dumps(rounded(value), indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n").encode()


def rounded(value: Any) -> Any:
    if isinstance(value, float):
        short = float(f"{value:.{DIGITS}g}")
        return short if math.isfinite(short) else value
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return {key: rounded(item) for key, item in value.items()} if isinstance(value, dict) else value
