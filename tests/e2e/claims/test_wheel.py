"""It works: a wheel installed in a clean environment computes what the eager module computes."""

from __future__ import annotations

import base64
import hashlib
import json
import socket
from collections.abc import Callable
from pathlib import Path
from zipfile import ZIP_STORED, ZipFile

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from support.scenarios import Project
from support.venv import REPOSITORY, VirtualEnvironment

pytestmark = [pytest.mark.isolated, pytest.mark.slow]

# Compares with the eager module, whose code the wheel also holds, and says what was imported before that.
COMPARE = """
import json, sys
import hatch_lower, torch

def results(module):
    return [getattr(module, call.pop("method"))(*call.pop("args"), **call) for call in [dict(each) for each in made]]

name, recipes, calls = json.loads(sys.argv[1])
torch.manual_seed(1)
made = [{key: eval(text, {"torch": torch}) for key, text in call.items()} for call in calls]
models = [hatch_lower.load(name, recipe=recipe) for recipe in recipes]
got = [results(model) for model in models]
imported = sorted(sys.modules)
want = results(__import__(f"{name}.model", fromlist=["make"]).make())
for each in got:
    torch.testing.assert_close(each, want, rtol=1e-4, atol=1e-5)
names = {"methods": [sorted(model.methods) for model in models], "recipes": [model.recipe for model in models]}
print(json.dumps({**names, "imported": imported}))
"""
RECIPES = ["default", "portable"]
EXAMPLE = pytest.param("example", marks=pytest.mark.long)
"""`examples/run`, a part of `.ci/run`, builds, installs and runs it."""
# Neither builders nor the command line nor a compiler may be imported to run a model.
NEVER_AT_RUN_TIME = {"hatchling", "click", "torch._inductor", "hatch_lower.driver.build", "hatch_lower.exir.lowering"}


def compare(
    clean: VirtualEnvironment, folder: Path, name: str, recipes: list[str], calls: list[dict[str, str]]
) -> dict[str, object]:
    """Run the calls with each recipe and eagerly in the clean environment; return names and what was imported."""
    done = clean.run("-c", COMPARE, json.dumps([name, recipes, calls]), cwd=folder).check()
    report: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return report


def test_native_code_with_control_flow_and_state_equals_eager(
    built: Callable[[str], Path], clean: VirtualEnvironment, wheelhouse: Path, tmp_path: Path
) -> None:
    clean.install(str(built("mixed")), wheelhouse=wheelhouse)
    calls = [
        {"method": "'forward'", "args": f"(torch.randn({batch}, 8),)", "flip": f"torch.tensor({flip})"}
        for batch, flip in [(4, True), (1, False), (64, True), (7, False)]
    ]
    report = compare(clean, tmp_path, "mixed", RECIPES, calls)
    assert report["methods"] == [["forward"]] * 2
    assert report["recipes"] == RECIPES
    assert NEVER_AT_RUN_TIME.isdisjoint(report["imported"])  # type: ignore[arg-type]


def test_two_methods_of_a_src_layout_share_weights_and_keep_state(
    built: Callable[[str], Path], clean: VirtualEnvironment, wheelhouse: Path, tmp_path: Path
) -> None:
    clean.install(str(built("two_methods")), wheelhouse=wheelhouse)
    tokens = "(torch.tensor([[5, 0, 31, 2]]),)"
    calls = [{"method": f"'{method}'", "args": tokens} for method in ["forward", "prefill", "forward"]]
    report = compare(clean, tmp_path, "two_methods", RECIPES, calls)
    assert report["methods"] == [["forward", "prefill"]] * 2
    assert NEVER_AT_RUN_TIME.isdisjoint(report["imported"])  # type: ignore[arg-type]


def test_a_portable_model_takes_keywords_and_gives_nested_outputs(
    built: Callable[[str], Path], clean: VirtualEnvironment, wheelhouse: Path, tmp_path: Path
) -> None:
    clean.install(str(built("dynamic")), wheelhouse=wheelhouse)
    calls = [
        {"method": "'forward'", "args": f"(torch.randn({batch}, 6),)", "bias": "torch.randn(5)", "scale": "2.0"}
        for batch in [1, 3, 16]
    ]
    compare(clean, tmp_path, "dynamic", ["default"], calls)


