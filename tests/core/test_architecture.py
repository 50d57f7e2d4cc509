"""What the SBOM is told by an export: class, parameters and outputs of a model; the tools that backends used."""

from __future__ import annotations

import pytest
import torch
from support.kept_events import Events

from hatch_lower.exir.backend.registry import backend_record, tools_named
from hatch_lower.format.record import Architecture, BackendRecord
from hatch_lower.model import Method, Model
from hatch_lower.pipeline.architecture import architecture_of
from hatch_lower.pipeline.capture import capture_model
from hatch_lower.pipeline.discover import Exports

pytestmark = pytest.mark.torch


class Tied(torch.nn.Module):
    """Two layers with one weight, and one that no method uses."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, 4)
        self.second = torch.nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.unused = torch.nn.Parameter(torch.zeros(3))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        y = self.second(self.first(x))
        return {"all": y, "doubled": torch.cat([y, y]), "best": y.argmax(1)}

    def count(self, x: torch.Tensor) -> tuple[torch.Tensor, int, None]:
        return x.sum(), 3, None


def architecture(exports: Exports) -> Architecture:
    return architecture_of(capture_model("tied", exports, Events(), examples_needed=False))


def test_a_modules_class_and_parameters_and_what_its_methods_return() -> None:
    batch = {"x": {0: torch.export.Dim("batch", max=64)}}
    methods = {
        "forward": Method((torch.zeros(2, 4),), dynamic_shapes=batch),
        "count": Method((torch.zeros(2, 4),)),
    }
    found = architecture(Model(Tied().eval(), methods))
    assert found.name == f"{__name__}.Tied"
    assert found.parameters == 16 + 4 + 4 + 3, "a tied weight counts once"
    assert found.outputs["forward"] == ("float32[batch, 4]", "float32[2*batch, 4]", "int64[batch]")
    assert found.outputs["count"] == ("float32[]", "the value 3", "the value None")


def test_a_ready_programs_class_is_what_torch_noted() -> None:
    program = torch.export.export(Tied().eval(), (torch.zeros(2, 4),), strict=False)
    found = architecture({"forward": program, "again": program})
    assert found.name.endswith("test_architecture.Tied")
    assert found.parameters == 16 + 4 + 4 + 3


def test_a_class_that_torch_made_up_is_not_named() -> None:
    traced = torch.fx.symbolic_trace(torch.nn.Linear(4, 4))
    found = architecture(Model(traced.eval(), {"forward": Method((torch.zeros(2, 4),))}))
    assert (found.name, found.parameters) == ("", 20)


def test_a_size_without_a_name_is_told_as_such() -> None:
    dynamic = {"x": {0: torch.export.Dim.DYNAMIC}}
    found = architecture(Model(Tied().eval(), {"forward": Method((torch.zeros(2, 4),), dynamic_shapes=dynamic)}))
    assert found.outputs["forward"][0] == "float32[?, 4]"


def test_a_backend_comes_from_a_distribution_or_from_this_process() -> None:
    record = backend_record("aoti", {"aoti": "1"})
    assert (record.distribution, record.fingerprint) == ("hatch-lower", {"aoti": "1"})
    assert record.version
    assert backend_record("Own", {}) == BackendRecord("Own", "", "", {})


@pytest.mark.parametrize(
    ("line", "name", "version"),
    [
        ("g++ (Debian 12.2.0-14+deb12u1) 12.2.0", "g++", "12.2.0"),
        ("x86_64-linux-gnu-g++-13 (GCC) 13.2.1 20231011 (Red Hat 13.2.1-4)", "x86_64-linux-gnu-g++-13", "13.2.1"),
        ("GNU ld (GNU Binutils for Debian) 2.40", "GNU ld", "2.40"),
        ("Debian clang version 14.0.6", "Debian clang", "14.0.6"),
        ("LLD 14.0.6 (compatible with GNU linkers)", "LLD", "14.0.6"),
        ("2025.1.0", "library", "2025.1.0"),
    ],
)
def test_a_tool_is_named_as_it_names_itself(line: str, name: str, version: str) -> None:
    assert tools_named([BackendRecord("own", "own", "1.2", {"own": "1.2", "library": line})]) == {name: version}


def test_what_has_no_version_is_no_tool() -> None:
    fingerprint = {"settings": "0f" * 32, "own": "1.2", "compiler": "unknown", "level": "3"}
    assert tools_named([BackendRecord("own", "own", "1.2", fingerprint)]) == {}


def test_an_engine_with_the_name_of_its_backend_is_a_tool() -> None:
    record = BackendRecord("openvino", "hatch-lower", "0.1.0", {"openvino": "2026.4.1", "backend": "14"})
    assert tools_named([record]) == {"openvino": "2026.4.1"}
