"""A method as a model of a server: a call takes and returns NumPy arrays by name, and joins requests in a batch."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from packaging.version import InvalidVersion, Version

import hatch_lower
from hatch_lower.errors import InputError, ProgramError, nearest
from hatch_lower.format.arguments import LiteralInput, Special, SymbolInput, TensorInput
from hatch_lower.format.plan import MethodPlan
from hatch_lower.format.served import FACTS, ServedMethod, ServedTensor, read_served
from hatch_lower.runtime.check import build_tree
from hatch_lower.runtime.containers import take_apart
from hatch_lower.runtime.files import read_bytes
from hatch_lower.runtime.loaded import LoadedModel, arrays_of, loaded_plan
from hatch_lower.runtime.serving.tensors import output_positions
from hatch_lower.runtime.texts import in_library, in_numpy

Array = np.ndarray[Any, Any]
Arrays = Mapping[str, Array]


class NamedCall:
    """A loaded method, called with arrays by name. Several threads may call at once."""

    def __init__(self, loaded: LoadedModel, method: str, inputs: Sequence[str], outputs: Sequence[str]) -> None:
        plan = loaded_plan(loaded)
        if plan is None or method not in plan.methods:
            raise ProgramError(
                f"the model `{loaded.name}` has no lowered method `{method}`",
                found="an editable install that runs eagerly" if plan is None else nearest(method, plan.methods),
                hint="install the wheel from which the server's files were written",
            )
        self._name, self._inputs, self._outputs = loaded.name, inputs, outputs
        self._arrays = arrays_of(loaded)
        self._plan: MethodPlan = plan.methods[method]
        self._call = loaded.methods[method]
        self._leaves = take_apart(method, self._plan.outputs, "output")
        self._positions = output_positions(self._plan)

    def __call__(self, given: Arrays) -> dict[str, Array]:
        """Return the outputs by name for the inputs by name.

        Raises:
            InputError: for a missing or unknown input, or for arrays that the method refuses.
            CallError: for a failure of an engine.
        """
        if given.keys() != set(self._inputs):
            raise InputError(
                f"model `{self._name}` takes the inputs {names_in_quotes(self._inputs)}",
                found=names_in_quotes(sorted(given)),
                hint="send each input once, by its name",
            )
        tensors = iter([given[name] for name in self._inputs])
        leaves = iter([self._leaf(entry, tensors) for entry in self._plan.inputs])
        values = [(each, build_tree(each.tree, leaves.__next__)) for each in self._plan.parameters]
        results = self._leaves(
            self._call(
                *(value for each, value in values if each.kind == "positional"),
                **{each.name: value for each, value in values if each.kind == "keyword"},
            )
        )
        pairs = zip(self._outputs, self._positions, strict=True)
        return {name: in_numpy(results[position], self._arrays) for name, position in pairs}

    def _leaf(self, entry: object, tensors: Any) -> object:
        if isinstance(entry, LiteralInput):
            return self._arrays.special(entry.value) if isinstance(entry.value, Special) else entry.value
        array = next(tensors)
        if isinstance(entry, SymbolInput):
            return int(array.item()) if array.size == 1 and array.dtype == np.int64 else array
        assert isinstance(entry, TensorInput)
        # torch takes no memory that cannot be written to
        return in_library(np.require(array, requirements=["C", "W"]), self._arrays)


class MethodCaller:
    """A method as a model of a server: ranks as the server has them, and joined requests."""

    def __init__(self, served: ServedMethod, loaded: LoadedModel) -> None:
        names = ([tensor.name for tensor in tensors] for tensors in (served.inputs, served.outputs))
        self.served = served
        self._named = NamedCall(loaded, served.method, *names)

    def call(self, given: Arrays) -> dict[str, Array]:
        """Return the outputs by name for the inputs by name; errors are those of `NamedCall`."""
        inputs = {tensor.name: tensor for tensor in self.served.inputs}
        found = self._named(
            {name: lowered_rank(array, inputs[name]) if name in inputs else array for name, array in given.items()}
        )
        return {tensor.name: lifted_rank(found[tensor.name], tensor) for tensor in self.served.outputs}

    def call_each(self, requests: Sequence[Arrays]) -> list[dict[str, Array] | Exception]:
        """Return the outputs of each request, or the request's own error; requests are joined where possible."""
        if len(requests) > 1 and self._can_join(requests):
            try:
                return list(self._call_joined(requests))
            except Exception:  # of one of the requests: each request is called alone to find out which
                pass
        return [self._call_alone(request) for request in requests]

    def _call_alone(self, request: Arrays) -> dict[str, Array] | Exception:
        try:
            return self.call(request)
        except Exception as error:  # an engine may raise anything
            return error

    def _can_join(self, requests: Sequence[Arrays]) -> bool:
        first = requests[0]
        kinds = {name: (array.dtype, array.shape[1:]) for name, array in first.items()}
        rows = [{array.shape[0] if array.ndim else 0 for array in request.values()} for request in requests]
        return (
            all(len(sizes) == 1 and 0 not in sizes for sizes in rows)
            and sum(map(max, rows)) <= self.served.batch
            and all(
                request.keys() == kinds.keys()
                and all((array.dtype, array.shape[1:]) == kinds[name] for name, array in request.items())
                for request in requests
            )
        )

    def _call_joined(self, requests: Sequence[Arrays]) -> list[dict[str, Array]]:
        name = self.served.inputs[0].name
        ends = np.cumsum([len(request[name]) for request in requests])
        outputs = self.call({name: np.concatenate([each[name] for each in requests]) for name in requests[0]})
        if any(len(array) != ends[-1] for array in outputs.values()):
            raise ValueError("outputs of another number of rows than the inputs")
        parts = {name: np.split(array, ends[:-1]) for name, array in outputs.items()}
        return [{name: rows[position] for name, rows in parts.items()} for position in range(len(requests))]


