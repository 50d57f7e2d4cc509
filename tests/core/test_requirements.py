"""Run-time requirements of the programs against the project's dependencies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from hatch_lower.config.requirements import (
    Addition,
    Extra,
    Unmet,
    distributions_required,
    find_unmet,
    requirements_to_add,
)
from hatch_lower.config.settings import Recipe
from hatch_lower.config.tables import BackendChoice
from hatch_lower.errors import ConfigError

REQUIRED = ("hatch-lower>=0.1", "torch==2.13.*")


@pytest.mark.parametrize(
    ("declared", "required"),
    [
        ("torch==2.13.*", "torch==2.13.*"),
        ("torch==2.13.0", "torch==2.13.*"),
        ("torch>=2.13,<2.14", "torch==2.13.*"),
        ("torch >=2.13.0, <2.14", "torch==2.13.*"),
        ("torch~=2.13.0", "torch==2.13.*"),
        ("torch~=2.13.1", "torch==2.13.*"),
        ("torch>=2.13,<3,!=2.14.*,!=2.15.*,<2.15", "torch==2.13.*"),
        ("torch[opt-einsum]==2.13.*", "torch==2.13.*"),
        ("Hatch_Lower>=0.1", "hatch-lower>=0.1"),
        ("hatch-lower>=0.1.0", "hatch-lower>=0.1"),
        ("hatch-lower~=0.1", "hatch-lower>=0.1"),
        ("hatch-lower>0.1", "hatch-lower>=0.1"),
        ("hatch-lower==0.3.2", "hatch-lower>=0.1"),
        ("hatch-lower==0.1.*", "hatch-lower>=0.1"),
        ("hatch-lower>=0.2,<1", "hatch-lower>=0.1,<1"),
        ("anything", "anything"),
        ("anything>=3", "anything"),
    ],
)
def test_a_declared_dependency_implies(declared: str, required: str) -> None:
    assert find_unmet([required], ["numpy", declared]) == {}


@pytest.mark.parametrize(
    ("declared", "required", "reason"),
    [
        ("numpy", "torch==2.13.*", "not among the dependencies"),
        ("torch", "torch==2.13.*", "`torch` also allows all earlier versions"),
        ("torch>=2.13", "torch==2.13.*", "`torch>=2.13` also allows 2.14"),
        ("torch>=2.12,<2.14", "torch==2.13.*", "`torch<2.14,>=2.12` also allows 2.12"),
        ("torch<2.14", "torch==2.13.*", "`torch<2.14` also allows all earlier versions"),
        ("torch~=2.13", "torch==2.13.*", "`torch~=2.13` also allows 2.14"),
        ("torch>=2.13,<=2.14", "torch==2.13.*", "`torch<=2.14,>=2.13` also allows 2.14"),
        ("torch!=2.12.*", "torch==2.13.*", "`torch!=2.12.*` also allows all earlier versions"),
        ("hatch-lower", "hatch-lower>=0.1", "`hatch-lower` also allows all earlier versions"),
        ("hatch-lower>=0.0.9", "hatch-lower>=0.1", "`hatch-lower>=0.0.9` also allows 0.0.9"),
        ("hatch-lower>=0.1.dev0", "hatch-lower>=0.1", "`hatch-lower>=0.1.dev0` also allows 0.1.dev0"),
        ("hatch-lower<2,>=0.1", "hatch-lower>=0.1,<1", "`hatch-lower<2,>=0.1` also allows 1"),
        (
            'torch==2.13.*; sys_platform == "linux"',
            "torch==2.13.*",
            '`torch==2.13.*; sys_platform == "linux"` holds only where its marker does',
        ),
        (
            "torch @ https://example.org/torch.whl",
            "torch==2.13.*",
            "`torch @ https://example.org/torch.whl` does not say which version it is",
        ),
        (
            "hatch-lower>=0.1",
            "hatch-lower[openvino]>=0.1",
            "`hatch-lower>=0.1` does not ask for the extra `openvino`",
        ),
    ],
)
def test_a_declared_dependency_does_not_imply(declared: str, required: str, reason: str) -> None:
    assert find_unmet([required], [declared]) == {required: Unmet(reason, wide="also allows" in reason)}


@pytest.mark.parametrize(
    ("declared", "required"),
    [
        ("torch<2.13", "torch==2.13.*"),
        ("torch==2.12.*", "torch==2.13.*"),
        ("torch>=2.14", "torch==2.13.*"),
        ("torch!=2.13.*", "torch==2.13.*"),
        ("numpy<1.26", "numpy>=1.26"),
        ("numpy==1.25", "numpy>=1.26"),
        ("openvino~=2025.0", "openvino>=2026.0,<2027"),
        ("openvino>=2027", "openvino>=2026.0,<2027"),
    ],
)
def test_a_dependency_that_excludes_the_needed_versions_is_an_error_in_both_modes(declared: str, required: str) -> None:
    assert find_unmet([required], [declared]) == {
        required: Unmet(f"`{Requirement(declared)}` allows none of these versions", excluded=True)
    }
    for mode in ("check", "add"):
        with pytest.raises(ConfigError) as caught:
            requirements_to_add(mode, {"default": [required]}, [declared])
        assert f'"{required}"' in caught.value.hint


@pytest.mark.parametrize("declared", ["torch", "torch>=2.13", "torch<3", "torch>=2.10,<2.14", "torch!=2.12.*"])
def test_a_bound_that_is_missing_is_added_and_no_error(declared: str) -> None:
    (added,) = requirements_to_add("check", {"default": REQUIRED}, ["hatch-lower>=0.1", declared])
    assert added.requirement == "torch==2.13.*"
    assert added.reason.startswith(f"`{Requirement(declared)}` also allows ")


def test_several_dependencies_on_one_package_hold_together() -> None:
    assert find_unmet(["torch==2.13.*"], ["torch>=2.13", "torch<2.14"]) == {}


def test_check_fails_with_the_lines_to_paste() -> None:
    with pytest.raises(ConfigError) as caught:
        requirements_to_add("check", {"default": REQUIRED}, ["torch<2.13"])
    assert str(caught.value) == (
        "the project's dependencies do not imply the requirements of its lowered programs\n"
        "  where: project.dependencies\n"
        "  found: `hatch-lower>=0.1`: not among the dependencies\n"
        "    `torch==2.13.*`: `torch<2.13` allows none of these versions\n"
        "  to do: let `[project] dependencies` contain\n"
        "    dependencies = [\n"
        '        "hatch-lower>=0.1",\n'
        '        "torch==2.13.*",\n'
        "    ]\n"
        '    or set `runtime-requirements` of the build hook `lower` to "add" or "off"'
    )


def test_an_extra_of_hatch_lower_implies_what_it_consists_of() -> None:
    required = ["hatch-lower>=0.1", "openvino>=2026.0,<2027"]
    assert find_unmet(required, ["hatch-lower[openvino]>=0.1"]) == {}
    assert find_unmet(["onnx>=1.19"], ["hatch-lower[ONNXRuntime]>=0.1"]) == {}
    for declared in ("hatch-lower>=0.1", "hatch-lower[remote]>=0.1", 'hatch-lower[openvino]>=0.1; os_name == "nt"'):
        assert find_unmet(required[1:], [declared]) == dict.fromkeys(required[1:], Unmet("not among the dependencies"))


@pytest.mark.torch
@pytest.mark.parametrize("backend", ["executorch", "onnxruntime", "openvino"])
def test_an_extra_implies_what_the_programs_of_its_backend_require(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tomllib

    from hatch_lower.exir.backend.registry import find_backend

    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    listed = [f'{each}; extra == "{backend}"' for each in project["optional-dependencies"][backend]]
    monkeypatch.setattr("importlib.metadata.requires", lambda name: listed)
    required = find_backend(backend).requirements({})
    assert required
    assert find_unmet(required, [f"hatch-lower[{backend}]>=0.1"]) == {}


@pytest.mark.torch
def test_what_a_recipe_will_require_is_checked_before_anything_is_lowered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from support.exports import Workshop, settings_of

    monkeypatch.setenv("HATCH_LOWER_CACHE", "off")
    monkeypatch.setattr("hatch_lower.pipeline.lower_model.lower_recipe", lambda *args: pytest.fail("it was lowered"))
    shop = Workshop(tmp_path)
    source = shop.capture("""\
