"""The check of an installed model: its recipes on packaged inputs, compared with eager's packaged outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from hatch_lower.errors import AbsentWeightsError, LowerError, UnavailableError
from hatch_lower.format.arguments import Input, LiteralInput, Special
from hatch_lower.format.manifest import ModelEntry, RecipeEntry
from hatch_lower.format.plan import MethodPlan, Plan, check_agreement, read_plan
from hatch_lower.format.record import OutputMetrics
from hatch_lower.format.tree import Leaf, Tree, leaf_paths
from hatch_lower.runtime.arrays import Array, Arrays, find_arrays
from hatch_lower.runtime.containers import choose_builder, take_apart
from hatch_lower.runtime.devices import place_recipe
from hatch_lower.runtime.executor import Executor
from hatch_lower.runtime.files import MANIFEST, PackagedFolder
from hatch_lower.runtime.leaves import as_dtype, input_leaves, stored_arrays
from hatch_lower.runtime.load import changed_sources, load_in_folder, open_constants, outside_faults, stale_text
from hatch_lower.runtime.loaded import LoadedModel, arrays_of
from hatch_lower.runtime.mapped import ConstantsFile
from hatch_lower.runtime.numbers import MARKS, Measured, Tolerance, has_inexact_dtype, number_difference
from hatch_lower.runtime.selection import DelegateKinds, numpy_reason, refusal_reason


def mark_name(method: str, mark: str, output: int) -> str:
    """Return the name of the tensor whose presence marks how an output was rounded."""
    return f"{method}/{mark}/{output}"


def recipe_method(method: str, recipe: str) -> str:
    """Return the name under which check data have the outputs of a method in a recipe's own precision."""
    return f"{method}@{recipe}"


def tensors_of(tensors: Mapping[str, Array], recipe: str, precision: str) -> Mapping[str, Array]:
    """Return check data with the outputs that a recipe must compute; without outputs where the data lack these."""
    if precision == "float32":
        return tensors
    inputs = {name: tensor for name, tensor in tensors.items() if "/input/" in name}
    suffix = recipe_method("", recipe)
    own = {
        name.replace(suffix, "", 1): tensor
        for name, tensor in tensors.items()
        if name.partition("/")[0].endswith(suffix)
    }
    return {**inputs, **own}


@dataclass(frozen=True, slots=True)
class CheckRow:
    """The result of a method. Without `method`: of a whole recipe; without `recipe`, too: of a model's files."""

    model: str
    recipe: str
    method: str
    status: str  # `ok`, `differs`, `fails`, `damaged`, `absent`, `stale` or `skipped`
    detail: str = ""  # the fault or difference, or the reason for skipping
    # largest absolute difference over all outputs; `None` without a comparison
    largest_error: float | None = None
    tolerance: Tolerance | None = None  # the widest over all outputs
    outputs: Mapping[str, OutputMetrics] = field(default_factory=dict)  # of floating-point outputs, by path
    not_compared: str = ""  # the reason why the build has not compared the recipe with eager
    device: str = ""  # on which the method ran: `cpu`, `cuda:0`

    @property
    def is_wrong(self) -> bool:
        return self.status not in ("ok", "skipped")


def check_packaged_model(
    folder: PackagedFolder,
    model: str,
    recipe: str | None = None,
    tolerance: Tolerance | None = None,
    device: str | None = None,
) -> Iterator[CheckRow]:
    """Run a model's check inputs through its methods, for each recipe or for `recipe`, and compare with eager."""
    # `tolerance`: by default `check`'s own, and a wider tolerance for recipes that a metric has judged
    # `device`: as for `load`; recipes for another device are skipped
    recipes = folder.manifest.models[model].recipes
    for row in check_rows(folder, model, recipe, tolerance, device):
        yield replace(row, not_compared=recipes[row.recipe].not_compared) if row.recipe else row