def lowered_rank(array: Array, tensor: ServedTensor) -> Array:
    if not tensor.lifted:
        return array
    if array.ndim != len(tensor.shape) + 1 or array.shape[-1] != 1:
        raise InputError(
            f"the last dimension of `{tensor.name}` has the size 1, in a tensor of {len(tensor.shape) + 1} dimensions",
            found=f"the shape {list(array.shape)}",
        )
    return array[..., 0]


def lifted_rank(array: Array, tensor: ServedTensor) -> Array:
    return array[..., None] if tensor.lifted else array


def names_in_quotes(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "none"


def open_served(folder: Path, load: Callable[[str, str, str, str], LoadedModel] | None = None) -> MethodCaller:
    """Load the method that `method.json` in a folder describes, from the installed distribution.

    `load` is called like `load_served`, the default.

    Raises:
        ProgramError: if the file is damaged, the distribution is not installed in the version of the file, or the
            recipe cannot run here.
    """
    path = folder / FACTS
    served = read_served(read_bytes(path), str(path))
    loader = load or load_served
    return MethodCaller(served, loader(served.distribution, served.version, served.model, served.recipe))


def load_served(distribution: str, version: str, model: str, recipe: str, *, device: str | None = None) -> LoadedModel:
    """Load a recipe of an installed model; the distribution's version must be the one in the server's files.

    `device` is as for `hatch_lower.load`.
    """
    try:
        found = importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        found = "it is not installed"
    if not is_same_version(found, version):
        raise ProgramError(
            f"the server's files are for `{distribution}` {version}",
            found=found,
            hint=f"run `pip install {distribution}=={version}` in the server's Python, or write the files again",
        )
    return hatch_lower.load(f"{distribution}:{model}", recipe=recipe, device=device)


def is_same_version(found: str, version: str) -> bool:
    """Return whether two texts are the same version: metadata may have `2024.01`, and file names have `2024.1`."""
    try:
        return Version(found) == Version(version)
    except InvalidVersion:
        return found == version
