"""Real inputs: from a file or a function to calls of methods, and what is said of those that do not fit."""

from __future__ import annotations

import math
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.export import Dim

from hatch_lower.config.settings import ModelSettings
from hatch_lower.errors import EntryPointError, LowerError, SampleError
from hatch_lower.events import NullReporter
from hatch_lower.model import Method, Model
from hatch_lower.pipeline.capture import CapturedModel, capture_model
from hatch_lower.pipeline.emit.constants import constants_bytes
from hatch_lower.pipeline.real_inputs import RealInputs, read_real_inputs

pytestmark = pytest.mark.torch


class Net(torch.nn.Module):
    def forward(self, pair: tuple[torch.Tensor, torch.Tensor], *, scale: float) -> torch.Tensor:
        return (pair[0] + pair[1]) * scale

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        return tokens.float() * 2


@pytest.fixture(scope="module")
def source() -> CapturedModel:
    rows = Dim("rows", min=2, max=8)
    shapes = {"pair": ({0: rows}, {0: rows}), "scale": None}
    forward = Method(((torch.ones(3, 2), torch.ones(3, 2)),), {"scale": 2.0}, dynamic_shapes=shapes)
    embed = Method((torch.arange(4),))
    return capture_model("net", Model(Net().eval(), {"forward": forward, "embed": embed}), NullReporter())


def read(source: CapturedModel, root: Path, general: str = "", embed: str = "") -> dict[str, RealInputs]:
    """Return the real inputs of all methods, or of a model that has the method `embed` alone."""
    if embed:
        source = replace(source, methods=tuple(method for method in source.methods if method.name == "embed"))
    model = ModelSettings("net", "net:export", "net", (), verify_inputs=general or embed)
    return read_real_inputs(model, source, root)


@pytest.fixture
def function(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], str]:
    """Makes a function, or another value, importable; returns how a setting names it."""

    def name(value: Any) -> str:
        module = types.ModuleType("real_data")
        module.samples = value  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "real_data", module)
        return "real_data:samples"

    return name


def write(root: Path, **tensors: torch.Tensor) -> str:
    (root / "samples.safetensors").write_bytes(constants_bytes(tensors))
    return "samples.safetensors"


def refusal(read: Callable[[], object], kind: type[LowerError] = SampleError) -> str:
    with pytest.raises(kind) as caught:
        read()
    return str(caught.value)


def test_a_file_gives_calls_of_the_methods_that_it_names(source: CapturedModel, tmp_path: Path) -> None:
    file = write(tmp_path, **{"forward/0/pair[0]": torch.ones(5, 2), "forward/0/pair[1]": torch.zeros(5, 2)})
    found = read(source, tmp_path, general=file)
    assert list(found) == ["forward"]
    (case,) = found["forward"].cases
    assert (case.name, case.kwargs, len(case.args[0])) == ("samples.safetensors, case 0", {"scale": 2.0}, 2)  # type: ignore[arg-type]
    assert list(found["forward"].notes()) == []


def test_a_function_gives_tuples_or_dicts(source: CapturedModel, function: Callable[[Any], str]) -> None:
    def samples(method: str) -> Iterator[object]:
        ones = torch.ones(2, 2, requires_grad=True)
        if method == "forward":
            yield ((ones, ones),)
            yield {"pair": (ones, ones)}
            yield {"scale": 2.0, "pair": (ones, ones)}

    found = read(source, Path(), general=function(samples))
    assert [case.name for case in found["forward"].cases] == [f"real_data:samples, call {n}" for n in range(3)]
    assert all(case.kwargs == {"scale": 2.0} for case in found["forward"].cases)
    assert not found["forward"].cases[0].args[0][0].requires_grad  # type: ignore[index]
    assert "embed" not in found


def test_a_function_may_use_the_memory_of_a_call_for_the_next(
    source: CapturedModel, function: Callable[[Any], str]
) -> None:
    def samples(method: str) -> Iterator[object]:
        tokens = torch.zeros(4, dtype=torch.int64)
        for value in (1, 2):
            yield (tokens.fill_(value),)

    cases = read(source, Path(), embed=function(samples))["embed"].cases
    assert [int(case.args[0][0]) for case in cases] == [1, 2]  # type: ignore[index]


