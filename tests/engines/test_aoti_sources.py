"""The C++ sources of the `aoti` backend: nothing in the sources or their objects depends on this machine's folders."""

from __future__ import annotations

import re
import sysconfig
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from support.older import UNSIGNED_PRODUCTS
from support.quantized import conv_net, quantized
from torch.export import ExportedProgram

from hatch_lower.backends.aoti.compile import compiling, generate_all
from hatch_lower.backends.aoti.configuration import parse_options
from hatch_lower.backends.aoti.library import (
    INTERFACE,
    KERNELS,
    LAST_ERROR,
    WRAPPER,
    CppSource,
    CppSources,
    choose_processor,
    compilation,
    without_prints,
)
from hatch_lower.errors import BackendError
from hatch_lower.exir.lowering.convert import to_edge
from hatch_lower.runtime.torch_private.inductor import interface_path
from hatch_lower.runtime.torch_private.unimported import tried_versions

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


@UNSIGNED_PRODUCTS
def test_code_over_integers_holds_no_address_of_the_process() -> None:
    """For a convolution that is a function of inductor's own, its text stands in the code, with where it lies."""
    module, inputs = conv_net()
    program = torch.export.export(quantized(module, inputs), inputs, strict=False)
    edge = to_edge(program, keep=[torch.ops.aten.linear.default, torch.ops.aten.conv2d.default])
    text = "".join(source.text for source in sources_of(edge, {"isa": "x86-64-v4-vnni"}))
    assert "qconv" in text
    assert re.findall(r"0x[0-9a-f]{6,}", text) == []


def test_a_library_keeps_the_text_of_its_last_error_and_prints_none() -> None:
    macro = """\
#define CONVERT_EXCEPTION_TO_ERROR_CODE(...)    \\
  try {                                         \\
    __VA_ARGS__                                 \\
  } catch (const std::exception& e) {           \\
    std::cerr << "Error: " << e.what() << '\\n'; \\
    return AOTI_RUNTIME_FAILURE;                \\
  }                                             \\
  return AOTI_RUNTIME_SUCCESS;
int other;
"""
    found = without_prints(macro)
    assert found.startswith(LAST_ERROR + "#define")
    assert "hatch_lower_last_error = e.what();" in found
    assert "std::cerr" not in found
    later = without_prints(f"AOTInductorGetLastError {macro}")
    assert "hatch_lower" not in later
    assert "std::cerr" not in later
    assert "AOTInductorGetLastError(" in without_prints(interface_path().read_text())


def test_code_is_for_the_named_processors_only() -> None:
    isa = parse_options({"isa": "x86-64-v3"}).isa
    for given in ("march=x86-64-v3", "march=native"):  # with inductor's setting, and without
        assert choose_processor(["O3", given], isa) == ["O3", "march=x86-64-v3"]
    with compiling(parse_options({"isa": "x86-64-v3"})) as (compiler, _):
        command = compiler.compile_command(KERNELS, "kernels.o", optimize=True)
    assert [word for word in command if word.startswith(("-march", "-mcpu", "-mtune"))] == ["-march=x86-64-v3"]


@pytest.mark.parametrize(
    ("flags", "found"),
    [
        ([], "no `-march`"),
        (["march=native", "mtune=native"], "`-march=native`, `-mtune=native`"),
        (["march=x86-64-v4"], "`-march=x86-64-v4`"),
        (["mcpu=native"], "`-mcpu=native`"),
    ],
)
def test_flags_for_unknown_processors_are_refused(flags: list[str], found: str) -> None:
    with pytest.raises(BackendError) as caught:
        choose_processor(["O3", *flags], parse_options({"isa": "x86-64-v3"}).isa)
    assert str(caught.value) == (
        "inductor's flags for the C++ compiler leave open for which processors the code is\n"
        f"  where: the instruction set `x86-64-v3`\n  found: {found}\n"
        f"  to do: build with a version of torch that hatch-lower was tried with: {', '.join(tried_versions())}"
    )


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
