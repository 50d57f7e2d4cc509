"""Models in the measuring process: plans and check inputs are read before the models are loaded.

Calls use the check inputs, or inputs of other sizes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hatch_lower.format.arguments import LiteralInput, TensorInput
from hatch_lower.format.constants import holds_state
from hatch_lower.format.expression import evaluate_size
from hatch_lower.format.plan import MethodPlan, read_plan
from hatch_lower.frozen import Frozen
from hatch_lower.runtime.check import read_check_tensors
from hatch_lower.runtime.files import MANIFEST, PackagedFolder, open_folder
from hatch_lower.runtime.leaves import as_dtype, literal_value
from hatch_lower.runtime.load import load_in_folder
from hatch_lower.runtime.selection import DelegateKinds, import_modules, refusal_reason
from hatch_lower.runtime.timing import Timing
from hatch_lower.runtime.torch_arrays import ARRAYS

if TYPE_CHECKING:
    from torch import Generator, Tensor

SEED = 0
GUESS = 2  # size of a dynamic dimension without a packaged example, within its range


def recipe_refusal(path: Path, model: str, recipe: str) -> str | None:
    entry = open_folder(path).manifest.models[model].recipes[recipe]
    return refusal_reason(entry, DelegateKinds(), str(path / MANIFEST))


class Opened(Frozen):
    """A model with its plan and check inputs, not yet loaded."""

    folder: PackagedFolder
    methods: Mapping[str, MethodPlan]
    tensors: Mapping[str, Any]
    has_state: bool  # in a delegate

    def changes(self, method: str) -> bool:
        """Return whether a call may change its inputs, or state."""
        plan = self.methods[method]
        return bool(plan.input_mutations or plan.mutations or self.has_state)


def open_model(path: str, model: str, recipe: str) -> Opened:
    folder = open_folder(Path(path))
    entry = folder.manifest.models[model]
    files = entry.recipes[recipe]
    plan = read_plan(folder.read(files.plan), str(folder.path / files.plan.path))
    return Opened(
        folder, plan.methods, read_check_tensors(folder, entry, ARRAYS), any(map(holds_state, plan.delegates))
    )


def load_opened(opened: Opened, request: Mapping[str, Any], timing: Timing | None = None) -> Any:
    import_modules(request["imports"], str(opened.folder.path / MANIFEST), installed=True)
    return load_in_folder(
        opened.folder, request["model"], request["recipe"], DelegateKinds(timing=timing), verify=False
    )


def check_tensors(request: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the packaged check inputs for the calls of all sides."""
    found = (open_model(path, request["model"], request["recipe"]).tensors for path in request["inputs"])
    return next((tensors for tensors in found if tensors), {})


def input_values(
    name: str, method: MethodPlan, tensors: Mapping[str, Tensor], wanted: Mapping[str, int]
) -> list[object]:
    """Return the flat inputs of a call of the method `name`, from its check inputs, which may be incomplete.

    `wanted` maps the names of dynamic dimensions to sizes; other sizes are those of the check inputs.
    """
    import torch

    stored: dict[int, Tensor] = {}
    for index, entry in enumerate(method.inputs):
        tensor = tensors.get(f"{name}/input/{index}")
        if isinstance(entry, TensorInput) and tensor is not None:
            stored[index] = as_dtype(tensor, entry.dtype, ARRAYS)
    asked = {key: wanted[symbol.name] for key, symbol in method.symbols.items() if symbol.name in wanted}
    sizes = {**guessed_sizes(method), **example_sizes(method, stored), **asked}
    generator = torch.Generator().manual_seed(SEED)
    values: list[object] = []
    for index, entry in enumerate(method.inputs):
        if isinstance(entry, TensorInput):
            shape = [evaluate_size(size, sizes) for size in entry.shape]
            stride = [evaluate_size(step, sizes) for step in entry.stride]
            example = stored.get(index)
            if example is None or list(example.shape) != shape:
                example = random_tensor(getattr(torch, entry.dtype), shape, example, generator)
            values.append(with_strides(example, stride))
        elif isinstance(entry, LiteralInput):
            values.append(literal_value(entry.value))
        else:
            values.append(evaluate_size(entry.expr, sizes))
    return values


def with_strides(tensor: Tensor, stride: Sequence[int]) -> Tensor:
    """Return a tensor's values with other strides; a dimension of stride 0 takes its first value."""
    import torch

    value = torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype)
    single = tuple(slice(None) if step else slice(1) for step in stride)
    value[single].copy_(tensor[single])
    return value


def guessed_sizes(method: MethodPlan) -> dict[str, int]:
    bounds = {key: (symbol.min, symbol.max) for key, symbol in method.symbols.items()}
    return {key: max(low, GUESS if high is None else min(GUESS, high)) for key, (low, high) in bounds.items()}


def example_sizes(method: MethodPlan, stored: Mapping[int, Tensor]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for index, tensor in stored.items():
        entry = method.inputs[index]
        pairs = zip(entry.shape, tensor.shape, strict=True) if isinstance(entry, TensorInput) else ()
        sizes |= {expression: size for expression, size in pairs if isinstance(expression, str)}
    return sizes


def random_tensor(dtype: object, shape: Sequence[int], example: Tensor | None, generator: Generator) -> Tensor:
    """Return normally distributed floats; integers are the example's values, so that indices stay valid, or zeros."""
    import torch

    assert isinstance(dtype, torch.dtype)
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(dtype)
    if dtype.is_complex:
        return torch.randn(shape, generator=generator, dtype=torch.complex64).to(dtype)
    if example is None or not example.numel():
        return torch.zeros(shape, dtype=dtype)
    places = torch.randint(0, example.numel(), tuple(shape), generator=generator)
    return example.reshape(-1)[places]
