"""Compilations of the `aoti` backend that other machines make: the same objects, the same libraries."""

from __future__ import annotations

import re
import subprocess
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import torch
from support.quantised import conv_net, quantised
from torch.export import ExportedProgram

from hatch_lower.backends.aoti.compile import AotiBackend, compiling
from hatch_lower.backends.aoti.configuration import parse_options
from hatch_lower.backends.aoti.library import Source, compilation
from hatch_lower.backends.testing.bench import Bench, Exports, Subject
from hatch_lower.backends.testing.programs import all_cases
from hatch_lower.errors import BackendError
from hatch_lower.exir.backend.compile_spec_schema import CompileSpec
from hatch_lower.exir.backend.steps import Step
from hatch_lower.exir.lowering.convert import to_edge
from hatch_lower.exir.lowering.portable import read_partition, write_partition

pytestmark = pytest.mark.torch

SPECS = parse_options({}).to_specs()
TORCH = str(Path(torch.__file__).parent)


class Sine(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sin() + 1


class Wanted(Exception):  # noqa: N818 - it is no error
    pass


def asked_steps(programs: Sequence[ExportedProgram], asked: Sequence[CompileSpec] = SPECS) -> list[Step]:
    """Return the steps of some partitions; nothing is compiled."""
    seen: list[Step] = []

    def find(steps: Sequence[Step], specs: Sequence[CompileSpec]) -> Sequence[bytes | None]:
        assert list(specs) == asked
        seen.extend(steps)
        raise Wanted

    with pytest.raises(Wanted):
        AotiBackend.preprocess_in_steps(programs, [asked for _ in programs], find)
    return seen


@pytest.fixture(scope="module")
def program() -> ExportedProgram:
    return to_edge(torch.export.export(Sine(), (torch.ones(8),), strict=False))


@pytest.fixture(scope="module")
def steps(program: ExportedProgram) -> Mapping[str, Step]:
    seen = asked_steps([program, program])
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


@pytest.mark.parametrize(
    "name", ["../wrapper.cpp", "/tmp/wrapper.cpp", "-fplugin=evil.cpp", "@wrapper.cpp", "other.cpp", ""]
)
def test_a_step_of_another_name_reaches_no_compiler(name: str) -> None:
    with pytest.raises(BackendError, match="a step of the backend `aoti` is no file of a partition"):
        AotiBackend.step_of(name, "int main() {}", SPECS)


def test_code_over_integers_holds_no_address_of_the_process() -> None:
    """For a convolution that is a function of inductor's own, its text stands in the code, with where it lies."""
    module, inputs = conv_net()
    program = torch.export.export(quantised(module, inputs), inputs, strict=False)
    edge = to_edge(program, keep=[torch.ops.aten.linear.default, torch.ops.aten.conv2d.default])
    vnni = parse_options({"isa": "x86-64-v4-vnni"}).to_specs()
    text = "".join(step.text for step in asked_steps([edge], vnni))
    assert "qconv" in text
    assert re.findall(r"0x[0-9a-f]{6,}", text) == []


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


@pytest.mark.parametrize("name", ["symbolic sizes/two", "state/counted", "constants/tied", "shapes/views"])
def test_the_code_of_a_partition_that_has_travelled_is_the_same(name: str, tmp_path: Path) -> None:
    bench = Bench(Subject("aoti"), tmp_path, Exports())
    (case,) = (case for case in all_cases() if case.name == name)
    for request in bench.requests(bench.edge(case)):
        data = write_partition(request.local, contents=False)
        before = asked_steps([request.local.program])
        assert asked_steps([read_partition(data).program]) == before
