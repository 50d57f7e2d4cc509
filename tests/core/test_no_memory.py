"""Calls that memory does not suffice for, as each engine says it: the advice is about memory, and the model goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from hatch_lower.cli.main import main
from hatch_lower.errors import MORE_MEMORY, CallError, reading_hint
from hatch_lower.runtime.refusals import call_failed

HINT = "give the process more memory, or call the method with smaller arguments"
TORCH = (
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate"
    " 655360000 bytes. Error code 12 (Cannot allocate memory)"
)


@pytest.mark.parametrize(
    ("engine", "text", "found"),
    [
        ("aoti", f"{TORCH}\nframe #0: c10::ThrowEnforceNotMet(char const*) + 0x6a (0x7f in libc10.so)\n", TORCH),
        ("executorch", TORCH, TORCH),
        ("onnxruntime", "Failed to allocate memory for requested buffer of size 655360000", ""),
        ("openvino", "Check 'ptr' failed at cpu_memory.cpp:257:\nFailed to allocate 655360000 bytes of memory\n", ""),
    ],
)
def test_a_call_without_enough_memory_says_how_much_was_wanted(engine: str, text: str, found: str) -> None:
    with pytest.raises(CallError) as caught:
        call_failed(engine, "delegate 0 of method `forward`", RuntimeError(text))
    assert caught.value.hint == HINT
    assert caught.value.found == f"RuntimeError: {found or text.strip()}"
    assert "655360000" in caught.value.found


def test_a_program_of_executorch_is_not_at_fault_where_memory_ends(tmp_path: Path) -> None:
    run = pytest.importorskip("hatch_lower.backends.executorch.run")

    def fail(given: Any, clone: bool) -> None:
        raise RuntimeError(TORCH)

    delegate = run.ExecutorchDelegate.__new__(run.ExecutorchDelegate)
    delegate._path, delegate._call = tmp_path / "x.pte", fail
    delegate._map = type("Map", (), {"select": staticmethod(list)})
    with pytest.raises(RuntimeError, match="can't allocate memory"):
        delegate.run([])


@pytest.mark.parametrize(
    "text",
    ["[Errno 12] Cannot allocate memory", "libtorch_cpu.so: failed to map segment from shared object"],
)
def test_a_file_that_there_is_no_memory_for_is_not_at_fault(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert reading_hint(text, "install it again") == MORE_MEMORY

    def fail(*arguments: object) -> None:
        raise ImportError(text)

    monkeypatch.setattr(click.Group, "invoke", fail)
    done = CliRunner().invoke(main, ["inspect"])
    assert done.exit_code == 1
    assert done.output == f"error: a library cannot be loaded\n  found: {text}\n  to do: {MORE_MEMORY}\n"