def check_rows(
    folder: PackagedFolder, model: str, recipe: str | None, tolerance: Tolerance | None, device: str | None
) -> Iterator[CheckRow]:
    # Without torch, NumPy's arrays are used and recipes that need torch are skipped.
    # First every file is compared with its digest and with RECORD; after a difference, no method runs.
    entry = folder.manifest.models[model]
    arrays, kinds = find_arrays(), DelegateKinds()
    faults = list(folder.faults(model)) or list(outside_faults(open_constants(folder, model)))
    if faults:
        for fault in faults:
            status = "absent" if isinstance(fault, AbsentWeightsError) else "damaged"
            yield CheckRow(model, "", "", status, str(fault))
        return
    try:
        if changed := changed_sources(folder, model):
            yield CheckRow(model, "", "", "stale", stale_text(model, changed))
        tensors = read_check_tensors(folder, entry, arrays)
    except LowerError as error:
        yield CheckRow(model, "", "", "damaged", str(error))
        return
    for name in entry.order if recipe is None else (recipe,):
        try:
            files = entry.recipes[name]
            reason = refusal_reason(files, kinds, str(folder.path / MANIFEST))
            wrong = "" if reason is None else contradiction(folder, files)
            if reason is None:
                plan = read_plan(folder.read(files.plan), str(folder.path / files.plan.path))
                placement = place_recipe(files, device, arrays, kinds)
                reason = placement if isinstance(placement, str) else None
                if reason is None and arrays.name == "numpy":
                    reason = numpy_reason(plan, files.imports, kinds)
            if reason is not None:
                status = "fails" if wrong or recipe is not None else "skipped"
                yield CheckRow(model, name, "", status, wrong or f"it cannot run here: {reason}")
                continue
            # digests are compared above
            loaded = load_in_folder(folder, model, name, kinds, verify=False, arrays=arrays, device=device)
        except UnavailableError as error:
            yield CheckRow(
                model, name, "", "skipped" if recipe is None else "fails", f"it cannot run here: {error.found}"
            )
            continue
        except LowerError as error:
            yield CheckRow(model, name, "", "fails", str(error))
            continue
        expected = tensors_of(tensors, name, files.precision)
        # the build's metric has judged the numbers of a recipe in a lower precision
        judged = files.metric is not None and files.precision != "float32"
        used = Tolerance(judged=judged) if tolerance is None else tolerance
        for method in plan.methods:
            status, detail, comparison = check_loaded_method(loaded, plan, method, expected, used, arrays_of(loaded))
            row = CheckRow(model, name, method, status, detail, device=loaded.device)
            yield row if comparison is None else replace(row, **comparison.facts())


def contradiction(folder: PackagedFolder, recipe: RecipeEntry) -> str:
    """Return the contradiction between manifest and plan of a recipe that cannot run here, or an empty string."""
    where = str(folder.path / recipe.plan.path)
    try:
        plan = read_plan(folder.read(recipe.plan), where)
    except LowerError:  # perhaps a plan for a newer hatch-lower
        return ""
    try:
        check_agreement(plan, recipe, where)
    except LowerError as error:
        return str(error)
    return ""


def read_check_tensors(folder: PackagedFolder, entry: ModelEntry, arrays: Arrays) -> Mapping[str, Array]:
    if entry.check is None:
        return {}
    path = folder.locate(entry.check)
    return stored_arrays(ConstantsFile(path, str(path)), str(path), arrays)


def check_loaded_method(
    loaded: LoadedModel | Executor,
    plan: Plan,
    name: str,
    tensors: Mapping[str, Array],
    tolerance: Tolerance,
    arrays: Arrays,
) -> tuple[str, str, MethodComparison | None]:
    """Compare the outputs of a method; return status and detail of its `CheckRow`, and the comparison."""
    # `arrays` are the program's, `tensors` are on the CPU
    # called twice, each time with the packaged state: side effects of the first call show in the second
    method = plan.methods[name]
    if not any(key.startswith(f"{name}/output/") for key in tensors):
        return "skipped", "no packaged check inputs", None
    leaves, reason = input_leaves(name, method, tensors, arrays)
    if reason:
        return "skipped", reason, None
    comparison = MethodComparison(name, method, tensors, tolerance, arrays)
    outputs = take_apart(name, method.outputs, "output")
    first = None
    for call in ("", " of a second call"):
        try:
            args, kwargs = make_call_arguments(method, leaves, arrays)
            loaded.reset()
            results = outputs(loaded.methods[name](*args, **kwargs))
            given = [arrays.on_host(leaf) if isinstance(leaf, arrays.kind) else leaf for leaf in results]
        except Exception as error:  # a delegate, and the classes of containers, may raise anything
            text = str(error) if isinstance(error, LowerError) else f"{type(error).__name__}: {error}"
            return "fails", text, None
        wrong = comparison.difference(given, call)
        if not wrong and first is not None:
            wrong = comparison.difference(first, " after a second call")
        if wrong:
            return "differs", wrong, comparison
        first = given
    return "ok", "", comparison


