"""A load in a process that has as many files open as it may: the error says so, and not that a file is damaged."""

from __future__ import annotations

import gc
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hatch_lower import load
from hatch_lower.driver.opened_wheel import open_wheel
from hatch_lower.errors import LowerError, ProgramError, reading_hint
from hatch_lower.exir.program._program import to_edge_transform_and_lower
from hatch_lower.pipeline.save import save_program

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings(r"ignore:.isinstance\(treespec, LeafSpec\):FutureWarning"),
]

SAYS = "raise the limit (`ulimit -n`)"
MOST = 12  # descriptors that a load may have open at once


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(40, 40)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.linear(x).relu()
        return result


def partitioners(backend: str) -> list[Any]:
    if backend == "aoti":
        from hatch_lower.backends.aoti.compile import AotiBackend as Chosen
    elif backend == "executorch":
        from hatch_lower.backends.executorch.compile import ExecutorchBackend as Chosen  # type: ignore[assignment]
    elif backend == "onnxruntime":
        from hatch_lower.backends.onnxruntime.compile import OnnxruntimeBackend as Chosen  # type: ignore[assignment]
    elif backend == "openvino":
        from hatch_lower.backends.openvino.compile import OpenvinoBackend as Chosen  # type: ignore[assignment]
    else:
        return []
    return [Chosen.partitioner({})]


@contextmanager
def free_descriptors(count: int) -> Iterator[None]:
    """Leave so many descriptors below a low limit."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = [os.open(os.devnull, os.O_RDONLY)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 20, before[1]))
    try:
        with suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        for descriptor in taken[:count]:
            os.close(descriptor)
        del taken[:count]
        yield
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize("backend", ["aoti", "executorch", "onnxruntime", "openvino", "portable"])
def test_a_load_at_the_limit_of_open_files_says_so_and_works_below(backend: str, tmp_path: Path) -> None:
    x = torch.randn(3, 40)
    lowered = to_edge_transform_and_lower(torch.export.export(Net(), (x,)), partitioner=partitioners(backend))
    folder = save_program(lowered.to_executorch(), tmp_path / "program")
    torch.testing.assert_close(load(folder)(x), Net()(x))  # the engine is imported
    refusals: list[str] = []
    results: list[Tensor] = []
    while not results and len(refusals) < MOST:
        gc.collect()
        with free_descriptors(len(refusals)):
            try:
                results.append(load(folder)(x))
            except LowerError as error:
                refusals.append(str(error))
    assert refusals
    assert [text for text in refusals if SAYS not in text] == []
    torch.testing.assert_close(*results, Net()(x))


def test_a_wheel_at_the_limit_of_open_files_is_not_at_fault(tmp_path: Path) -> None:
    with free_descriptors(0), pytest.raises(ProgramError) as caught:
        open_wheel(tmp_path / "net-1.0-py3-none-any.whl")
    assert SAYS in str(caught.value)


def test_other_errors_keep_their_advice() -> None:
    assert reading_hint("No space left on device", "make room") == "make room"
