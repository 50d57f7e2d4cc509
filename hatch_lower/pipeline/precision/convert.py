"""The captured model in the precision of a recipe: ready programs that are lowered in place of the model's own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import torch
from torch.fx import GraphModule, Node

from hatch_lower.config.precision_file import PRECISION_FILE
from hatch_lower.config.settings import ModelSettings, Recipe, Settings
from hatch_lower.errors import CaptureError, LowerError, SampleError, nearest
from hatch_lower.events import Event, Reporter, stage
from hatch_lower.exir.graph.operators import torch_operator
from hatch_lower.exir.graph.state import constant_placeholders
from hatch_lower.exir.graph.surgery import all_nodes
from hatch_lower.exir.lowering.process_state import process_restored
from hatch_lower.pipeline.capture import CapturedMethod, CapturedModel
from hatch_lower.pipeline.check_data import example_tensors
from hatch_lower.pipeline.exceptions import describe_exception, refuse_out_of_memory, trim_lines
from hatch_lower.pipeline.model_build import ConvertedModel, Examples
from hatch_lower.pipeline.output_order import Layouts, in_eagers_order, note_layouts
from hatch_lower.pipeline.precision.halves import in_half, innermost_module, is_in
from hatch_lower.pipeline.precision.integer_weights import LEAST_ELEMENTS
from hatch_lower.pipeline.precision.quantize import Scheme, quantized, trial_of
from hatch_lower.pipeline.precision.state import InitialState, changed_storages, state_names
from hatch_lower.pipeline.random_inputs import InputCase, example_case
from hatch_lower.pipeline.real_inputs import read_real_inputs
from hatch_lower.runtime.numbers import Tolerance, is_gross, number_difference
from hatch_lower.runtime.torch_private.operators import OpOverload, base_name

HALVES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
BITS = {"int8": 8, "int8-weights": 8, "int4-weights": 4}
SMALL = {**{name: {half} for name, half in HALVES.items()}, **{name: {torch.int8, torch.uint8} for name in BITS}}
ENGINES = ("executorch", "onnxruntime")

SHOWN = 5  # layers in a line

Cases = Mapping[str, Sequence[InputCase]]  # by method


def convert_recipes(
    settings: Settings,
    model: ModelSettings,
    recipes: Sequence[Recipe],
    source: CapturedModel,
    reporter: Reporter,
    *,
    examples: Examples | None,
) -> dict[str, ConvertedModel]:
    """Return the model in the precisions of recipes, by the names of recipes with another precision than float32.

    `examples`: the model's own inputs and outputs, or `None` if no setting needs outputs.

    Raises `CaptureError` where the errors of a converted model are as large as the numbers, and no metric judges.
    """
    wanted = [recipe for recipe in recipes if recipe.precision != "float32"]
    cases = calibration_cases(model, wanted, source, settings.root, reporter)
    if model.calibrate and not cases:
        unused = '`calibrate` is not used: no recipe of the model has `precision = "int8"`'
        reporter.report(Event("inputs", "note", model.name, detail=unused))
    conversion = Conversion(source, model, cases)
    found = {}
    for recipe in wanted:
        with stage(reporter, "convert", model.name, recipe.name) as describe:
            kept = model.kept.get(recipe.name, ())
            found[recipe.name] = with_examples(conversion.converted(recipe, kept), compared=examples is not None)
            if examples is not None and recipe.verify and not model.metric:
                refuse_gross_errors(examples, found[recipe.name].examples, recipe, f"model `{model.name}`")
            describe(f"{recipe.precision}, {kept_text(kept)}" if kept else recipe.precision)
        for line in conversion.notes(recipe):
            reporter.report(Event("convert", "note", model.name, recipe.name, detail=line))
    return found


def left_text(layers: Mapping[str, str]) -> str:
    named = [f"`{path}` ({kind})" for path, kind in itertools.islice(layers.items(), SHOWN)]
    rest = len(layers) - len(named)
    return f"{', '.join(named)} and {rest} more" if rest else ", ".join(named)


def kept_text(kept: Sequence[str]) -> str:
    return f"float32 in {', '.join(f'`{path}`' for path in kept)}"


def refuse_gross_errors(examples: Examples, converted: Examples | None, recipe: Recipe, where: str) -> None:
    """Refuse a conversion that went wrong: a precision moves numbers by a small share."""
    (expected, _), (given, _) = examples, converted or ({}, "")
    for name, tensor in expected.items():
        method, part, _ = name.split("/")
        if part != "output" or name not in given or not tensor.dtype.is_floating_point:
            continue
        if is_gross(tensor, given[name], Tolerance().atol):
            raise CaptureError(
                f"the precision `{recipe.precision}` changes the numbers of `{method}` by more than half of their size",
                where=f"{where}, recipe `{recipe.name}`",
                found=number_difference(tensor, given[name], Tolerance())[0],
                hint="name a `metric`, which then judges the recipe, or another precision",
            )


def with_examples(model: CapturedModel, *, compared: bool) -> ConvertedModel:
    """Return a converted model with its outputs for the example inputs, and with outputs laid out as they are."""
    if not compared:
        return ConvertedModel(model)
    layouts: dict[str, Layouts] = {}
    with process_restored():
        examples = example_tensors(model, partial(note_layouts, layouts))
        return ConvertedModel(in_eagers_order(model, layouts), examples)


def calibration_cases(
    model: ModelSettings, recipes: Iterable[Recipe], source: CapturedModel, root: Path, reporter: Reporter
) -> Cases:
    """Return the calls of `calibrate` by method, for recipes with integers; without such recipes nothing is read.

    Raises `SampleError` for inputs that are not finite numbers.
    """
    if not model.calibrate or all(recipe.precision != "int8" for recipe in recipes):
        return {}
    with stage(reporter, "inputs", model.name) as describe:
        cases = {name: real.cases for name, real in read_real_inputs(model, source, root, "calibrate").items()}
        describe(", ".join(f"{len(each)} of `{name}` for calibration" for name, each in cases.items()))
    for case in itertools.chain.from_iterable(cases.values()):
        given = [leaf for leaf in case.leaves() if isinstance(leaf, torch.Tensor)]
        if given and not any(leaf.numel() for leaf in given):
            raise SampleError(
                "the inputs for calibration are empty, and activations then have no range",
                where=f"model `{model.name}`, `calibrate`, {case.name}",
                hint="leave the call out, or give inputs with values",
            )
        for leaf in case.leaves():
            if isinstance(leaf, torch.Tensor) and leaf.dtype.is_floating_point and not leaf.isfinite().all():
                raise SampleError(
                    "an input for calibration has NaN or infinity, and activations then have no range",
                    where=f"model `{model.name}`, `calibrate`, {case.name}",
                    hint="leave the call out, or replace the numbers",
                )
    return cases


class Conversion:
    """Converts a model to the precisions of recipes; recipes with equal precisions share a converted model."""

    def __init__(self, source: CapturedModel, model: ModelSettings, cases: Cases) -> None:
        self._source = source
        self._model = model
        self._cases = cases
        self._changed = changed_storages(method.program for method in source.methods)
        self._made: dict[tuple[object, ...], CapturedModel] = {}

    def converted(self, recipe: Recipe, kept: tuple[str, ...]) -> CapturedModel:
        """Return the model in a recipe's precision, with the modules `kept` in float32.

        Raises `CaptureError` where the model, or this environment, does not allow the precision.
        """
        refuse_unknown_modules(kept, self._source, recipe.name)
        key = (recipe.precision, engine_of(recipe), kept)
        if key not in self._made:
            methods = tuple(self._method(method, recipe, kept) for method in self._source.methods)
            small = SMALL[recipe.precision]
            if count_values(methods, small) <= count_values(self._source.methods, small):
                targets = {node.target for method in methods for node in program_calls(method)}
                operators = sorted(str(target) for target in targets if isinstance(target, OpOverload))
                raise CaptureError(
                    f"the precision `{recipe.precision}` changes no operation of the model",
                    where=f"model `{self._model.name}`, recipe `{recipe.name}`",
                    found=f"operators: {', '.join(f'`{name}`' for name in operators)}",
                    hint=self._hint_for_nothing(recipe, kept),
                )
            self._made[key] = CapturedModel(self._source.name, methods, None)
        return self._made[key]

    def _hint_for_nothing(self, recipe: Recipe, kept: tuple[str, ...]) -> str:
        if kept:
            return f"`{PRECISION_FILE}` keeps all layers in float32: remove modules from the list of this recipe"
        if recipe.precision == "int8" and not self._cases and any(map(count_convolutions, self._source.methods)):
            return "name inputs in `calibrate`, without which convolutions stay in float32; or remove `precision`"
        layers = "convolutions, linear layers and `nn.Embedding`"
        if recipe.precision.endswith("-weights"):
            layers += f", with {LEAST_ELEMENTS:,} weights or more,"
        return f"{layers} can have another precision; remove `precision`"

    def trial(self, method: CapturedMethod, recipe: Recipe) -> Callable[[tuple[str, ...]], GraphModule]:
        """Return a function from paths of modules in float32 to a module that computes in a recipe's precision."""
        if half := HALVES.get(recipe.precision):
            return lambda kept: in_half(method.program, half, kept, self.state_of(method)).module()
        return trial_of(method, self._scheme(method, recipe, ()), self._cases.get(method.name, ()))

    def state_of(self, method: CapturedMethod) -> frozenset[str]:
        """Return the names of the method's tensors that calls of any method change."""
        return state_names(method.program, self._changed)

    def notes(self, recipe: Recipe) -> Iterator[str]:
        """Yield a line on the layers of each method that stay in float32, and advice on the calibration of a recipe."""
        kept = self._model.kept.get(recipe.name, ())
        for method in self.converted(recipe, kept).methods:
            if left := self._layers_left(method, recipe, kept):
                yield f"`{method.name}` in float32: {left_text(left)}, which `{recipe.precision}` leaves out"
        if recipe.precision != "int8":
            return
        for method in self._source.methods:
            count = len(self._cases.get(method.name, ()))
            convolutions = count_convolutions(method)
            if count == 1:
                yield f"`calibrate` has a single call of `{method.name}`: the ranges of activations may be too narrow"
            elif not count and convolutions:
                yield (
                    f"{convolutions} convolution{'' if convolutions == 1 else 's'} of `{method.name}` in float32:"
                    " without calls of the method in `calibrate` only linear layers and embeddings have integers"
                )

    def _layers_left(self, method: CapturedMethod, recipe: Recipe, kept: tuple[str, ...]) -> dict[str, str]:
        """Return the operators of layers with weights in float32, by the paths of modules."""
        constants = constant_placeholders(method.program)
        is_int8 = recipe.precision == "int8"
        found: dict[str, str] = {}
        for node in program_calls(method):
            operator = torch_operator(node.target)
            kind = base_name(operator) if isinstance(operator, OpOverload) else ""
            if kind not in WITH_WEIGHTS or is_in(node, kept):
                continue
            if is_int8 and str(node.target).startswith(CONVOLVING) and not self._cases.get(method.name):
                continue  # the line about missing calls names their number
            # integers of a smaller weight save nothing
            least = 0 if is_int8 and kind != "embedding" else LEAST_ELEMENTS
            weights = [source.meta["val"] for source in node.all_input_nodes if source in constants]
            if any(each.dtype is torch.float32 and each.dim() > 1 and each.numel() >= least for each in weights):
                found[innermost_module(node) or node.name] = kind
        return found

    def _method(self, method: CapturedMethod, recipe: Recipe, kept: tuple[str, ...]) -> CapturedMethod:
        where = f"model `{self._model.name}`, recipe `{recipe.name}`, method `{method.name}`"
        try:
            with process_restored():
                if half := HALVES.get(recipe.precision):
                    state = self.state_of(method)
                    return called_once(replace(method, program=in_half(method.program, half, kept, state)), state)
                refuse_without_torchao(where)
                refuse_no_examples(method, where)
                return quantized(method, self._scheme(method, recipe, kept), self._cases.get(method.name, ()))
        except LowerError:
            raise
        except Exception as error:
            refuse_out_of_memory(error)
            raise CaptureError(
                f"the method cannot have the precision `{recipe.precision}`",
                where=where,
                found=trim_lines(describe_exception(error)),
                hint="keep the module at fault in float32 with `precision.toml`, or remove `precision`",
            ) from error

    def _scheme(self, method: CapturedMethod, recipe: Recipe, kept: tuple[str, ...]) -> Scheme:
        """Return the quantization of a method; operations whose weights change in calls stay in float32."""
        state, activations = self.state_of(method), recipe.precision == "int8"
        changing: set[str] = set()
        if activations:  # PT2E leaves out modules, and no single operations
            calls = program_calls(method)
            changing = {innermost_module(node) for node in calls if reads_weight_in(node, method, state)}
        if "" in changing:
            raise CaptureError(
                "the weight of an operation changes in calls, and the operation belongs to no module",
                where=f"model `{self._model.name}`, method `{method.name}`",
                hint="move the operation into a module of its own, which then stays in float32",
            )
        exact = tuple(sorted({*kept, *changing}))
        return Scheme(BITS[recipe.precision], activations, exact, state, engine_of(recipe))


