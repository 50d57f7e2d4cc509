"""Compare a lowered method with eager on the same inputs: outputs, mutated inputs, and state across calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from hatch_lower.errors import EmptyError, SampleError, VerificationError
from hatch_lower.exir.graph.tensors import dtype_name
from hatch_lower.format.record import OutputMetrics
from hatch_lower.pipeline.capture import CapturedMethod, CapturedModel
from hatch_lower.pipeline.eager import (
    ASSUMED_HINT,
    FAST_PATH_HINT,
    HIDDEN_STATE_HINT,
    TRAINING_HINT,
    eager_factory,
    has_hidden_state,
    is_training,
    random_operators,
    refusal_of_draws,
)
from hatch_lower.pipeline.exceptions import describe_exception
from hatch_lower.pipeline.generated_inputs import GeneratedInputs, InputMaker
from hatch_lower.pipeline.module_checks import path_text
from hatch_lower.pipeline.random_inputs import InputCase, why_undecided
from hatch_lower.pipeline.rounding import Marks, Rounding, rounding_of
from hatch_lower.pipeline.same_leaves import are_equal, has_rounding_errors, is_same_tensor, paths_with_nan, plain_form
from hatch_lower.runtime.numbers import (
    GROSS,
    Measured,
    Tolerance,
    has_inexact_dtype,
    number_difference,
    root_mean_square,
    steps_apart,
    wrong_places,
)
from hatch_lower.runtime.torch_private import tensors


@dataclass(frozen=True, slots=True)
class Verification:
    cases: tuple[str, ...]  # names of the inputs on which both sides agree
    notes: tuple[str, ...]  # inputs that were left out, and the reasons
    outputs: Mapping[str, OutputMetrics]  # of floating-point outputs, by path
    left_out: int  # number of generated inputs that eager refuses
    generated: int  # number of all generated inputs
    allowed: str = field(default="", compare=False)  # `rtol 0.0001, atol 1e-05`


class MismatchError(VerificationError):
    case: InputCase | None = None  # the inputs of the call that showed the mismatch
    is_rounding = False  # whether roundings to integers may add up to the difference


class LeafMark:
    """Placeholder for a tensor or number in a text that shows the structure only."""

    def __repr__(self) -> str:
        return "*"


@dataclass(slots=True)
class Sides:
    """Eager and the lowered method, side by side, with a recipe's tolerances."""

    where: str  # model, recipe and method, for errors
    new_eager: Callable[[], Callable[..., object]]  # returns eager's callable with fresh state
    lowered: Callable[..., object]
    reset: Callable[[], object]  # gives the lowered method fresh state
    tolerance: Tolerance
    rounding: Rounding
    hint: str  # remedy for a mismatch
    gated: bool = False  # whether the metric judges the recipe, so that numbers may differ by more than the tolerance
    gaps: dict[str, str] = field(default_factory=dict)  # by place, such differences in words
    sizes: dict[str, float] = field(default_factory=dict)  # by place, the greatest root mean square of eager's numbers
    most_steps: float = 0.0  # of 8 bits; set where only the tolerance for 8 bits allows a difference
    measured: dict[str, Measured] = field(default_factory=dict)  # of outputs, by path
    allowed: dict[str, str] = field(default_factory=dict)  # the tolerances of outputs, by path
    case: InputCase | None = None  # of the last call
    # by path, for outputs that are contiguous in eager only: eager's strides and the lowered method's
    strides: dict[str, tuple[list[int], list[int]]] = field(default_factory=dict)
    with_nan: list[str] = field(default_factory=list)  # paths of eager's outputs with NaN for the example inputs

    def refuse_case(self, case: InputCase) -> str:
        """Compare a call on fresh state; return the error if eager cannot run the call, else an empty string."""
        self.reset()
        return self.compare_call(self.new_eager(), case, case.name)[0]

    def refuse_constant(self, case: InputCase) -> str:
        self.reset()
        return self.compare_constant(self.new_eager(), case)

    def compare_call(self, eager: Callable[..., object], case: InputCase, name: str) -> tuple[str, object, object]:
        """Compare a call; return eager's error (or an empty string), eager's outputs and the lowered outputs."""
        self.case = case
        args, kwargs = case.copied()
        try:
            with torch.no_grad():
                expected = eager(*args, **kwargs)
        except Exception as error:
            return describe_exception(error).splitlines()[0], None, None
        lowered_args, lowered_kwargs = case.copied()
        try:
            with torch.no_grad():
                given = self.lowered(*lowered_args, **lowered_kwargs)
        except MemoryError:
            raise
        except EmptyError as error:  # installed programs refuse an empty batch, too
            return error.what, None, None
        except BaseException as error:  # a delegate may not end the build either
            what = "the lowered method fails where the eager module does not"
            raise self.mismatch(what, name, describe_exception(error)) from error
        self.compare(name, "output", expected, given)
        self.measure(expected, given)
        self.compare(name, "input", case.named(args, kwargs), case.named(lowered_args, lowered_kwargs))
        return "", expected, given

    def compare_two_calls(self, case: InputCase, second: InputCase | None = None) -> bool:
        """Compare two calls in a row, with the same inputs or `second`; return False if eager refuses `second`."""
        # state must carry over to the second call, and the second call must not change the first outputs
        self.reset()
        eager = self.new_eager()
        refusal, expected, given = self.compare_call(eager, case, case.name)
        if refusal:
            raise VerificationError(
                "the eager module cannot run the example inputs a second time",
                where=self.where,
                found=refusal,
                hint="the entry point must return a module that can be copied and called with its example inputs",
            )
        self.with_nan = [f"output{path}" for path in paths_with_nan(expected)]
        kept = tensors.tree_map_only(torch.Tensor, torch.clone, expected)
        kept_given = tensors.tree_map_only(torch.Tensor, torch.clone, given) if self.gated else kept
        if second is None:
            self.compare_call(eager, case, f"{case.name}, second call")
        elif self.compare_constant(eager, second):
            return False
        try:
            self.compare(f"{case.name}, after a second call", "output", kept_given, given, exact=True)
        except VerificationError:
            # eager's own outputs may be views of its state, which the second call has changed
            if self.gated and are_equal(kept, expected):
                raise
            self.compare(f"{case.name}, after a second call", "output", expected, given)
        return True

    def compare_constant(self, eager: Callable[..., object], case: InputCase) -> str:
        """Compare a call with constant inputs; return the reason if the result is no evidence, else an empty string."""
        try:
            return self.compare_call(eager, case, case.name)[0]
        except VerificationError:
            if reason := why_undecided(self.new_eager(), case):
                return reason
            raise

    def compare(self, case: str, part: str, expected: object, given: object, *, exact: bool = False) -> None:
        # `exact`: also numbers of a gated recipe must agree
        expected_leaves, expected_spec = tensors.tree_flatten_with_path(expected)
        given_leaves, given_spec = tensors.tree_flatten_with_path(given)
        if plain_form(expected_spec) != plain_form(given_spec):
            found = f"eager {structure_of(expected)}, lowered {structure_of(given)}"
            raise self.mismatch(f"the lowered method's {part}s have another structure than eager's", case, found)
        marks = self.rounding.outputs if part == "output" else self.rounding.inputs
        pairs = zip(expected_leaves, given_leaves, marks, strict=True)
        for (path, expected_leaf), (_, given_leaf), rounded in pairs:
            tolerance = self.tolerance.after(rounded)
            name = path_text(path) if part == "input" else tensors.keystr(path)
            wide = self.judged_tolerance(f"{part}{name}", expected_leaf, tolerance)
            if difference := self.leaf_difference(expected_leaf, given_leaf, tolerance):
                place = f"{case}, {f'{part} `{name}`' if name else f'its only {part}'}"
                if self.gated and not exact:
                    if not (gross := self.leaf_difference(expected_leaf, given_leaf, wide)):
                        self.gaps.setdefault(f"{part}{name}" if part == "output" else name, difference)
                        continue
                    difference = gross
                what = "the lowered method computes other numbers than the eager module"
                error = self.mismatch(what, place, difference)
                error.is_rounding = tolerance.quantized and has_rounding_errors(expected_leaf, given_leaf)
                raise error

    def judged_tolerance(self, place: str, expected: object, tolerance: Tolerance) -> Tolerance:
        """Return the tolerance of a gated recipe, by the greatest size of an output: constant inputs may give zeros."""
        if not self.gated or not isinstance(expected, torch.Tensor) or not has_inexact_dtype(expected):
            return replace(tolerance, judged=True)
        size = self.sizes[place] = max(root_mean_square(expected), self.sizes.get(place, 0.0))
        return replace(tolerance, judged=True, atol=max(tolerance.atol, GROSS * size))

    def measure(self, expected: object, given: object) -> None:
        leaves, _ = tensors.tree_flatten_with_path(expected)
        pairs = zip(leaves, tensors.tree_leaves(given), self.rounding.outputs, strict=True)
        for (path, one), other, marks in pairs:
            if isinstance(one, torch.Tensor) and one.is_contiguous() and not other.is_contiguous():
                layouts = list(one.stride()), list(other.stride())
                self.strides.setdefault(f"output{tensors.keystr(path)}", layouts)
            if isinstance(one, float):
                one, other = torch.tensor(one), torch.tensor(other)
            if isinstance(one, torch.Tensor) and (one.dtype.is_floating_point or one.dtype.is_complex):
                name = f"output{tensors.keystr(path)}"
                self.measured.setdefault(name, Measured()).add(one, other)
                self.allowed[name] = allowed_text(self.tolerance.after(marks), marks)

    def all_allowed(self) -> str:
        """Return the tolerances of the floating-point outputs, with names where there are several."""
        texts = list(dict.fromkeys(self.allowed.values()))
        if len(texts) == 1:
            return texts[0]
        names = [[f"`{name}`" for name, own in self.allowed.items() if own == text] for text in texts]
        return "; ".join(f"{', '.join(own)} {text}" for own, text in zip(names, texts, strict=True))

    def mismatch(self, what: str, place: str, found: str) -> MismatchError:
        # an unstable order of equal numbers is a likelier cause of a difference than an engine
        order = "" if self.case is None else why_undecided(self.new_eager(), self.case, order_alone=True)
        usual = ASSUMED_HINT if "Runtime assertion failed" in found else self.hint
        hint = f"{order}: make the outputs independent of that order; else {usual}" if order else usual
        error = MismatchError(what, where=f"{self.where}, {place}", found=found, hint=hint)
        error.case = self.case
        return error

    def leaf_difference(self, expected: object, given: object, tolerance: Tolerance) -> str:
        if isinstance(expected, torch.Tensor) and isinstance(given, torch.Tensor):
            if expected.dtype != given.dtype:
                return f"dtype {dtype_name(expected.dtype)} in eager, {dtype_name(given.dtype)} lowered"
            if expected.shape != given.shape:
                return f"shape {list(expected.shape)} in eager, {list(given.shape)} lowered"
            return self.number_difference(expected, given, tolerance)
        if type(expected) is not type(given):
            return f"`{type(expected).__name__}` in eager, `{type(given).__name__}` lowered"
        if isinstance(expected, float):
            return self.number_difference(torch.tensor(expected), torch.tensor(given), tolerance)
        return "" if expected == given else f"{expected!r} in eager, {given!r} lowered"

    def number_difference(self, expected: torch.Tensor, given: torch.Tensor, tolerance: Tolerance) -> str:
        if is_same_tensor(expected, given):
            return ""
        difference, _ = number_difference(expected, given, tolerance)
        plain = replace(tolerance, quantized=False)
        if not difference and tolerance.quantized and wrong_places(expected, given, plain).any():
            self.most_steps = max(self.most_steps, steps_apart(expected, given)[0])
        return difference


