"""`variants = true`: recipes, names and metadata of wheel variants, and what uv, pip and variantlib make of them."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hatchling.builders.wheel import WheelBuilder
from hatchling.plugin.manager import PluginManager
from support.wheels import record_digest, sha256

from hatch_lower.config.settings import ModelSettings, Settings
from hatch_lower.driver.build import build_result
from hatch_lower.driver.context import BuildContext
from hatch_lower.driver.reproduce.rebuild import only_wheel
from hatch_lower.driver.variants import split_variants
from hatch_lower.errors import ConfigError, ProcessError
from hatch_lower.format.results import BuildResult, MethodRow, ModelResult, PayloadFile
from hatch_lower.hatch import hooks
from hatch_lower.hatch.tags import NativeFile
from hatch_lower.hatch.variants import merged_tag, tagged, variant_documents
from hatch_lower.runtime.selection import machine_level

Target = Mapping[str, Any] | None
X86 = {"system": "Linux", "machine": "x86_64"}
V3, V4, VNNI = ({**X86, "isa": f"x86-64-{name}"} for name in ("v3", "v4", "v4-vnni"))
ARM = {"system": "Linux", "machine": "aarch64", "isa": "armv8-a"}
CUDA = {**V3, "arch": ["sm_80", "sm_90"], "ptx": "compute_80", "cuda": "13"}
DEFAULT: Mapping[str, Target] = {"fast": V4, "v3": V3, "portable": None}
PYPROJECT = """
[build-system]
requires = ["hatchling", "hatch-lower"]
build-backend = "hatchling.build"

[project]
name = "digits"
version = "1.0"
dependencies = ["hatch-lower>=0.1", "torch==2.13.*"]

[project.entry-points."hatch_lower.models"]
digits = "digits.model:export"