def make_call_arguments(
    method: MethodPlan, leaves: list[object], arrays: Arrays
) -> tuple[list[object], dict[str, object]]:
    # a method may change its arguments: each call gets its own copies, on the program's device
    copies = iter([copied_leaf(entry, leaf, arrays) for entry, leaf in zip(method.inputs, leaves, strict=True)])
    values = [(parameter, build_tree(parameter.tree, copies.__next__)) for parameter in method.parameters]
    args = [value for parameter, value in values if parameter.kind == "positional"]
    return args, {parameter.name: value for parameter, value in values if parameter.kind == "keyword"}


def copied_leaf(entry: Input, leaf: object, arrays: Arrays) -> object:
    if isinstance(entry, LiteralInput) and isinstance(entry.value, Special):
        return arrays.special(entry.value)
    return arrays.fresh(leaf) if isinstance(leaf, arrays.kind) else leaf


def build_tree(tree: Tree, leaf: Callable[[], Any]) -> object:
    if tree is None or isinstance(tree, Leaf):
        return None if tree is None else leaf()
    children = [build_tree(child, leaf) for child in tree.children]
    match tree.kind:
        case "list":
            return children
        case "tuple":
            return tuple(children)
        case "dict":
            return dict(zip(tree.keys, children, strict=True))
    return choose_builder(tree)(*children)


class MethodComparison:
    def __init__(
        self, name: str, method: MethodPlan, tensors: Mapping[str, Array], tolerance: Tolerance, arrays: Arrays
    ) -> None:
        self.largest_error = 0.0
        self._paths = list(leaf_paths(method.outputs, "output"))
        self._expected = [tensors.get(f"{name}/output/{index}") for index in range(len(self._paths))]
        self._tolerances = [
            tolerance.after([mark for mark in MARKS if mark_name(name, mark, index) in tensors])
            for index in range(len(self._paths))
        ]
        self._arrays = arrays
        self._measured: dict[str, Measured] = {}

    def facts(self) -> dict[str, Any]:
        """Return the fields of a row for the comparison."""
        metrics = {path: measured.metrics() for path, measured in self._measured.items()}
        return {"largest_error": self.largest_error, "tolerance": self.widest(), "outputs": metrics}

    def widest(self) -> Tolerance | None:
        return max(self._tolerances, key=lambda each: (each.rtol, each.atol, each.quantized), default=None)

    def difference(self, given: list[object], call: str) -> str:
        expected = zip(self._paths, self._expected, self._tolerances, strict=True)
        for (path, tensor, tolerance), leaf in zip(expected, given, strict=True):
            if found := self._leaf_difference(path, tensor, leaf, tolerance):
                return f"`{path}`{call}: {found}"
        return ""

    def _leaf_difference(self, path: str, expected: Array, given: Array, tolerance: Tolerance) -> str:
        kind = self._arrays.kind
        if expected is None or not isinstance(given, kind):
            is_same = expected is None and not isinstance(given, kind)  # numbers are not packaged
            return "" if is_same else f"{self._text(given)} instead of {self._text(expected)}"
        name = self._arrays.dtype_name
        expected = as_dtype(expected, name(given), self._arrays)
        if (name(expected), expected.shape) != (name(given), given.shape):
            return f"{self._text(given)} instead of {self._text(expected)}"
        difference, largest = number_difference(expected, given, tolerance)
        self.largest_error = max(self.largest_error, largest)
        if has_inexact_dtype(given):
            self._measured.setdefault(path, Measured()).add(expected, given)
        return difference

    def _text(self, value: object) -> str:
        if isinstance(value, self._arrays.kind):
            return self._arrays.describe(value)
        return "no tensor" if value is None else f"a value of type {type(value).__name__}"