@dataclass(slots=True)
class Trials:
    """The comparisons on generated inputs."""

    sides: Sides
    maker: InputMaker
    cases: list[str]
    notes: list[str] = field(default_factory=list)
    left_out: int = 0
    generated: int = 0

    def run(self, *, has_equal: bool) -> None:
        before = len(self.cases)
        for sized in self.maker.sized():
            self.try_one(sized, self.sides.refuse_case)
        if len(self.cases) == before and self.maker.needs_random():
            random = self.maker.random()
            self.try_one(GeneratedInputs(random.name, (random,)), self.sides.refuse_case)
        for constant in self.maker.constant(has_equal=has_equal):
            self.try_one(constant, self.sides.refuse_constant)
        for limits in self.maker.limits():
            self.try_one(limits, self.sides.refuse_constant)

    def try_one(self, inputs: GeneratedInputs, refuse: Callable[[InputCase], str]) -> None:
        refusal = "the range has a single size"
        for case in inputs.tries:
            try:
                refusal = refuse(case)
            except VerificationError as error:
                error.hint = "; ".join(filter(None, [inputs.cure, error.hint]))
                raise
            if not refusal:
                self.cases.append(case.name)
                self.generated += not inputs.is_extra
                return
        if inputs.apart:
            for each in inputs.apart:
                self.try_one(each, refuse)
            return
        self.generated += bool(inputs.tries) and not inputs.is_extra
        self.left_out += bool(inputs.tries) and not inputs.is_extra
        self.notes.append(f"{inputs.what}: left out ({refusal})")