def called_once(method: CapturedMethod, state: Collection[str]) -> CapturedMethod:
    """Return a converted method after a call with its example inputs, which fails where an operator has no halves."""
    if method.has_examples:
        module = method.program.module()
        initial = InitialState(module, state)
        args, kwargs = example_case(method).copied()
        try:
            with torch.no_grad():
                module(*args, **kwargs)
        finally:
            initial.restore()
    return method


def reads_weight_in(node: Node, method: CapturedMethod, names: Collection[str]) -> bool:
    """Return whether an operation with a weight reads a constant of the given names."""
    constants = constant_placeholders(method.program)
    return is_quantizable(node) and any(
        source in constants and constants[source].target in names for source in node.all_input_nodes
    )


def refuse_no_examples(method: CapturedMethod, where: str) -> None:
    if not method.has_examples:
        raise CaptureError(
            "the exported program has no example inputs, and quantization calls the program",
            where=where,
            hint="export the program with `torch.export.export`, which keeps the example inputs",
        )


def refuse_unknown_modules(kept: Iterable[str], source: CapturedModel, recipe: str) -> None:
    """Refuse paths in `precision.toml` that are no modules of the model."""
    stacks = (node.meta.get("nn_module_stack") or {} for method in source.methods for node in program_calls(method))
    known = {path for stack in stacks for path, _ in stack.values() if path}
    for path in kept:
        if path not in known:
            raise CaptureError(
                f"`{PRECISION_FILE}` names a module that the model lacks",
                where=f"model `{source.name}`, recipe `{recipe}`",
                found=f"`{path}`; {nearest(path, known)}",
                hint=f"search again: `hatch-lower precision {source.name} --recipe {recipe} --write`",
            )


