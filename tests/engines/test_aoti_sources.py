"""The C++ sources of the `aoti` backend: nothing in the sources or their objects depends on this machine's folders."""

from __future__ import annotations

import re
import sysconfig
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from support.quantized import conv_net, quantized
from torch.export import ExportedProgram

from hatch_lower.backends.aoti.compile import compiling, generate_all
from hatch_lower.backends.aoti.configuration import parse_options
from hatch_lower.backends.aoti.library import INTERFACE, KERNELS, WRAPPER, CppSource, CppSources, compilation
from hatch_lower.exir.lowering.convert import to_edge

pytestmark = pytest.mark.torch

TORCH = str(Path(torch.__file__).parent)


class Sine(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sin() + 1


def sources_of(program: ExportedProgram, isa: Mapping[str, object] = {}) -> list[CppSource]:
    options = parse_options(isa)
    with compiling(options):
        ((_, generated),) = generate_all([program], options)
    return CppSources().of(generated)


@pytest.fixture(scope="module")
def sources() -> Mapping[str, str]:
    program = to_edge(torch.export.export(Sine(), (torch.ones(8),), strict=False))
    return {source.name: source.text for source in sources_of(program)}


def test_sources_name_no_folder_of_torch_or_python(sources: Mapping[str, str]) -> None:
    assert [*sources] == [INTERFACE, WRAPPER, KERNELS]
    for text in sources.values():
        assert TORCH not in text
        assert sysconfig.get_path("include") not in text


def test_code_over_integers_holds_no_address_of_the_process() -> None:
    """For a convolution that is a function of inductor's own, its text stands in the code, with where it lies."""
    module, inputs = conv_net()
    program = torch.export.export(quantized(module, inputs), inputs, strict=False)
    edge = to_edge(program, keep=[torch.ops.aten.linear.default, torch.ops.aten.conv2d.default])
    text = "".join(source.text for source in sources_of(edge, {"isa": "x86-64-v4-vnni"}))
    assert "qconv" in text
    assert re.findall(r"0x[0-9a-f]{6,}", text) == []


def test_an_object_does_not_show_where_torch_lies(sources: Mapping[str, str], tmp_path: Path) -> None:
    (tmp_path / "elsewhere").symlink_to(TORCH)
    with compiling(parse_options({})) as (compiler, folder):
        command, _ = compilation(compiler, CppSource(WRAPPER, sources[WRAPPER]), folder)
        compiler.run(command, folder)
        here = (folder / command[-1]).read_bytes()
        moved = [word.replace(TORCH, str(tmp_path / "elsewhere")) for word in command]
        assert moved != command
        compiler.run(moved, folder)
        assert (folder / command[-1]).read_bytes() == here