def test_a_parameter_may_be_named_like_a_builtin(project: Callable[[str], Project]) -> None:
    sequential = project("tiny")
    sequential.edit("tiny/model.py", "Model(Tiny().eval()", "Model(torch.nn.Sequential(Tiny()).eval()")
    sequential.wheel()  # the parameter of `torch.nn.Sequential.forward` is `input`


CALL = "import sys; from hatch_lower.cli.entry import main; main(sys.argv[1:])"


def test_packaged_inputs_are_checked_in_the_wheel_and_where_it_is_installed(
    built: Callable[[str], Path], clean: VirtualEnvironment, wheelhouse: Path, tmp_path: Path
) -> None:
    def results(name: str | Path) -> list[tuple[str, str]]:
        rows = json.loads(clean.run("-c", CALL, "check", name, "--json", cwd=tmp_path).check().stdout)
        return [(row["recipe"], row["status"]) for row in rows]

    wheel = built("mixed")
    assert results(wheel) == [("default", "ok"), ("portable", "ok")]
    clean.install(str(wheel), wheelhouse=wheelhouse)
    assert results("mixed") == [("default", "ok"), ("portable", "ok")]


def test_nothing_that_builds_is_installed_with_a_model(clean: VirtualEnvironment, tmp_path: Path) -> None:
    listed = json.loads(clean.run("-m", "pip", "list", "--format=json", cwd=tmp_path).check().stdout)
    names = {row["name"] for row in listed}
    assert "hatch-lower" in names
    assert names.isdisjoint({"hatchling", "hatch", "ruff", "pytest"})


@pytest.mark.parametrize("scenario", ["mixed", "two_methods", EXAMPLE])
def test_record_manifest_and_archive_agree(built: Callable[[str], Path], scenario: str) -> None:
    with ZipFile(built(scenario)) as archive:
        members = {info.filename: info for info in archive.infolist()}
        contents = {name: archive.read(name) for name in members}
    names = list(members)
    assert len(names) == len(set(names))
    record_name = names[-1]
    assert record_name.endswith(".dist-info/RECORD"), "RECORD is the last member"
    rows = dict(line.split(",", 1) for line in contents[record_name].decode().splitlines())
    assert sorted(rows) == sorted(names)
    for name, row in rows.items():
        if name != record_name:
            digest = base64.urlsafe_b64encode(hashlib.sha256(contents[name]).digest()).rstrip(b"=").decode()
            assert row == f"sha256={digest},{len(contents[name])}"

    payload = {name for name in names if "/_lowered/" in name}
    manifest_name = next(name for name in payload if name.endswith("/_lowered/manifest.json"))
    folder = manifest_name.removesuffix("manifest.json")
    listed = set(files_of(json.loads(contents[manifest_name])))
    assert {folder + path for path, _, _ in listed} == payload - {manifest_name}
    for path, size, digest in listed:
        assert len(contents[folder + path]) == size
        assert hashlib.sha256(contents[folder + path]).hexdigest() == digest
    assert {name for name in payload if members[name].compress_type != ZIP_STORED} == {
        name for name in payload if name.endswith(".json")
    }
    assert {info.date_time for info in members.values()} == {members[record_name].date_time}


@pytest.mark.parametrize(("scenario", "tag"), [("mixed", "py3-none-manylinux"), ("two_methods", "py3-none-any")])
def test_tag_follows_the_payload(built: Callable[[str], Path], scenario: str, tag: str) -> None:
    with ZipFile(built(scenario)) as archive:
        wheel = next(archive.read(name).decode() for name in archive.namelist() if name.endswith(".dist-info/WHEEL"))
    assert f"Tag: {tag}" in wheel
    assert f"-{tag}" in built(scenario).name
    assert f"Root-Is-Purelib: {str(tag.endswith('any')).lower()}" in wheel


@pytest.mark.parametrize("scenario", ["mixed", "two_methods", EXAMPLE])
def test_no_path_and_no_host_name_in_the_wheel(built: Callable[[str], Path], scenario: str) -> None:
    wheel = built(scenario)
    secrets = [
        str(wheel.parent.parent),
        str(REPOSITORY),
        str(Path.home()) + "/",
        "site-packages/",
        socket.gethostname(),
    ]
    with ZipFile(wheel) as archive:
        for name in archive.namelist():
            if "/_lowered/" in name or "/sboms/" in name:
                found = [secret for secret in secrets if len(secret) > 4 and secret.encode() in archive.read(name)]
                assert found == [], f"{name} holds {found}"