def engine_of(recipe: Recipe) -> str:
    """Return the backend of a recipe for which integers are chosen, or empty; XNNPACK takes no other integers."""
    names = [choice.name for choice in recipe.backends]
    return next((name for name in ENGINES if name in names), "")


def program_calls(method: CapturedMethod) -> Iterator[Node]:
    return (node for node in all_nodes(method.program.graph_module) if node.op == "call_function")


WITH_WEIGHTS = frozenset(
    {
        *("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "linear"),
        *("embedding", "embedding_bag", "lstm", "gru", "rnn_tanh", "rnn_relu"),
    }
)
CONVOLVING = ("aten.conv1d.", "aten.conv2d.", "aten.conv3d.")


def count_convolutions(method: CapturedMethod) -> int:
    return sum(str(node.target).startswith(CONVOLVING) for node in program_calls(method))


def is_quantizable(node: Node) -> bool:
    return str(node.target).startswith((*CONVOLVING, "aten.linear.", "aten.embedding."))


def count_values(methods: Iterable[CapturedMethod], dtypes: Collection[torch.dtype]) -> int:
    """Return the number of values of the given dtypes in all graphs."""
    values = (node.meta.get("val") for method in methods for node in all_nodes(method.program.graph_module))
    return sum(isinstance(value, torch.Tensor) and value.dtype in dtypes for value in values)


def refuse_without_torchao(where: str) -> None:
    if find_spec("torchao") is None:
        raise CaptureError(
            "the library `torchao`, which quantizes models, is not installed",
            where=where,
            hint="name `hatch-lower[quantize]` in `[build-system] requires`",
        )