def compare_real(sides: Sides, real: Sequence[InputCase]) -> None:
    for case in real:
        if refusal := sides.refuse_case(case):
            raise SampleError(
                "the eager module cannot run a real input",
                where=f"{sides.where}, {case.name}",
                found=refusal,
                hint="correct the inputs of `verify-inputs`: unlike random inputs, real inputs are never left out",
            )


def compare_cases(sides: Sides, maker: InputMaker, real: Sequence[InputCase]) -> tuple[list[str], Trials]:
    """Compare both sides on all inputs; return the names of the cases, and the trials of generated inputs."""
    # The order: the example inputs; a second call with other inputs, or with the same inputs if the method has state;
    # real inputs; generated inputs. Generated inputs that eager refuses are left out and noted.
    example, second = maker.example, maker.second()
    try:
        is_second = second is not None and sides.compare_two_calls(example, second)
        if not is_second:
            sides.compare_two_calls(example)
    except VerificationError as error:
        if agrees_off_the_fast_path(sides, example):
            error.hint = FAST_PATH_HINT
        raise
    cases = [example.name, second.name if is_second and second is not None else f"{example.name}, second call"]
    compare_real(sides, real)
    cases += [case.name for case in real]
    trials = Trials(sides, maker, cases)
    trials.run(has_equal=is_second)
    return cases, trials