def test_other_values_have_another_digest(source: CapturedModel, function: Callable[[Any], str]) -> None:
    def digest(*values: torch.Tensor) -> str:
        given = function(lambda method: [(value,) for value in values])
        return read(source, Path(), embed=given)["embed"].digest()

    one, other = torch.arange(4), torch.arange(4) + 1
    assert digest(one) == digest(one.clone())
    assert len({digest(one), digest(other), digest(one, other), digest(other, one)}) == 4


def test_nan_is_told(source: CapturedModel, tmp_path: Path) -> None:
    odd = torch.full((2, 2), math.nan)
    keys = {f"forward/{case}/pair[{at}]": odd for case in (0, 1) for at in (0, 1)}
    found = read(source, tmp_path, general=write(tmp_path, **keys))["forward"]
    assert list(found.notes()) == [
        "samples.safetensors, case 0 and 1 more contain NaN: outputs that are NaN on both sides count as equal"
    ]


def test_a_file_that_is_not_there_is_refused(source: CapturedModel, tmp_path: Path) -> None:
    assert "the sample file does not exist" in refusal(lambda: read(source, tmp_path, general="samples.safetensors"))


def test_sizes_out_of_range_are_refused(source: CapturedModel, tmp_path: Path) -> None:
    file = write(tmp_path, **{"forward/0/pair[0]": torch.ones(9, 2), "forward/0/pair[1]": torch.ones(9, 2)})
    assert "rows must be at most 8" in refusal(lambda: read(source, tmp_path, general=file))


def test_a_source_without_real_inputs_is_refused(source: CapturedModel, function: Callable[[Any], str]) -> None:
    text = refusal(lambda: read(source, Path(), general=function(lambda method: [])))
    assert text.startswith("no method has real inputs\n  where: model `net`, `verify-inputs`")


ONES = torch.ones(2, 2)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (lambda method: None, "a function of real inputs returned a value that is not a sequence of calls"),
        (lambda method: ONES, "a function of real inputs returned a value that is not a sequence of calls"),
        (lambda method: [], "no method has real inputs"),
        (lambda method: [ONES], "a real input is not a call"),
        (lambda method: {"tokens": ONES}, "a real input is not a call"),
        (lambda method: [()], "no `"),
        (lambda method: [{}], "no `"),
        (lambda method: [(ONES, ONES, ONES)], "3 arguments; the method takes `tokens`"),
        (lambda method: [{"tokens": ONES, "more": 1}], "2 arguments; the method takes `tokens`"),
        (lambda method: [([ONES],)], "an argument has another structure than the example's"),
        (lambda method: [(torch.ones(4),)], "float32"),
        (lambda method: [(torch.arange(4, device="meta"),)], "on the device meta, which must be the CPU"),
        (lambda method: [(torch.arange(4).numpy(),)], "torch.from_numpy(array)"),
        (lambda method: ((torch.arange(4),) for _ in iter(int, 1)), "more than 1000 calls of `embed`"),
        (3, "real inputs must come from a function"),
    ],
)
def test_a_function_that_gives_something_else_is_refused(
    source: CapturedModel, function: Callable[[Any], str], given: Any, said: str
) -> None:
    assert said in refusal(lambda: read(source, Path(), embed=function(given)))


def test_a_function_that_fails_or_is_not_there_is_refused(
    source: CapturedModel, function: Callable[[Any], str]
) -> None:
    text = refusal(lambda: read(source, Path(), general=function(lambda method: [1 / 0])), EntryPointError)
    assert text.startswith("the function gave no real inputs for method `forward`")
    assert "`verify-inputs = real_data:samples`" in text
    assert "to do: the build calls `real_data:samples` with the name of a method as the only argument; yield" in text
    assert "there is no module `no_data`" in refusal(
        lambda: read(source, Path(), general="no_data:samples"), EntryPointError
    )