import torch
from hatch_lower import Method, Model

def export():
    return Model(torch.nn.ReLU(), {"forward": Method((torch.ones(2),))})
""")
    recipes = Recipe("default", (BackendChoice("reference"),)), Recipe("native", (BackendChoice("aoti"),))
    settings = replace(settings_of(*recipes), dependencies=("hatch-lower>=0.1", "torch>=2.16"))
    with pytest.raises(ConfigError) as caught:
        shop.build(source, settings)
    assert caught.value.found == "`torch>=2.11,<2.16`: `torch>=2.16` allows none of these versions"


def test_check_passes_and_adds_nothing() -> None:
    assert requirements_to_add("check", {"default": REQUIRED}, ["hatch-lower>=0.1", "torch==2.13.*"]) == ()


def test_add_gives_what_is_not_implied() -> None:
    assert texts(requirements_to_add("add", {"default": REQUIRED}, ["hatch-lower>=0.1"])) == ["torch==2.13.*"]


EXTRA = Extra("with-torch", ("torch>=2.13",))
TWO = {"default": ("hatch-lower>=0.1", "numpy>=1.26"), "portable": ("hatch-lower>=0.1", "torch>=2.13")}


def test_what_one_recipe_requires_may_come_with_an_extra() -> None:
    declared = ["hatch-lower>=0.1", "numpy>=2"]
    assert requirements_to_add("check", TWO, declared, {"portable": EXTRA}) == ()
    assert texts(requirements_to_add("add", TWO, [], {"portable": EXTRA})) == ["hatch-lower>=0.1", "numpy>=1.26"]
    with pytest.raises(ConfigError) as caught:
        requirements_to_add("check", TWO, declared)
    assert caught.value.found == "`torch>=2.13`: not among the dependencies"


@pytest.mark.parametrize("mode", ["check", "add"])
def test_an_extra_that_does_not_suffice_is_refused(mode: str) -> None:
    extra = Extra("with-torch", ("torch<2.13",))
    with pytest.raises(ConfigError) as caught:
        requirements_to_add(mode, TWO, ["hatch-lower>=0.1", "numpy>=2"], {"portable": extra})
    assert str(caught.value) == (
        "the project's extra `with-torch` does not imply the requirements of its recipe `portable`\n"
        "  where: project.optional-dependencies.with-torch\n"
        "  found: `torch>=2.13`: `torch<2.13` allows none of these versions\n"
        '  to do: let it contain "torch>=2.13"'
    )
    assert requirements_to_add("off", TWO, [], {"portable": extra}) == ()


@pytest.mark.parametrize("mode", ["check", "add"])
def test_a_bound_that_an_extra_lacks_is_added_to_the_extra(mode: str) -> None:
    added = requirements_to_add(mode, TWO, ["hatch-lower>=0.1", "numpy>=2"], {"portable": Extra("all", ("torch",))})
    assert texts(added) == ['torch>=2.13; extra == "all"']


GPU, PLAIN = "onnxruntime-gpu>=1.23,<2", "onnxruntime>=1.23,<2"
CLASH = "the wheel would install two builds of one library, whose files overwrite each other"


def test_one_build_of_onnxruntime_serves_all_recipes() -> None:
    required = {"gpu": [GPU], "cpu": [PLAIN]}
    assert texts(requirements_to_add("add", required, [])) == [GPU]
    assert requirements_to_add("check", required, [GPU]) == ()
    assert find_unmet([PLAIN], ["onnxruntime-directml>=1.24,<2"]) == {}
    assert texts(requirements_to_add("check", required, ["OnnxRuntime_GPU"])) == [GPU]


@pytest.mark.parametrize("mode", ["check", "add"])
def test_the_build_without_a_provider_does_not_serve_a_recipe_with_the_provider(mode: str) -> None:
    with pytest.raises(ConfigError) as caught:
        requirements_to_add(mode, {"gpu": [GPU], "cpu": [PLAIN]}, [PLAIN])
    reason = "`onnxruntime<2,>=1.23` is another build of the library; name `onnxruntime-gpu` instead"
    assert (caught.value.found == f"`{GPU}`: {reason}") if mode == "check" else (caught.value.what == CLASH)


@pytest.mark.parametrize(
    ("declared", "extras", "where"),
    [
        ((GPU, PLAIN), {}, "project.dependencies"),
        ((GPU, "hatch-lower[onnxruntime]"), {}, "project.dependencies"),
        ((PLAIN,), {"gpu": Extra("cuda", (GPU,))}, "project.optional-dependencies.cuda"),
    ],
)
def test_two_builds_of_one_library_are_refused(declared: tuple[str, ...], extras: dict[str, Extra], where: str) -> None:
    with pytest.raises(ConfigError) as caught:
        requirements_to_add("check", {"gpu": [GPU], "cpu": [PLAIN]}, declared, extras)
    assert (caught.value.what, caught.value.where) == (CLASH, where)
    assert "`onnxruntime-gpu<2,>=1.23`" in caught.value.found
    assert "`onnxruntime<2,>=1.23`" in caught.value.found
    assert "give each recipe an `extra`" in caught.value.hint


def test_each_build_may_come_with_an_extra_of_its_own() -> None:
    extras = {"gpu": Extra("cuda", (GPU,)), "cpu": Extra("host", (PLAIN,))}
    assert requirements_to_add("check", {"gpu": [GPU], "cpu": [PLAIN]}, ["numpy"], extras) == ()


@pytest.mark.torch
@pytest.mark.parametrize(
    ("required", "installed", "reason"),
    [
        (PLAIN, {"onnxruntime-gpu": "1.31.1"}, None),
        (GPU, {"onnxruntime": "1.31.1"}, None),
        (GPU, {"onnxruntime": "1.20"}, f"it needs {GPU}, and onnxruntime 1.20 is installed"),
        (PLAIN, {"onnxruntime": "1.20", "onnxruntime-gpu": "1.31"}, f"it needs {PLAIN}, and 1.20 is installed"),
        (PLAIN, {"onnxruntime-qnn": "ours"}, f"it needs {PLAIN}, and onnxruntime-qnn ours is installed"),
        (PLAIN, {"openvino": "2026.1"}, f"it needs {PLAIN}, which is not installed"),
    ],
)
def test_any_build_of_the_library_meets_a_requirement_at_load(
    required: str, installed: dict[str, str], reason: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hatch_lower.runtime import selection

    monkeypatch.setattr(selection, "version_here", installed.get)
    assert selection.requirement_reason(required, "manifest.json") == reason


def test_an_installed_build_stands_for_the_required_build(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = {"onnxruntime-gpu": ["numpy"], "numpy": []}
    monkeypatch.setattr("importlib.metadata.distributions", lambda name: [name] if name in installed else [])
    monkeypatch.setattr("importlib.metadata.requires", installed.get)
    assert distributions_required([PLAIN]) == {"onnxruntime-gpu", "numpy"}
    assert distributions_required(["openvino"]) == {"openvino"}


def texts(added: Sequence[Addition]) -> list[str]:
    return [each.requirement for each in added]


def test_off_looks_at_nothing() -> None:
    assert requirements_to_add("off", {"default": REQUIRED}, []) == ()


@pytest.mark.torch
@pytest.mark.parametrize("version", ["2.13.0", "2.13.0+cpu", "2.13.1+cu130", "2.13.0a0+git0123abc", "2.13.0rc4"])
def test_native_code_that_calls_unknown_functions_requires_the_minor_version_that_compiled_it(version: str) -> None:
    from hatch_lower.backends.aoti.versions import LibrarySymbols, torch_requirement

    required = torch_requirement(version, LibrarySymbols([], {"unknown"}, {"unknown"}, set()))
    assert required == "torch==2.13.*"
    holds = SpecifierSet(required.removeprefix("torch"), prereleases=True)
    assert holds.contains(version)
    assert all(holds.contains(each) for each in ("2.13.0", "2.13.0+cu130", "2.13.7", "2.13.0.post1"))
    assert not any(holds.contains(each) for each in ("2.12.99", "2.14.0", "2.14.0a0+git0123abc", "3.13.0", "2.1.3"))


@pytest.mark.torch
@pytest.mark.parametrize(
    ("version", "is_met"),
    [("2.13.0+cpu", True), ("2.13.9", True), ("2.12.1+cu130", False), ("2.14.1", False), ("our build of June", False)],
)
def test_the_torch_that_is_installed_is_compared_at_load(
    version: str, is_met: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hatch_lower.runtime.selection import requirement_reason

    monkeypatch.setattr("torch.__version__", version)
    expected = None if is_met else f"it needs torch==2.13.*, and {version} is installed"
    assert requirement_reason("torch==2.13.*", "manifest.json") == expected


@pytest.mark.torch
@pytest.mark.parametrize(
    ("version", "is_met"),
    [("2.13.0+cpu", True), ("2.15.9", True), ("2.12.1+cu130", False), ("2.16.0", False), ("2.16.0a0+git01", False)],
)
def test_a_range_of_torch_versions_is_compared_at_load(
    version: str, is_met: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hatch_lower.runtime.selection import requirement_reason

    monkeypatch.setattr("torch.__version__", version)
    expected = None if is_met else f"it needs torch>=2.13,<2.16, and {version} is installed"
    assert requirement_reason("torch>=2.13,<2.16", "manifest.json") == expected


NUMBERS = st.lists(st.sampled_from([0, 0, 1, 2, 9, 10, 13]), min_size=1, max_size=4).map(
    lambda each: ".".join(map(str, each))
)
BOUNDS = st.one_of(
    st.tuples(st.sampled_from(["<", "<=", "==", ">=", "=="]), NUMBERS).map("".join), NUMBERS.map("=={}.*".format)
)


@pytest.mark.torch
@given(
    st.lists(BOUNDS, max_size=3).map(",".join), NUMBERS, st.sampled_from(["", "", "+cpu", "+cu130.1", "rc1", ".post2"])
)
@example("==2.13.*", "2.13", "+cpu")
@example("==2.0.*", "2", "")
@example("<2.13", "2.13.0", "+cpu")
@example("<=2.13", "2.13.0", "+cpu")
@example("==2.13", "2.13.0", "+cpu")
def test_plain_bounds_are_read_as_packaging_reads_them(bounds: str, numbers: str, suffix: str) -> None:
    from hatch_lower.runtime.selection import PLAIN_REQUIREMENT, is_version_within

    assert PLAIN_REQUIREMENT.fullmatch(f"some-name{bounds}")
    expected = SpecifierSet(bounds).contains(numbers + suffix, prereleases=True)
    assert is_version_within(bounds, numbers + suffix) == (expected if suffix[:1] in ("", "+") else None)


@pytest.mark.torch
@pytest.mark.parametrize(
    "requirement",
    [
        *("some>1", "some!=1", "some~=1.0", "some===1", "some==1+cpu", "some<2rc1", "some==1!2", "some[extra]>=1", ""),
        *("some>=1; python_version>='3'", "some >=1", "some(>=1)", "some==*", "some>=1.*", "some>=1,", "-some>=1"),
        *("some @ x", "some>=", "some<1" + "0" * 5000),
    ],
)
def test_other_requirements_are_left_to_packaging(requirement: str) -> None:
    from hatch_lower.runtime.selection import PLAIN_REQUIREMENT

    assert not PLAIN_REQUIREMENT.fullmatch(requirement)
