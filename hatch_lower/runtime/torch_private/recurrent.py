"""Results of recurrent networks of fake tensors, without a trace of each step.

Torch computes the sizes of such a result by thousands of operations on fake tensors, which takes seconds for some
hundred steps and fixes the number of steps.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch._decomp import decomposition_table
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode

RECURRENT: Sequence[OpOverload[..., Any]] = (
    torch.ops.aten.gru.input,
    torch.ops.aten.lstm.input,
    torch.ops.aten.rnn_relu.input,
    torch.ops.aten.rnn_tanh.input,
)

PATCHING = threading.RLock()  # torch's tables are those of the process
# dispatch keys with kernels in Python that call the operations of each step
KEYS = ("Autograd", "CompositeImplicitAutograd")


@contextmanager
def recurrent_shapes() -> Iterator[None]:
    """Let recurrent networks of fake tensors compute sizes alone, where no trace records the operations."""
    major, minor, *_ = torch.__version__.split(".")
    if (int(major), int(minor)) < (2, 13):  # an LSTM's states have a dimension more there, also in torch's own trace
        yield
        return
    with PATCHING:
        yield from patched()


def patched() -> Iterator[None]:
    table: dict[Any, Callable[..., Any]] = decomposition_table
    decompositions = {op: table[op] for op in RECURRENT if op in table}
    kernels = [(op, key, op.py_kernels[key]) for op in RECURRENT for key in op.py_kernels if key.name in KEYS]
    table.update({op: partial(shaped, each) for op, each in decompositions.items()})
    for op, key, kernel in kernels:
        replace_kernel(op, key, partial(shaped, kernel))
    try:
        yield
    finally:
        table.update(decompositions)
        for op, key, kernel in kernels:
            replace_kernel(op, key, kernel)


def replace_kernel(op: OpOverload[..., Any], key: Any, kernel: Callable[..., Any]) -> None:
    del op.py_kernels[key]
    op.py_impl(key)(kernel)  # forgets the kernels that earlier calls found


def shaped(decomposition: Callable[..., Any], given: torch.Tensor, state: Any, *rest: Any) -> Any:
    """Return results of the right sizes for fake tensors, and else a decomposition's results."""
    if type(given) is not FakeTensor or get_proxy_mode() is not None:
        return decomposition(given, state, *rest)
    states = [state] if isinstance(state, torch.Tensor) else list(state)
    bidirectional, batch_first = rest[-2:]
    batch, steps = given.shape[:2] if batch_first else (given.shape[1], given.shape[0])
    sequence = given.new_empty(steps, batch, states[0].shape[2] * (2 if bidirectional else 1))
    return sequence.transpose(0, 1) if batch_first else sequence, *(each.new_empty(each.shape) for each in states)
