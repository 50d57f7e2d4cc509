from __future__ import annotations

from typing import Any

import pytest

from hatch_lower.errors import BackendError
from hatch_lower.exir.backend.options import GivenOptions, is_list_of_strings, is_number_from


def given(options: dict[str, Any]) -> GivenOptions:
    return GivenOptions("demo", options)


def test_options_are_read_and_have_defaults() -> None:
    nothing = given({})
    found = (
        nothing.flag("fuse", True),
        nothing.read("threads", None, is_number_from(1), "a number"),
        nothing.excluded("x"),
    )
    assert found == (True, None, ())
    options = given({"fuse": False, "threads": 2, "exclude": ["aten.b.default", "aten.a.default", "aten.b.default"]})
    assert not options.flag("fuse", True)
    assert options.read("threads", 0, is_number_from(1), "a number") == 2
    assert options.excluded("x") == ("aten.a.default", "aten.b.default")
    nothing.check()
    options.check()


def test_a_default_that_is_given_is_right() -> None:
    options = given({"threads": None})
    assert options.read("threads", None, is_number_from(1), "a number") is None
    options.check()


def test_all_that_is_wrong_is_named_together() -> None:
    options = given({"thread": 1, "fuse": 1, "threads": True, "exclude": "aten.a.default"})
    assert options.flag("fuse", True), "the default, until `check` refuses all"
    assert options.read("threads", 0, is_number_from(0), "a number from 0") == 0
    assert options.excluded("aten.relu.default") == ()
    options.problems.append("and more")
    with pytest.raises(BackendError) as caught:
        options.check()
    assert str(caught.value) == (
        "the options of the backend `demo` are wrong\n"
        "  found: `thread` is no option: did you mean `threads`? known: `exclude`, `fuse`, `threads`\n"
        "    `fuse` must be true or false, but is 1\n"
        "    `threads` must be a number from 0, but is True\n"
        "    `exclude` must be a list of strings such as `aten.relu.default`, but is 'aten.a.default'\n"
        "    and more\n"
        "  to do: correct the options in the recipe's table for the backend `demo`"
    )
    with pytest.raises(BackendError) as caught:
        options.check("read the manual")
    assert caught.value.hint == "read the manual"


@pytest.mark.parametrize(
    ("value", "expected"),
    [([], True), (["a"], True), (("a", "b"), True), ("a", False), (["a", 1], False), ({"a": 1}, False), (None, False)],
)
def test_lists_of_strings(value: Any, expected: bool) -> None:
    assert is_list_of_strings(value) is expected


@pytest.mark.parametrize(
    ("value", "expected"), [(2, True), (3, True), (1, False), (True, False), (2.0, False), ("2", False), (None, False)]
)
def test_numbers(value: Any, expected: bool) -> None:
    assert is_number_from(2)(value) is expected


@pytest.mark.torch
@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        ({}, "cpu"),
        ({"null": "cuda"}, "cuda"),
        (
            {"null": "cuda", "reference": "cpu"},
            "the backends of a recipe compute on different devices\n"
            "  where: recipe `fast`\n"
            "  found: `null` on cuda, `reference` on cpu\n"
            "  to do: give each device its own recipe; operations outside of partitions run on the recipe's device",
        ),
        (
            {"null": "gpu"},
            "the backend `null` computes on an unknown device\n"
            "  where: recipe `fast`\n"
            "  found: 'gpu'\n"
            "  to do: return one of 'cpu', 'cuda' from the classmethod `device(options)`",
        ),
    ],
    ids=["no backend", "one", "two", "unknown"],
)
def test_the_backends_of_a_recipe_have_one_device(
    devices: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hatch_lower.config.tables import BackendChoice
    from hatch_lower.exir.backend.registry import find_backend
    from hatch_lower.pipeline.recipes import device_of

    for name, device in devices.items():
        monkeypatch.setattr(find_backend(name), "device", lambda options, device=device: device)
    choices = [BackendChoice(name) for name in devices]
    if "\n" not in expected:
        assert device_of(choices, "recipe `fast`") == expected
        return
    with pytest.raises(BackendError) as caught:
        device_of(choices, "recipe `fast`")
    assert str(caught.value) == expected


@pytest.mark.torch
@pytest.mark.parametrize("backend", ["executorch", "onnxruntime", "openvino"])
def test_an_engine_of_another_version_is_refused_before_it_is_asked(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hatch_lower.config.settings import Recipe
    from hatch_lower.config.tables import BackendChoice
    from hatch_lower.exir.backend.registry import find_backend
    from hatch_lower.pipeline import recipes
    from hatch_lower.runtime import selection

    pytest.importorskip(backend)
    choice = BackendChoice(backend)
    recipe = Recipe("fast", (choice,))
    (needed,) = find_backend(backend).requirements({})
    recipes.partitioner_of(choice, recipe)
    real = selection.version_here

    def version_here(name: str) -> str | None:
        return "1.0" if name == backend else real(name)

    monkeypatch.setattr(selection, "version_here", version_here)
    with pytest.raises(BackendError) as caught:
        recipes.partitioner_of(choice, recipe)
    assert str(caught.value) == (
        f"the backend `{backend}` needs another version of `{backend}`\n  where: recipe `fast`, backend `{backend}`\n"
        f"  found: it needs {needed}, and 1.0 is installed\n"
        "  to do: name the needed version in `[build-system] requires`"
    )
