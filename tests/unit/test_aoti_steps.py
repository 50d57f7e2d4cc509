"""Compilations of the `aoti` backend that other machines make: the same objects, the same libraries."""

from __future__ import annotations

import subprocess
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import torch
from torch.export import ExportedProgram

from hatch_lower.backends.aoti.compile import AotiBackend, compiling
from hatch_lower.backends.aoti.configuration import parse_options
from hatch_lower.backends.aoti.library import Source, compilation
from hatch_lower.exir.backend.compile_spec_schema import CompileSpec
from hatch_lower.exir.backend.steps import Step
from hatch_lower.exir.lowering.convert import to_edge

pytestmark = pytest.mark.torch

SPECS = parse_options({}).to_specs()
TORCH = str(Path(torch.__file__).parent)


class Sine(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sin() + 1


class Wanted(Exception):  # noqa: N818 - it is no error
    pass


@pytest.fixture(scope="module")
def program() -> ExportedProgram:
    return to_edge(torch.export.export(Sine(), (torch.ones(8),), strict=False))


@pytest.fixture(scope="module")
def steps(program: ExportedProgram) -> Mapping[str, Step]:
    """Return what is asked for, by name; nothing is compiled."""
    seen: list[Step] = []

    def find(steps: Sequence[Step], specs: Sequence[CompileSpec]) -> Sequence[bytes | None]:
        assert list(specs) == SPECS
        seen.extend(steps)
        raise Wanted

    with pytest.raises(Wanted):
        AotiBackend.preprocess_in_steps([program, program], [SPECS, SPECS], find)
    assert len({step.name for step in seen}) == len(seen)  # equal sources are one step
    return {step.name: step for step in seen}


def test_a_step_says_nothing_of_where_it_is_made(steps: Mapping[str, Step]) -> None:
    assert [*steps] == ["interface.cpp", "wrapper.cpp", "kernels.cpp"]
    for step in steps.values():
        text = f"{step.components}{step.text}"
        assert TORCH not in text
        assert sysconfig.get_path("include") not in text
        assert {"compiler", "command"} <= step.components.keys()
        assert AotiBackend.step_of(step.name, step.text, SPECS) == step
    assert "-O3" in steps["kernels.cpp"].components["command"]
    assert "-O3" not in steps["wrapper.cpp"].components["command"]


def test_a_library_of_objects_of_other_machines_is_the_same(
    program: ExportedProgram, steps: Mapping[str, Step], monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = {name: AotiBackend.run_step(step, SPECS) for name, step in steps.items()}
    local = AotiBackend.preprocess(program, SPECS)

    def find(steps: Sequence[Step], specs: Sequence[CompileSpec]) -> Sequence[bytes | None]:
        return [objects[step.name] for step in steps]

    commands: list[Sequence[str]] = []
    run = subprocess.run

    def noted(command: Sequence[str], **options: object) -> object:
        commands.append(command)
        return run(command, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(subprocess, "run", noted)
    (result,) = AotiBackend.preprocess_in_steps([program], [SPECS], find)
    assert result == local
    assert not [command for command in commands if "-c" in command]


def test_an_object_does_not_show_where_torch_lies(steps: Mapping[str, Step], tmp_path: Path) -> None:
    (tmp_path / "elsewhere").symlink_to(TORCH)
    with compiling(parse_options({})) as (compiler, folder):
        source = Source("wrapper.cpp", steps["wrapper.cpp"].text)
        command, _ = compilation(compiler, source, folder)
        compiler.run(command, folder)
        here = (folder / command[-1]).read_bytes()
        moved = [word.replace(TORCH, str(tmp_path / "elsewhere")) for word in command]
        assert moved != command
        compiler.run(moved, folder)
        assert (folder / command[-1]).read_bytes() == here