@pytest.mark.long
def test_the_examples_weights_ship_once(built: Callable[[str], Path]) -> None:
    with ZipFile(built("example")) as archive:
        weights = [info for info in archive.infolist() if info.filename.endswith("constants.safetensors")]
        assert "digits/weights.safetensors" not in archive.namelist()
    assert len(weights) == 1
    checkpoint = REPOSITORY / "examples/project/digits/weights.safetensors"
    assert weights[0].file_size < checkpoint.stat().st_size * 1.05


@pytest.mark.long
def test_the_example_classifies_the_held_out_digits(
    built: Callable[[str], Path], clean: VirtualEnvironment, wheelhouse: Path, tmp_path: Path
) -> None:
    clean.install(str(built("example")), wheelhouse=wheelhouse)
    split = REPOSITORY / "examples/project/data/test.safetensors"
    for recipe in ["default", "portable"]:
        done = clean.run("-m", "digits", split, "--recipe", recipe, "--at-least", "0.97", cwd=tmp_path).check()
        assert f"model `digits`, recipe `{recipe}`, methods: embed, forward" in done.stdout
    script = """
import sys, torch, hatch_lower
from pathlib import Path
import digits.model
from digits.data import read_split
images, labels = read_split(Path(sys.argv[1]))
digits.model.WEIGHTS = Path(sys.argv[2])
eager = digits.model.export().module
for recipe in ["default", "portable"]:
    model = hatch_lower.load("digits", recipe=recipe)
    assert torch.equal(model(images).argmax(1), eager(images).argmax(1))
    torch.testing.assert_close(model.embed(images), eager.embed(images), rtol=1e-4, atol=1e-5)
"""
    weights = REPOSITORY / "examples/project/digits/weights.safetensors"
    clean.run("-c", script, split, weights, cwd=tmp_path).check()


def test_a_wheel_built_without_hooks_says_so(
    project: Callable[[str], Project], clean: VirtualEnvironment, wheelhouse: Path, tmp_path: Path
) -> None:
    wheel = project("tiny").wheel({"HATCH_BUILD_NO_HOOKS": "1"})
    clean.install(str(wheel), wheelhouse=wheelhouse)
    done = clean.run("-c", "import hatch_lower; hatch_lower.load('tiny')", cwd=tmp_path)
    assert done.status == 1
    assert "built without lowered models" in done.stderr
    done = clean.run("-c", CALL, "check", wheel, cwd=tmp_path)
    assert done.status == 1
    assert "the wheel is incomplete: it is without its lowered models" in done.stderr


@pytest.mark.parametrize("scenario", ["mixed", "two_methods", "dynamic", EXAMPLE])
def test_the_sbom_fits_its_schema_and_lists_the_payload(built: Callable[[str], Path], scenario: str) -> None:
    with ZipFile(built(scenario)) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    (name,) = (name for name in contents if name.endswith(".dist-info/sboms/hatch-lower.cdx.json"))
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(contents[name].decode()) is None
    document = json.loads(contents[name])
    (model,) = (each for each in document["components"] if each["type"] == "machine-learning-model")
    assert model["modelCard"]["modelParameters"]["modelArchitecture"].partition(".")[0] in name
    parts = [*document["components"], *model["components"]]
    files = {each["name"]: each["hashes"][0]["content"] for each in parts if each["type"] == "file"}
    payload = {path: data for path, data in contents.items() if "/_lowered/" in path}
    assert files == {path: hashlib.sha256(data).hexdigest() for path, data in payload.items()}
    tools = {each["name"] for each in document["metadata"]["tools"]["components"]}
    always = {"hatch-lower", "hatchling", "torch", "Python", "cyclonedx-python-lib"}
    assert always <= tools
    compilers = tools - always - {"aoti", "reference"}
    assert bool(compilers) == any(path.endswith(".so") for path in payload)


def files_of(value: object) -> list[tuple[str, int, str]]:
    """Return path, size and digest of each file that a manifest names."""
    if isinstance(value, dict):
        here = [(value["path"], value["size"], value["sha256"])] if {"path", "size", "sha256"} <= set(value) else []
        return here + [row for child in value.values() for row in files_of(child)]
    if isinstance(value, list):
        return [row for child in value for row in files_of(child)]
    return []
