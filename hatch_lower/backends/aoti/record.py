"""Inductor's Python half: a partition in, C++ source out, with the step that would run the compiler replaced."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule

from hatch_lower.backends.aoti.prepare import ORIGIN, AotiCopy
from hatch_lower.backends.aoti.regions import contain_errors
from hatch_lower.errors import BackendError
from hatch_lower.exir.graph.tensors import span_length
from hatch_lower.runtime.torch_private import inductor

CONSTANT = re.compile(r"[cp]\d+")
# the end of a Python function's text, which inductor writes into a message where no operator stands behind a call
ADDRESS = re.compile(r" at 0x[0-9a-f]+>")
# a call of libtorch whose error inductor forgets to look at: that of a scatter that reduces
UNCHECKED = re.compile(r"^( *)(aoti_torch_\w+_out\(.*\));$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Generated:
    """The code that inductor wrote for a partition."""

    # C++ that owns the memory and calls the kernels
    wrapper: str
    # C++ of the kernels; empty if every operation is a call of libtorch
    kernels: str
    # the constants that the code knows, by their names in `AotiCopy.attributes`; equal ones are known once
    bound: frozenset[str]
    # kernel or libtorch call to the indices of its operations
    origins: Mapping[str, tuple[int, ...]]


def generate(copied: AotiCopy) -> Generated:
    with recording() as records, torch.no_grad():
        try:
            inductor.lower(GraphModule(copied.attributes, copied.graph), copied.fakes)
        except Exception as error:
            if (ours := find_backend_error(error)) is not None:
                raise ours from None
            message = "\n".join(str(error).strip().splitlines()[:12])
            raise BackendError(
                "inductor could not lower a partition",
                found=f"{type(error).__name__}: {message}",
                hint="leave the operation out with the backend's option `exclude`",
            ) from error
    if any(isinstance(size, torch.SymInt) and size.node.expr.is_number for fake in copied.fakes for size in fake.shape):
        raise BackendError(
            "inductor compiled a partition of dynamic sizes for the sizes of its example only",
            hint="leave the operation out with the backend's option `exclude`, or export it with fixed sizes",
        )
    if len(records) != 1:
        raise BackendError(
            "inductor generated no code, or several pieces of code, for a partition",
            found=f"{len(records)} pieces",
            hint="leave the operation out with the backend's option `exclude`",
        )
    return records[0]


def find_backend_error(error: BaseException | None) -> BackendError | None:
    # inductor wraps our own errors into its own
    while error is not None and not isinstance(error, BackendError):
        error = error.__cause__ or error.__context__
    return error


@contextmanager
def recording() -> Iterator[list[Generated]]:
    """Collect the arguments of inductor's C++ compile step instead of compiling, and prevent copies of constants."""
    records: list[Generated] = []

    def record(graph: object, wrapper: str, kernels: str, extern: str | None, **_: object) -> str:
        refuse_extern(extern)
        wrapper = UNCHECKED.sub(r"\1AOTI_TORCH_ERROR_CODE_CHECK(\2);", ADDRESS.sub(">", wrapper))
        records.append(Generated(wrapper, contain_errors(kernels), bound_constants(graph), read_origins(graph)))
        return "recorded"

    with inductor.compiling_with(record, reserve_alike):
        yield records


def reserve_alike(constant: torch.Tensor) -> torch.Tensor:
    # inductor copies every constant, which would fill memory with stand-ins
    return constant.new_empty((span_length(constant),)).as_strided(constant.size(), constant.stride())


def refuse_extern(extern: str | None) -> None:
    # operations that native code cannot call alone need a second file, and Python at run time
    if not extern:
        return
    names = sorted(set(re.findall(r'"target":\s*"([^"]+)"', extern)))
    raise BackendError(
        "inductor has no native call for an operation of a partition",
        found=", ".join(names) or "unnamed operations",
        hint="leave the operation out with the backend's option `exclude`",
    )


def bound_constants(graph: Any) -> frozenset[str]:
    for name in graph.constants:
        if not CONSTANT.fullmatch(name):
            raise BackendError(
                "inductor made a constant of its own, which a weight-free library cannot hold",
                found=f"`{name}`, {graph.constants[name].dtype}, shape {tuple(graph.constants[name].shape)}",
                hint="leave the operation that makes the constant out with the backend's option `exclude`",
            )
    return frozenset(graph.constants)


def read_origins(graph: Any) -> dict[str, tuple[int, ...]]:
    # inductor's own provenance; names end in the number of the call in the generated code (`cpp_fused_relu_0:2`)
    origins = {
        node.name: node.meta["custom"][ORIGIN]
        for node in graph.module.graph.nodes
        if isinstance(node.meta.get("custom"), dict) and ORIGIN in node.meta["custom"]
    }
    return {
        kernel: tuple(sorted({origins[name] for name in names if name in origins}))
        for kernel, names in inductor.nodes_of_kernels().items()
    }