[tool.hatch.build.hooks.lower]
variants = true
"""
INFO = "digits-1.0.dist-info"
PLAIN = "digits-1.0-py3-none-any.whl"
NULL = "digits-1.0-py3-none-any-null.whl"
LEVEL_3 = "digits-1.0-py3-none-manylinux_2_5_x86_64-x86_64_v3.whl"
LEVEL_4 = "digits-1.0-py3-none-manylinux_2_5_x86_64-x86_64_v4.whl"
INDEX = "digits-1.0-variants.json"


def lowered(folder: Path, recipes: Mapping[str, Target], model: str = "digits") -> ModelResult:
    """Return a model with a blob for each recipe with a target, and weights that all recipes share."""
    files: dict[str, PayloadFile] = {}

    def write(name: str, data: bytes) -> dict[str, Any]:
        path = f"{model}/{name}"
        source = folder / path
        source.parent.mkdir(parents=True, exist_ok=True)
        source.write_bytes(data)
        files[path] = PayloadFile(path, source, len(data), sha256(data))
        return {"path": path, "size": len(data), "sha256": sha256(data)}

    entries = {
        name: {
            "plan": write(f"{name}.json", b"{}\n"),
            "debug": write(f"{name}.debug.json", b"{}\n"),
            "delegates": [write(f"{name}.so", name.encode())] if target else [],
            "requirements": ["torch==2.13.*"],
            "target": target,
        }
        for name, target in recipes.items()
    }
    entry = {"order": list(recipes), "constants": write("constants.safetensors", bytes(400)), "recipes": entries}
    rows = tuple(MethodRow(model, name, "forward", 1, 1, 1, 1, 0.0, 0) for name in recipes)
    native = tuple(file.source for path, file in files.items() if path.endswith(".so"))
    return ModelResult(model, entry, tuple(files.values()), rows, native, {}, "2.13.0")


def settings_of(*models: ModelResult) -> Settings:
    named = (ModelSettings(model.model, "digits:export", "digits", tuple(model.entry["order"])) for model in models)
    return Settings(Path("/project"), "digits", "1.0", tuple(named), (), variants=True)


def split(folder: Path, *models: ModelResult) -> dict[str, dict[str, list[str]]]:
    """Return the recipes of each model in each variant, in load order."""
    settings = settings_of(*models)
    result = build_result(
        settings, {model.model: model for model in models}, {model.model: {} for model in models}, folder / "whole"
    )
    return {
        variant.label: {model.model: model.entry["order"] for model in variant.result.models}
        for variant in split_variants(result, settings, folder / "variants")
    }


def recipes_by_label(folder: Path, recipes: Mapping[str, Target]) -> dict[str, list[str]]:
    return {label: models["digits"] for label, models in split(folder, lowered(folder, recipes)).items()}


def test_a_variant_has_the_recipes_of_its_level_and_those_without_native_code(tmp_path: Path) -> None:
    assert recipes_by_label(tmp_path, {**DEFAULT, "engine": None}) == {
        "null": ["portable", "engine"],
        "x86_64_v3": ["v3", "portable", "engine"],
        "x86_64_v4": ["fast", "portable", "engine"],
    }


def test_code_for_vnni_is_in_the_variant_of_its_level(tmp_path: Path) -> None:
    found = recipes_by_label(tmp_path, {"bytes": VNNI, **DEFAULT})
    assert found["x86_64_v4"] == ["bytes", "fast", "portable"]
    assert list(found) == ["null", "x86_64_v3", "x86_64_v4"]


def test_a_variant_for_gpus_has_the_code_for_its_processor(tmp_path: Path) -> None:
    assert recipes_by_label(tmp_path, {"gpu": CUDA, **DEFAULT})["cu13_x86_64_v3"] == ["gpu", "v3", "portable"]


def test_a_model_without_native_code_is_in_all_variants(tmp_path: Path) -> None:
    models = lowered(tmp_path, DEFAULT), lowered(tmp_path, {"portable": None}, "words")
    assert {label: found["words"] for label, found in split(tmp_path, *models).items()} == {
        label: ["portable"] for label in ("null", "x86_64_v3", "x86_64_v4")
    }


@pytest.mark.parametrize(
    ("recipes", "properties"),
    [
        ({"v3": V3}, {"x86_64": {"level": ("v3",)}}),
        ({"arm": ARM}, {"aarch64": {"version": ("8a",)}}),
        (
            {"gpu": CUDA},
            {
                "nvidia": {"cuda_version_lower_bound": ("13.0",), "sm_arch": ("80_real", "80_virtual", "90_real")},
                "x86_64": {"level": ("v3",)},
            },
        ),
    ],
)
def test_a_variant_states_what_its_code_needs(
    tmp_path: Path, recipes: Mapping[str, Target], properties: Mapping[str, Any]
) -> None:
    model = lowered(tmp_path, {**recipes, "portable": None})
    settings = settings_of(model)
    result = build_result(settings, {"digits": model}, {"digits": {}}, tmp_path / "whole")
    null, variant = split_variants(result, settings, tmp_path / "variants")
    assert (null.properties, variant.properties) == ({}, properties)
    documents = {label: json.loads(data) for label, data in variant_documents((null, variant)).items()}
    assert documents["null"]["variants"] == {"null": {}}
    assert documents[""]["variants"] == {**documents["null"]["variants"], **documents[variant.label]["variants"]}
    order = [name for name in ("nvidia", "x86_64", "aarch64") if name in properties]
    assert all(document["default-priorities"] == {"namespace": order} for document in documents.values())
    assert all(list(document["providers"]) == sorted(order) for document in documents.values())


@pytest.mark.parametrize(
    ("models", "problem"),
    [
        ([{"portable": None}], "need a recipe for an instruction set level"),
        ([{"other": {**X86, "isa": "x86-64-v9"}, "portable": None}], "has no property of wheel variants"),
        ([{"v3": V3}], "model `0` has no recipe without native code"),
        (
            [DEFAULT, {"v3": V3, "portable": None}],
            "model `1` has native code, but not for every processor of the variant `x86_64_v4`",
        ),
        ([{"bytes": VNNI, "v3": V3, "portable": None}], "not for every processor of the variant `x86_64_v4`"),
        ([DEFAULT, {"v3": V3}], "model `1` has no recipe for the variant `x86_64_v4`"),
    ],
)
def test_recipes_that_make_no_variants_are_refused(
    tmp_path: Path, models: list[Mapping[str, Target]], problem: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        split(tmp_path, *(lowered(tmp_path, recipes, str(at)) for at, recipes in enumerate(models)))
    assert problem in str(refused.value)
    assert "where: tool.hatch.build.hooks.lower.variants" in str(refused.value)
    assert "remove `variants = true`" in str(refused.value)


# builds, with a stand-in for the lowering


@pytest.fixture
def lower(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Target]:
    """The recipes of the model that the next build lowers."""
    recipes: dict[str, Target] = dict(DEFAULT)

    def build(context: BuildContext) -> BuildResult:
        model = lowered(context.work / "blobs", recipes)
        return build_result(context.settings, {"digits": model}, {"digits": {}}, context.work)

    def sbom_text(subject: Any, store: object) -> str:
        return json.dumps([list(model.entry["recipes"]) for model in subject.result.models])

    monkeypatch.setattr("hatch_lower.driver.build.build", build)
    monkeypatch.setattr("hatch_lower.hatch.sbom.remembered_text", sbom_text)
    monkeypatch.setattr("hatch_lower.hatch.tags.read_native_file", lambda path: NativeFile("x86_64", (), {}))
    monkeypatch.setenv("HATCH_LOWER_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    return recipes


def make_project(root: Path, more: str = "") -> Path:
    package = root / "src" / "digits"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "model.py").write_text("def export():\n    return None\n")
    (root / "pyproject.toml").write_text(PYPROJECT + more)
    return root


def build_wheel(root: Path, builder: type[WheelBuilder] = WheelBuilder, version: str = "standard") -> Path:
    plugins = PluginManager()
    plugins.initialize()
    plugins.initialized = True
    plugins.manager.register(hooks, name="lower")
    (path,) = builder(str(root), plugin_manager=plugins).build(versions=[version])
    return Path(path).parent


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        assert archive.testzip() is None
        return {name: archive.read(name) for name in archive.namelist()}


def test_a_build_writes_a_wheel_for_each_variant_and_the_index_file(
    lower: dict[str, Target], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    dist = build_wheel(make_project(tmp_path / "project"))
    assert sorted(path.name for path in dist.iterdir()) == sorted([PLAIN, NULL, LEVEL_3, LEVEL_4, INDEX])
    assert capfd.readouterr().err.count("to be uploaded") == 4
    for name, recipes, label in [
        (PLAIN, ["portable"], ""),
        (NULL, ["portable"], "null"),
        (LEVEL_3, ["v3", "portable"], "x86_64_v3"),
        (LEVEL_4, ["fast", "portable"], "x86_64_v4"),
    ]:
        files = contents(dist / name)
        lowering = {path.removeprefix("digits/_lowered/digits/") for path in files if "_lowered/digits/" in path}
        blobs = {f"{recipe}.so" for recipe in recipes if recipe != "portable"}
        documents = {f"{recipe}.{end}" for recipe in recipes for end in ("json", "debug.json")}
        assert lowering == {*blobs, *documents, "constants.safetensors"}
        model = json.loads(files["digits/_lowered/manifest.json"])["models"]["digits"]
        assert (model["order"], sorted(model["recipes"])) == (recipes, sorted(recipes))
        assert json.loads(files[f"{INFO}/sboms/hatch-lower.cdx.json"]) == [recipes]
        assert (f"{INFO}/variant.json" in files) == bool(label)
        if label:
            assert list(json.loads(files[f"{INFO}/variant.json"])["variants"]) == [label]
        wheel = files[f"{INFO}/WHEEL"].decode().splitlines()
        assert f"Tag: {'-'.join(name.removesuffix('.whl').split('-')[2:5])}" in wheel
        assert f"Root-Is-Purelib: {'false' if 'linux' in name else 'true'}" in wheel
    assert list(json.loads((dist / INDEX).read_bytes())["variants"]) == ["null", "x86_64_v3", "x86_64_v4"]


def test_the_record_of_a_variant_lists_every_file(lower: dict[str, Target], tmp_path: Path) -> None:
    dist = build_wheel(make_project(tmp_path / "project"))
    files = contents(dist / LEVEL_4)
    record = files.pop(f"{INFO}/RECORD").decode()
    rows = {row[0]: row[1:] for row in csv.reader(io.StringIO(record))}
    assert rows.pop(f"{INFO}/RECORD") == ["", ""]
    assert rows == {name: [f"sha256={record_digest(data)}", str(len(data))] for name, data in files.items()}
    with zipfile.ZipFile(dist / LEVEL_4) as archive:
        assert archive.infolist()[-1].filename == f"{INFO}/RECORD"


def test_variants_are_the_same_in_every_build(lower: dict[str, Target], tmp_path: Path) -> None:
    first, second = (build_wheel(make_project(tmp_path / name)) for name in ("first", "second"))
    written = {path.name: path.read_bytes() for path in first.iterdir()}
    assert len(written) == 5
    assert written == {path.name: path.read_bytes() for path in second.iterdir()}


def test_an_editable_install_has_all_recipes(lower: dict[str, Target], tmp_path: Path) -> None:
    pytest.importorskip("editables", reason="hatchling makes editable wheels with it")
    dist = build_wheel(make_project(tmp_path / "project"), version="editable")
    (wheel,) = dist.iterdir()
    model = json.loads(contents(wheel)["digits/_lowered/manifest.json"])["models"]["digits"]
    assert model["order"] == list(DEFAULT)


def test_a_variable_turns_variants_off(
    lower: dict[str, Target], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HATCH_LOWER_VARIANTS", "off")
    dist = build_wheel(make_project(tmp_path / "project"))
    (wheel,) = dist.iterdir()
    model = json.loads(contents(wheel)["digits/_lowered/manifest.json"])["models"]["digits"]
    assert model["order"] == list(DEFAULT)


def test_a_variable_with_another_value_is_refused(
    lower: dict[str, Target], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HATCH_LOWER_VARIANTS", "yes")
    with pytest.raises(SystemExit):
        build_wheel(make_project(tmp_path / "project"))
    assert capfd.readouterr().err.startswith(
        "hatch-lower: the variable is neither `on` nor `off`\n"
        "  where: environment variable `HATCH_LOWER_VARIANTS`\n"
        "  found: `yes`\n"
        "  to do: write `off` for one wheel with all recipes, or unset the variable\n"
    )


def test_a_wheel_among_variants_is_taken_by_its_name(tmp_path: Path) -> None:
    for name in (PLAIN, NULL):
        (tmp_path / name).touch()
    assert only_wheel(tmp_path, "project", NULL) == tmp_path / NULL
    with pytest.raises(ProcessError, match="the build made several wheels"):
        only_wheel(tmp_path, "project", LEVEL_3)
    (tmp_path / NULL).unlink()
    assert only_wheel(tmp_path, "project", LEVEL_3) == tmp_path / PLAIN


def test_a_build_without_a_level_ends_with_the_error(
    lower: dict[str, Target], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    del lower["fast"], lower["v3"]
    root = make_project(tmp_path / "project")
    with pytest.raises(SystemExit):
        build_wheel(root)
    assert "hatch-lower: wheel variants need a recipe for an instruction set level" in capfd.readouterr().err
    assert list((root / "dist").iterdir()) == []


def test_a_variant_that_cannot_be_written_leaves_nothing(
    lower: dict[str, Target], tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make_project(tmp_path / "project")
    (root / "dist" / INDEX).mkdir(parents=True)
    with pytest.raises(SystemExit):
        build_wheel(root)
    assert "hatch-lower: the index file of the variants could not be written" in capfd.readouterr().err
    assert [path.name for path in (root / "dist").iterdir()] == [INDEX]


def test_a_file_of_a_variant_that_is_removed_while_a_build_runs_is_made_again(
    lower: dict[str, Target], tmp_path: Path
) -> None:
    class Removing(WheelBuilder):
        def write_metadata(self, *args: Any, **kwargs: Any) -> Any:
            (blob,) = (tmp_path / "temporary").rglob("v3.so")
            blob.unlink()
            return super().write_metadata(*args, **kwargs)

    whole = build_wheel(make_project(tmp_path / "whole"))
    dist = build_wheel(make_project(tmp_path / "project"), Removing)
    assert (dist / LEVEL_3).read_bytes() == (whole / LEVEL_3).read_bytes()


def test_the_platform_of_the_project_is_kept() -> None:
    tag = "py3-none-manylinux_2_17_x86_64"
    assert merged_tag("cp313-cp313-linux_x86_64", tag) == "cp313-cp313-linux_x86_64"
    assert merged_tag("cp313-none-any", tag) == "cp313-none-manylinux_2_17_x86_64"
    assert merged_tag("py3-none-any", "py3-none-any") == "py3-none-any"
    own = b"Root-Is-Purelib: false\nTag: cp313-cp313-linux_x86_64\n"
    assert tagged(own, tag) == own


# the tools of the day

FEATURE = ("--preview-features", "wheel-variants")


@pytest.fixture
def dist(lower: dict[str, Target], tmp_path: Path) -> Path:
    return build_wheel(make_project(tmp_path / "project"))


def uv_installs(dist: Path, folder: Path, *options: str, **variables: str) -> str:
    """Return the first recipe of the wheel that uv takes from a folder of wheels."""
    uv = shutil.which("uv", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    if uv is None:
        pytest.skip("needs uv")
    command = [uv, "pip", "install", "--no-deps", "--no-index", "--find-links", dist, "--target", folder]
    environment = {**os.environ, "UV_CACHE_DIR": str(folder.with_name("uv-cache")), **variables}
    done = subprocess.run([*command, *options, "digits"], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    if "Unknown preview feature" in done.stderr:
        pytest.skip("this uv has no preview feature `wheel-variants`")
    manifest = json.loads((folder / "digits" / "_lowered" / "manifest.json").read_bytes())
    first: str = manifest["models"]["digits"]["order"][0]
    return first


def with_levels(dist: Path, folder: Path, *levels: str) -> Path:
    """Copy wheels with an index file that says which levels the machine has."""
    shutil.copytree(dist, folder)
    index = json.loads((dist / INDEX).read_bytes())
    index["providers"] = {"x86_64": {"static-properties": {"level": list(levels)}}}
    (folder / INDEX).write_text(json.dumps(index))
    return folder


def test_uv_takes_the_variant_for_the_processor(dist: Path, tmp_path: Path) -> None:
    expected = {"x86-64-v3": "v3", "x86-64-v4": "fast", "x86-64-v4-vnni": "fast"}.get(machine_level(), "portable")
    assert uv_installs(dist, tmp_path / "here", *FEATURE) == expected
    for levels, recipe in [(("v4", "v3", "v2", "v1"), "fast"), (("v3", "v2", "v1"), "v3"), (("v2", "v1"), "portable")]:
        if machine_level() < f"x86-64-{levels[0]}":  # uv refuses a variant for instructions that the processor lacks
            continue
        emulated = with_levels(dist, tmp_path / levels[0], *levels)
        assert uv_installs(emulated, tmp_path / f"{levels[0]}-installed", *FEATURE) == recipe


def test_uv_takes_the_null_variant_on_other_machines(dist: Path, tmp_path: Path) -> None:
    (dist / PLAIN).unlink()
    assert uv_installs(dist, tmp_path / "site", *FEATURE, "--python-platform", "aarch64-manylinux_2_28") == "portable"


def test_uv_without_the_feature_takes_the_wheel_without_a_label(dist: Path, tmp_path: Path) -> None:
    assert uv_installs(dist, tmp_path / "site") == "portable"
    assert not list((tmp_path / "site").glob("*.dist-info/variant.json"))


@pytest.mark.skipif(machine_level() < "x86-64-v3", reason="needs a processor with x86-64-v3")
def test_uv_takes_the_variant_for_a_gpu(lower: dict[str, Target], tmp_path: Path) -> None:
    lower |= {"gpu": CUDA}
    dist = build_wheel(make_project(tmp_path / "project"))
    (variant,) = dist.glob("*-cu13_x86_64_v3.whl")
    assert json.loads(contents(variant)["digits/_lowered/manifest.json"])["models"]["digits"]["order"][0] == "v3"
    force = "NV_VARIANT_PROVIDER_FORCE_"
    for driver, gpu, has_gpu_code in [("13.0", "9.0", True), ("12.8", "9.0", False), ("13.0", "7.5", False)]:
        site = tmp_path / f"{driver}-{gpu}"
        uv_installs(dist, site, *FEATURE, **{f"{force}CUDA_DRIVER_VERSION": driver, f"{force}SM_ARCH": gpu})
        assert (site / "digits" / "_lowered" / "digits" / "gpu.so").exists() == has_gpu_code


def test_pip_installs_the_programs_of_the_null_variant(dist: Path, tmp_path: Path) -> None:
    pytest.importorskip("pip")
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--find-links", dist]
    subprocess.run([*command, "--target", tmp_path / "site", "digits"], check=True, capture_output=True)
    (own,) = contents_of_site(tmp_path / "site")
    assert own == "portable.json"


def contents_of_site(site: Path) -> list[str]:
    plans = (site / "digits" / "_lowered" / "digits").glob("*.json")
    return [path.name for path in plans if not path.name.endswith(".debug.json")]


def test_variantlib_validates_wheels_and_index(dist: Path) -> None:
    variantlib = pytest.importorskip("variantlib.variants_json", reason="needs variantlib")
    packaged = pytest.importorskip("variantlib.variant_dist_info", reason="needs variantlib")
    api = pytest.importorskip("variantlib.api", reason="needs variantlib")
    merged: Any = None
    for name, label in [(NULL, "null"), (LEVEL_3, "x86_64_v3"), (LEVEL_4, "x86_64_v4")]:
        read = packaged.VariantDistInfo(contents(dist / name)[f"{INFO}/variant.json"], label)
        merged = merged or variantlib.VariantsJson(read)
        merged.merge(read)
    index = json.loads((dist / INDEX).read_bytes())
    assert variantlib.VariantsJson(index) == merged
    index["providers"] = {"x86_64": {"static-properties": {"level": ["v3", "v2", "v1"]}}}
    assert [each.label for each in api.get_variants_by_priority(variants_json=index)] == ["x86_64_v3", "null"]
