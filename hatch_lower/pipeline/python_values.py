"""Python numbers and strings in a module's attributes: a method may change such values, a program cannot."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import ExportedProgram

from hatch_lower.errors import CaptureError
from hatch_lower.runtime.module_copy import copy_module
from hatch_lower.runtime.torch_private import trees

SIMPLE = (bool, int, float, str, type(None))


@dataclass(slots=True)
class Change:
    module: torch.nn.Module
    attribute: str
    before: object
    after: object


@contextmanager
def noted_changes(found: dict[tuple[int, str], Change]) -> Iterator[None]:
    """Note in `found` the numbers and strings among modules' attributes that change inside the context."""
    # needed because torch.export restores all attributes
    assign = torch.nn.Module.__setattr__

    def noting(self: torch.nn.Module, name: str, value: Any) -> None:
        old = vars(self).get(name, noting)
        if isinstance(old, SIMPLE) and isinstance(value, SIMPLE):
            found.setdefault((id(self), name), Change(self, name, old, value)).after = value
        assign(self, name, value)

    torch.nn.Module.__setattr__ = noting  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.nn.Module.__setattr__ = assign  # type: ignore[method-assign]


def refuse_counting(
    where: str, method: str, module: torch.nn.Module, changes: Iterable[Change], same_again: Callable[[], bool]
) -> None:
    """Refuse a method if another export, made with the changed values, gives other results."""
    own = set(map(id, module.modules()))  # excludes torch's own modules
    changed = [change for change in changes if id(change.module) in own and change.before != change.after]
    if not changed:
        return
    try:
        for change in changed:
            setattr(change.module, change.attribute, change.after)
        depends = not same_again()
    except Exception:  # the method fails with the changed values; no evidence about the example's call
        depends = False
    finally:
        for change in changed:
            setattr(change.module, change.attribute, change.before)
    if not depends:
        return
    first = changed[0]
    name = next((path for path, child in module.named_modules() if child is first.module), "")
    raise CaptureError(
        f"method `{method}` changes `{name}.{first.attribute}`, a Python value that influences the results"
        if name
        else f"method `{method}` changes `{first.attribute}`, a Python value that influences the results",
        where=where,
        found=f"{first.before!r} before a call and {first.after!r} after the call; a program keeps the first value",
        hint=f'keep the value in a buffer, and change the buffer in place: `self.register_buffer("{first.attribute}",'
        f" torch.tensor({first.before!r}))`, `self.{first.attribute}.add_(1)`",
    )


def same_results(
    first: ExportedProgram, second: ExportedProgram, args: tuple[object, ...], kwargs: Mapping[str, object]
) -> bool:
    """Return whether two exported programs agree on a second call, which starts from the first program's state."""
    one, other = copy_module(first.module()), copy_module(second.module())

    def call(module: torch.nn.Module) -> list[object]:
        given, named = copy.deepcopy((args, dict(kwargs)))
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(0)
            return trees.tree_leaves(module(*given, **named))

    call(one)
    state = {**dict(one.named_parameters()), **dict(one.named_buffers())}
    with torch.no_grad():
        for name, tensor in (*other.named_parameters(), *other.named_buffers()):
            tensor.copy_(state[name])
    return all(is_same(*pair) for pair in zip(call(one), call(other), strict=True))


def is_same(one: object, other: object) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.shape == other.shape and torch.allclose(one, other, equal_nan=True)
    return bool(one == other)