def verify_method(
    model: CapturedModel,
    method: CapturedMethod,
    lowered: Callable[..., object],
    reset: Callable[[], object],
    *,
    recipe: str,
    tolerance: Tolerance,
    real: Sequence[InputCase] = (),
    gated: bool = False,
) -> Verification:
    """Compare a lowered method with eager, which runs in copies of the module: the captured model stays unchanged."""
    # `reset` gives `lowered` the state of a freshly loaded model.
    # `gated`: the metric of the model judges the recipe, so that differences of numbers become notes.
    rounding = rounding_of(method.program)
    where = f"model `{model.name}`, recipe `{recipe}`, method `{method.name}`"
    hint = mismatch_hint(model, recipe)
    sides = Sides(where, eager_factory(model, method), lowered, reset, tolerance, rounding, hint, gated)
    maker = InputMaker(method)
    try:
        cases, trials = compare_cases(sides, maker, real)
    except VerificationError as error:
        if drawing := random_operators(method.program):
            raise refusal_of_draws(drawing, where, is_training(model)) from error
        if has_hidden_state(method.program, sides.new_eager, maker.example):
            error.hint = HIDDEN_STATE_HINT
        raise
    notes = trials.notes
    if sides.most_steps:
        notes.append(
            f"outputs differ by up to {sides.most_steps:.2g} of a step of 8 bits, as the method rounds to integers"
        )
    notes += [f"`{path}` of eager has NaN on the example inputs: NaN on both sides is equal" for path in sides.with_nan]
    notes += [
        f"`{path}` has the strides {given} that `torch.export` predicts, where eager has {expected}: if callers use"
        " `view`, return the output `.contiguous()`"
        for path, (expected, given) in sides.strides.items()
    ]
    outputs = {path: measured.metrics() for path, measured in sides.measured.items()}
    for path, gap in sides.gaps.items():
        text = f"by up to {outputs[path].largest_error:.2g}" if path in outputs else f"in {gap}"
        notes.append(f"`{path}` differs from eager {text}: the metric judges the recipe")
    return Verification(tuple(cases), tuple(notes), outputs, trials.left_out, trials.generated, sides.all_allowed())


def mismatch_hint(model: CapturedModel, recipe: str) -> str:
    if is_training(model):
        return TRAINING_HINT
    table = "`rtol` and `atol`" if recipe == "default" else f"`recipes.{recipe}.rtol` and `.atol`"
    return (
        f"if the difference is acceptable, raise {table} in the hook's table; if not, leave out backends to find the"
        " backend that causes the difference, and report it there"
    )


def allowed_text(tolerance: Tolerance, marks: Marks) -> str:
    """Format a tolerance, for example `rtol 0.04, atol 0.004 (bfloat16)`."""
    return f"rtol {tolerance.rtol:g}, atol {tolerance.atol:g}" + (f" ({', '.join(sorted(marks))})" if marks else "")


def structure_of(value: object) -> str:
    text = str(tensors.tree_map(lambda leaf: LeafMark(), value))
    return text if len(text) <= 300 else f"{text[:300]} …"


def agrees_off_the_fast_path(sides: Sides, case: InputCase) -> bool:
    if not torch.backends.mha.get_fastpath_enabled():
        return False
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        sides.compare_two_calls(case)
    except VerificationError:
        return False
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
    return True
