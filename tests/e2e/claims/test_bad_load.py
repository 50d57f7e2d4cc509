"""What is damaged or misused at run time is an error of ours: never a crash, never a wrong answer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.installed import Installed
from support.scenarios import unpack

import hatch_lower
from hatch_lower.errors import InputError, ProgramError

pytestmark = [pytest.mark.isolated, pytest.mark.slow, pytest.mark.torch]

RECIPES = {"dynamic": ["default"], "mixed": ["default", "portable"], "two_methods": ["default", "portable"]}


@pytest.fixture
def installed(
    built: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], Installed]:
    """Unpacks a scenario's wheel where `importlib.metadata` finds it."""

    def unpacked(name: str) -> Installed:
        site = unpack(built(name), tmp_path / "site")
        monkeypatch.syspath_prepend(site)
        return Installed(site)

    return unpacked


def load_everything(name: str) -> None:
    """Load every recipe with every digest checked, and run what is loaded."""
    for recipe in RECIPES[name]:
        model = hatch_lower.load(name, recipe=recipe, verify=True)
        if name == "two_methods":
            model.prefill(torch.tensor([[1, 2, 3, 4]]))


@pytest.mark.parametrize("name", RECIPES)
def test_damage_to_any_file(installed: Callable[[str], Installed], name: str) -> None:
    package = installed(name)
    load_everything(name)
    for path in package.payload():
        if path.endswith("check.safetensors"):
            continue  # not read to run a model
        file = package.site / path
        whole = file.read_bytes()
        for damaged in damages(whole):
            # Never written in place: this process has the whole one mapped, code too.
            file.unlink()
            if damaged is not None:
                file.write_bytes(damaged)
            with pytest.raises(ProgramError) as caught:
                load_everything(name)
            assert file.name in str(caught.value)
            file.unlink(missing_ok=True)
            file.write_bytes(whole)
    load_everything(name)


def damages(whole: bytes) -> list[bytes | None]:
    """Return the file cut short, emptied, longer, with one bit changed here and there, and missing."""
    flips = []
    for place in sorted({0, len(whole) // 3, len(whole) // 2, len(whole) - 1}):
        flipped = bytearray(whole)
        flipped[place] ^= 1
        flips.append(bytes(flipped))
    return [whole[: len(whole) // 2], b"", whole + b"\0", *flips, None]


@pytest.mark.parametrize("part", ["manifest", "plan", "debug"])
def test_a_newer_schema(installed: Callable[[str], Installed], part: str) -> None:
    package = installed("dynamic")
    endings = {"manifest": "/manifest.json", "plan": "/default.json", "debug": "/default.debug.json"}
    path = next(path for path in package.payload() if path.endswith(endings[part]))
    value = package.read(path)
    value["schema"] = 999
    package.rewrite(path, json.dumps(value).encode())
    with pytest.raises(ProgramError, match="needs a newer hatch-lower"):
        hatch_lower.load("dynamic").debug_map("forward")


def test_an_unknown_model_lists_what_is_installed(installed: Callable[[str], Installed]) -> None:
    installed("dynamic")
    with pytest.raises(ProgramError) as caught:
        hatch_lower.load("dynamik")
    assert "did you mean `dynamic`?" in str(caught.value)


def test_an_unknown_recipe_lists_what_there_is(installed: Callable[[str], Installed]) -> None:
    installed("mixed")
    with pytest.raises(ProgramError) as caught:
        hatch_lower.load("mixed", recipe="portabel")
    assert "did you mean `portable`?" in str(caught.value)


BIAS = torch.zeros(5)
WRONG_CALLS = {
    "too few": ((), {"bias": BIAS, "scale": 2.0}),
    "too many": ((torch.zeros(3, 6), torch.zeros(3, 6)), {"bias": BIAS, "scale": 2.0}),
    "an unknown keyword": ((torch.zeros(3, 6),), {"bias": BIAS, "scale": 2.0, "skale": 1.0}),
    "a missing keyword": ((torch.zeros(3, 6),), {"scale": 2.0}),
    "not a tensor": (([[0.0] * 6] * 3,), {"bias": BIAS, "scale": 2.0}),
    "dtype": ((torch.zeros(3, 6, dtype=torch.float64),), {"bias": BIAS, "scale": 2.0}),
    "rank": ((torch.zeros(6),), {"bias": BIAS, "scale": 2.0}),
    "static size": ((torch.zeros(3, 7),), {"bias": BIAS, "scale": 2.0}),
    "below the range": ((torch.zeros(0, 6),), {"bias": BIAS, "scale": 2.0}),
    "above the range": ((torch.zeros(17, 6),), {"bias": BIAS, "scale": 2.0}),
    "another literal": ((torch.zeros(3, 6),), {"bias": BIAS, "scale": 3.0}),
}


@pytest.mark.parametrize("case", WRONG_CALLS)
def test_a_call_that_was_not_exported(installed: Callable[[str], Installed], case: str) -> None:
    installed("dynamic")
    model = hatch_lower.load("dynamic")
    args, kwargs = WRONG_CALLS[case]
    with pytest.raises(InputError) as caught:
        model(*args, **kwargs)
    assert "forward" in str(caught.value)


@pytest.mark.parametrize(
    "x",
    [
        torch.zeros(4, 8, dtype=torch.float16),
        torch.zeros(4, 8, 1),
        torch.zeros(4, 9),
        torch.zeros(65, 8),
        torch.zeros(4, 8, device="meta"),
    ],
    ids=["dtype", "rank", "static size", "dynamic size", "device"],
)
def test_native_code_never_sees_a_wrong_input(installed: Callable[[str], Installed], x: torch.Tensor) -> None:
    installed("mixed")
    model = hatch_lower.load("mixed", recipe="default")
    with pytest.raises(InputError):
        model(x, flip=torch.tensor(True))


def test_native_code_gets_the_strides_that_it_was_compiled_for(installed: Callable[[str], Installed]) -> None:
    installed("mixed")
    torch.manual_seed(2)
    x = torch.randn(8, 4).t()
    native, portable = (hatch_lower.load("mixed", recipe=recipe) for recipe in ("default", "portable"))
    try:
        got = native(x, flip=torch.tensor(True))
    except InputError:
        return  # refusing is as good as restriding
    torch.testing.assert_close(got["out"], portable(x, flip=torch.tensor(True))["out"], rtol=1e-4, atol=1e-5)
