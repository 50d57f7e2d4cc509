"""`hatch-lower init`: projects as they are on the disk become projects that `hatch build` lowers."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import tomlkit
from click.testing import CliRunner, Result
from support.weights import COMMIT, hub_answers, served

from hatch_lower.cli.main import main
from hatch_lower.cli.scaffold import STUB

HATCHLING = """\
[build-system]
requires = ["hatchling"]      # a comment that stays
build-backend = "hatchling.build"

[project]
name = "My-Net"
version = "1.0"
dependencies = [
  "torch==2.13.*",  # pinned
]
"""
SETUPTOOLS = """\
[build-system]
requires = ["setuptools>=61", "wheel", "numpy"]
build-backend = "setuptools.build_meta"

[project]
name = "my-net"
dynamic = ["version"]

[tool.setuptools.dynamic]
version = {attr = "mynet.__version__"}
"""


def init(root: Path, *options: str) -> Result:
    return CliRunner().invoke(main, ["init", "--root", str(root), *options])


def project(root: Path, text: str, *packages: str) -> Path:
    root.mkdir(exist_ok=True)
    for package in packages:
        (root / package).mkdir(parents=True)
        (root / package / "__init__.py").write_text('__version__ = "3.1"\n')
    (root / "pyproject.toml").write_text(text)
    return root


def written(root: Path) -> tomlkit.TOMLDocument:
    return tomlkit.parse((root / "pyproject.toml").read_text())


@pytest.mark.parametrize(
    ("packages", "module", "packaged"),
    [
        (["mynet"], "mynet.model", "mynet"),
        (["my_net", "tests", "docs"], "my_net.model", "my_net"),
        (["src/mynet"], "mynet.model", "src/mynet"),
        (["src/another"], "another.model", "src/another"),
        (["src/one", "src/My_Net"], "My_Net.model", "src/My_Net"),
        (["src/my/net"], "my.net.model", "src/my"),
        ([], "my_net.model", "src/my_net"),
    ],
)
def test_the_package_is_the_one_on_the_disk(tmp_path: Path, packages: list[str], module: str, packaged: str) -> None:
    root = project(tmp_path / "project", HATCHLING, *packages)
    done = init(root)
    assert (done.exit_code, done.stderr) == (0, "")
    table = written(root).unwrap()
    assert table["project"]["entry-points"]["hatch_lower.models"] == {"My-Net": f"{module}:export"}
    assert table["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"] == [packaged]
    source = root / "src" if packaged.startswith("src") else root
    assert (source / f"{module.replace('.', '/')}.py").read_text() == STUB


def test_requirements_are_added_and_the_rest_stays_as_it_is(tmp_path: Path) -> None:
    root = project(tmp_path / "project", HATCHLING, "mynet")
    (root / "pyproject.toml").chmod(0o640)
    done = init(root, "--backend", "openvino", "--backend", "aoti")
    assert done.exit_code == 0
    text = (root / "pyproject.toml").read_text()
    assert "      # a comment that stays\n" in text
    assert '  "torch==2.13.*",  # pinned\n' in text
    table = written(root).unwrap()
    requires = table["build-system"]["requires"]
    assert requires[:2] == ["hatchling>=1.28", "hatch-lower[openvino]"]
    assert requires[2].startswith("torch==2.")
    assert table["project"]["dependencies"] == [
        "torch==2.13.*",
        "hatch-lower>=0.1",
        "openvino>=2026.0,<2027",
        "numpy>=1.26",
    ]
    assert table["tool"]["hatch"]["build"]["hooks"]["lower"] == {"backends": ["openvino", "aoti"]}
    assert (root / "pyproject.toml").stat().st_mode & 0o777 == 0o640
    assert sorted(each.name for each in root.iterdir()) == ["mynet", "pyproject.toml"]
    again = init(root)
    assert again.stderr == "error: the project uses hatch-lower already\n  where: tool.hatch.build.hooks.lower\n"
    assert (root / "pyproject.toml").read_text() == text


def test_an_engine_of_numpys_arrays_needs_torch_in_builds_only(tmp_path: Path) -> None:
    root = project(tmp_path / "project", HATCHLING.replace('  "torch==2.13.*",  # pinned\n', ""), "mynet")
    assert init(root, "--backend", "onnxruntime").exit_code == 0
    table = written(root).unwrap()
    assert table["project"]["dependencies"] == ["hatch-lower>=0.1", "onnxruntime>=1.23,<2", "numpy>=1.26"]
    assert any(text.startswith("torch==") for text in table["build-system"]["requires"])


@pytest.mark.parametrize("text", [SETUPTOOLS, SETUPTOOLS[SETUPTOOLS.index("[project]") :]])
def test_a_project_of_setuptools_is_built_by_hatchling_from_then_on(tmp_path: Path, text: str) -> None:
    root = project(tmp_path / "project", text, "src/mynet")
    assert init(root).exit_code == 0
    table = written(root).unwrap()
    assert table["build-system"]["build-backend"] == "hatchling.build"
    names = [requirement.partition(">")[0] for requirement in table["build-system"]["requires"]]
    assert not {"setuptools", "wheel"} & {*names}
    assert table["tool"]["hatch"]["version"] == {"path": "src/mynet/__init__.py"}


def test_headings_keep_the_empty_line_before_them(tmp_path: Path) -> None:
    root = project(tmp_path / "p", HATCHLING + "\n[tool.ruff]\nline-length = 100\n")
    init(root)
    lines = (root / "pyproject.toml").read_text().splitlines()
    assert all(before == "" for before, line in itertools.pairwise(lines) if line.startswith("["))


def test_a_link_and_the_line_ends_of_windows_stay(tmp_path: Path) -> None:
    root = project(tmp_path / "project", "", "src/my_net")
    (root / "pyproject.toml").unlink()
    (tmp_path / "real.toml").write_bytes(HATCHLING.replace("\n", "\r\n").encode())
    (root / "pyproject.toml").symlink_to(tmp_path / "real.toml")
    assert init(root, "--need", "native").exit_code == 0
    assert (root / "pyproject.toml").is_symlink()
    found = (tmp_path / "real.toml").read_bytes()
    assert b"hooks.lower" in found
    assert b"\n" not in found.replace(b"\r\n", b"")


def test_weights_on_the_disk_are_inputs_and_keys_of_uv(tmp_path: Path) -> None:
    root = project(tmp_path / "project", HATCHLING, "src/mynet")
    (root / "src/mynet/weights").mkdir()
    for name in ("weights/a.safetensors", "weights/b.safetensors", "c.pt", "notes.txt"):
        (root / "src/mynet" / name).touch()
    assert init(root).exit_code == 0
    table = written(root).unwrap()
    inputs = ["src/mynet/*.pt", "src/mynet/weights/*.safetensors"]
    assert table["tool"]["hatch"]["build"]["hooks"]["lower"]["inputs"] == inputs
    assert table["tool"]["uv"]["cache-keys"] == [
        {"file": name} for name in ("pyproject.toml", "src/mynet/**/*.py", *inputs)
    ]


def test_a_module_that_is_there_is_not_written_over(tmp_path: Path) -> None:
    root = project(tmp_path / "project", HATCHLING, "mynet")
    (root / "mynet/model.py").write_text("class Net: pass\n")
    assert init(root).exit_code == 0
    assert (root / "mynet/model.py").read_text() == "class Net: pass\n"
    models = written(root).unwrap()["project"]["entry-points"]["hatch_lower.models"]
    assert models == {"My-Net": "mynet.model_export:export"}
    other = project(tmp_path / "other", HATCHLING, "mynet")
    (other / "mynet/model.py").write_text("def export(): pass\n")
    done = init(other)
    assert "wrote" not in done.output
    assert (other / "mynet/model.py").read_text() == "def export(): pass\n"


@pytest.mark.torch
def test_the_stand_in_is_a_model() -> None:
    namespace: dict[str, object] = {}
    exec(compile(STUB, "model.py", "exec"), namespace)
    model = namespace["export"]()  # type: ignore[operator]
    assert list(model.methods) == ["forward"]
    assert model.module(*model.methods["forward"].args).shape == (2, 4)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("hatchling.build", "flit_core.buildapi", "the project is built neither by hatchling nor by setuptools"),
        ('name = "My-Net"\n', "", "the project has no name"),
        ('version = "1.0"\n', "", "the project has no version"),
        ("[project]", '[project.entry-points."hatch_lower.models"]\n[project]', "the project declares models already"),
        ("[project]", "[tool.hatch.build.targets.wheel.hooks.lower]\n[project]", "uses hatch-lower already"),
        ("[project]", "[project", "the project's file cannot be read"),
        ("hatchling.build", "setuptools.build_meta", "metadata of the project come from setuptools"),
    ],
)
def test_init_refuses_a_project_that_it_would_break(tmp_path: Path, old: str, new: str, message: str) -> None:
    text = HATCHLING.replace(old, new)
    if "setuptools" in new:
        text = text.replace('version = "1.0"', 'dynamic = ["version", "readme"]')
    root = project(tmp_path / "project", text, "mynet")
    done = init(root)
    assert (done.exit_code, done.stdout) == (1, "")
    assert message in done.stderr.splitlines()[0]
    assert (root / "pyproject.toml").read_text() == text
    assert not (root / "mynet/model.py").exists()


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["one/__init__.py", "two/__init__.py"], "the project has several packages, and no package has its name"),
        (["my_net.py"], "the project is a single module, and lowered programs need a package"),
    ],
)
def test_init_does_not_guess(tmp_path: Path, files: list[str], message: str) -> None:
    root = project(tmp_path / "project", HATCHLING)
    for name in files:
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).touch()
    done = init(root)
    assert done.exit_code == 1
    assert message in done.stderr
    assert (root / "pyproject.toml").read_text() == HATCHLING


@pytest.mark.processes
@pytest.mark.parametrize("keys", [True, False])
def test_uv_sync_builds_again_after_a_change_of_the_weights(tmp_path: Path, keys: bool) -> None:
    root = project(tmp_path / "project", HATCHLING, "mynet")
    weights = root / "mynet/a.safetensors"
    weights.touch()
    assert init(root).exit_code == 0
    table = written(root)
    del table["tool"]["hatch"]["build"]["hooks"]  # type: ignore[union-attr]
    table["project"]["dependencies"] = []  # type: ignore[index]
    if not keys:
        del table["tool"]["uv"]  # type: ignore[union-attr]
    (root / "pyproject.toml").write_text(tomlkit.dumps(table))
    # the environment of the project finds hatchling here, so that nothing is downloaded
    site = {"UV_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = ["uv", "sync", "--no-editable", "--no-build-isolation", "--offline", "--python", sys.executable]
    for number, text in enumerate(("old", "new")):
        weights.write_text(text)
        os.utime(weights, (10**9 + number, 10**9 + number))
        subprocess.run(command, cwd=root, check=True, env={**os.environ, **site}, capture_output=True, text=True)
    (installed,) = (root / ".venv").glob("lib/python*/site-packages/mynet/a.safetensors")
    assert installed.read_text() == ("new" if keys else "old")


ENGINES = ("openvino", "onnxruntime", "executorch", "torch")


@pytest.mark.parametrize(
    ("needs", "installed", "backend", "reason"),
    [
        ((), ENGINES, "openvino", "of ten models in docs/engines.md, it is the fastest most often"),
        ((), ("torch",), "openvino", "a build needs no compiler"),
        ((), ("onnxruntime",), "onnxruntime", "its library is installed here, and `openvino`'s is not"),
        (("torch-free",), ("onnxruntime",), "onnxruntime", "models that it takes whole run without torch"),
        (("torch-free", "no-compiler"), (), "openvino", "models that it takes whole run without torch"),
        (("no-compiler", "phone"), ("onnxruntime",), "executorch", "a phone runs the same file"),
        (("native",), ENGINES, "aoti", "the wheel has machine code, and needs no library beside torch"),
    ],
)
def test_the_backend_follows_the_needs_and_what_is_installed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    needs: tuple[str, ...],
    installed: tuple[str, ...],
    backend: str,
    reason: str,
) -> None:
    monkeypatch.setattr("hatch_lower.cli.proposal.find_spec", lambda name: name if name in installed else None)
    root = project(tmp_path, HATCHLING, "my_net")
    done = init(root, *(f"--need={need}" for need in needs))
    assert (done.exit_code, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    first, last = lines.index(f"backend `{backend}`:"), lines.index("other backends (`--backend`):")
    assert f"  {reason}" in lines[first:last]
    assert not any(line.startswith(f"  `{backend}`") for line in lines)
    hook = written(root).unwrap()["tool"]["hatch"]["build"]["hooks"]["lower"]
    assert hook == {"backends": [backend], **({"torch-free": True} if "torch-free" in needs else {})}


def test_native_code_without_a_compiler_here_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    done = init(project(tmp_path, HATCHLING, "my_net"), "--need=native")
    assert "  a build needs g++ or clang++, and this machine has neither\n" in done.stdout


def test_needs_that_no_backend_meets_are_refused(tmp_path: Path) -> None:
    done = init(project(tmp_path, HATCHLING, "my_net"), "--need=native", "--need=torch-free")
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr == (
        "error: no backend meets all needs of the project\n"
        "  where: `--need`\n"
        "  found: `native`: `aoti`\n"
        "    `torch-free`: `openvino`, `onnxruntime`\n"
        "  to do: leave out a need, or write a recipe for each backend: a machine loads a recipe that runs there\n"
    )
    assert (tmp_path / "pyproject.toml").read_text() == HATCHLING


def test_a_named_backend_has_no_needs(tmp_path: Path) -> None:
    root = project(tmp_path, HATCHLING, "my_net")
    done = init(root, "--backend=aoti", "--need=native")
    assert done.exit_code == 2
    assert "give only one of them" in done.stderr
    assert "backend `aoti`" not in init(root, "--backend=aoti").stdout


def test_machines_without_a_gpu_get_a_recipe_of_their_own(tmp_path: Path) -> None:
    project(tmp_path, HATCHLING, "my_net")
    assert init(tmp_path, "--backend", "aoti", "--backend", "cuda").exit_code == 0
    hook = written(tmp_path)["tool"]["hatch"]["build"]["hooks"]["lower"]
    assert (hook["backends"], hook["recipes"]["cpu"]["backends"]) == (["cuda"], ["aoti"])


# Checkpoints of transformers


def checkpoint(root: Path, **config: object) -> Path:
    folder = root / "models" / "reviews"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").touch()
    return folder


def test_a_checkpoint_with_code_is_declared_for_whoever_trusts_the_code(tmp_path: Path) -> None:
    root = project(tmp_path / "p", HATCHLING)
    folder = checkpoint(root, architectures=["OwnNet"], auto_map={"AutoModel": "modeling_own.OwnNet"})
    (folder / "modeling_own.py").touch()
    before = (root / "pyproject.toml").read_text()
    done = init(root, "--transformers", "models/reviews", "--backend", "onnxruntime")
    assert (done.exit_code, "trust-remote-code" in done.output) == (1, True)
    assert (root / "pyproject.toml").read_text() == before
    done = init(root, "--transformers", "models/reviews", "--trust-remote-code", "--backend", "onnxruntime")
    assert done.exit_code == 0, done.output
    lower = written(root).unwrap()["tool"]["hatch"]["build"]["hooks"]["lower"]
    assert lower["models"] == {"My-Net": {"transformers": "models/reviews", "trust-remote-code": True}}


def test_a_checkpoint_without_safe_weights_is_refused(tmp_path: Path) -> None:
    root = project(tmp_path / "p", HATCHLING)
    (checkpoint(root, architectures=["BertForMaskedLM"]) / "model.safetensors").rename(root / "model.bin")
    done = init(root, "--transformers", "models/reviews", "--backend", "onnxruntime")
    assert "a checkpoint must have its weights in safetensors files" in done.output + str(done.exception)
    (root / "model.bin").rename(root / "models" / "reviews" / "pytorch_model.bin")
    done = init(root, "--transformers", "models/reviews", "--backend", "onnxruntime")
    assert "from transformers import BertForMaskedLM as m" in done.output + str(done.exception)
    assert (root / "pyproject.toml").read_text() == HATCHLING


def test_trust_without_a_checkpoint_is_refused(tmp_path: Path) -> None:
    root = project(tmp_path / "p", HATCHLING)
    done = init(root, "--trust-remote-code")
    assert (done.exit_code, "`--trust-remote-code` is for the code of a checkpoint" in done.output) == (2, True)


def test_a_checkpoint_needs_no_entry_point(tmp_path: Path) -> None:
    root = project(tmp_path / "p", HATCHLING)
    checkpoint(root, architectures=["BertForMaskedLM"])
    done = init(root, "--transformers", "models/reviews", "--task", "fill-mask", "--backend", "onnxruntime")
    assert done.exit_code == 0, done.output
    document = written(root).unwrap()
    lower = document["tool"]["hatch"]["build"]["hooks"]["lower"]
    assert lower["models"] == {"My-Net": {"transformers": "models/reviews", "task": "fill-mask"}}
    assert "inputs" not in lower
    assert lower["runtime-requirements"] == "add"
    assert "hatch-lower[onnxruntime,transformers]" in document["build-system"]["requires"]
    assert "entry-points" not in document["project"]
    assert {"file": "models/reviews/*"} in document["tool"]["uv"]["cache-keys"]
    assert [path.name for path in (root / "src" / "my_net").iterdir()] == ["__init__.py"]
    assert "the checkpoint in `models/reviews` is the model to lower" in done.output
    assert "tokenizers" not in document["project"]["dependencies"]


def test_init_refuses_a_task_that_the_architecture_lacks(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    root = project(tmp_path / "p", HATCHLING)
    checkpoint(root, architectures=["BertForMaskedLM"], model_type="bert")
    options = ("--transformers", "models/reviews", "--backend", "onnxruntime", "--task")
    done = init(root, *options, "image-classification")
    assert done.exit_code == 1
    lines = done.output.splitlines()
    assert lines[:3] == [
        "error: the architecture of the checkpoint does not have the task",
        "  where: `--task`",
        "  found: task `image-classification`, architecture `bert`",
    ]
    assert "take one of the architecture's tasks (`feature-extraction`, `fill-mask`, " in lines[3]
    assert "image" not in lines[3]
    assert (root / "pyproject.toml").read_text() == HATCHLING
    assert init(root, *options, "fill-mask").exit_code == 0


@pytest.mark.parametrize(
    ("has_transformers", "config"),
    [
        (False, {"model_type": "bert"}),
        (True, {"model_type": "a later one"}),
        (True, {"model_type": ["bert"]}),
        (True, {}),
    ],
)
def test_a_task_of_an_unknown_architecture_is_left_to_the_build(
    has_transformers: bool, config: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if has_transformers:
        pytest.importorskip("transformers")
    else:
        monkeypatch.setitem(sys.modules, "transformers", None)
    root = project(tmp_path / "p", HATCHLING)
    checkpoint(root, architectures=["BertForMaskedLM"], **config)
    done = init(root, "--transformers", "models/reviews", "--task", "image-classification", "--backend", "onnxruntime")
    assert done.exit_code == 0, done.output


def test_a_checkpoint_with_a_tokenizer_needs_the_library_of_tokenizers(tmp_path: Path) -> None:
    root = project(tmp_path / "p", HATCHLING)
    (checkpoint(root, architectures=["BertForMaskedLM"]) / "tokenizer.json").write_text("{}")
    assert init(root, "--transformers", "models/reviews", "--backend", "onnxruntime").exit_code == 0
    assert "tokenizers" in written(root).unwrap()["project"]["dependencies"]


def test_a_checkpoint_of_timm_needs_no_entry_point(tmp_path: Path) -> None:
    root = project(tmp_path / "p", HATCHLING)
    checkpoint(root, architecture="resnet18")
    done = init(root, "--timm", "models/reviews", "--backend", "onnxruntime")
    assert done.exit_code == 0, done.output
    lower = written(root).unwrap()["tool"]["hatch"]["build"]["hooks"]["lower"]
    assert lower["models"] == {"My-Net": {"timm": "models/reviews"}}
    assert "the checkpoint in `models/reviews` is the model to lower" in done.output


@pytest.mark.parametrize(
    ("file", "contents", "needed"),
    [
        ("preprocessor_config.json", {"image_processor_type": "ViTImageProcessor"}, {"pillow", "numpy"}),
        (
            "preprocessor_config.json",
            {"feature_extractor_type": "ViTFeatureExtractor", "image_mean": []},
            {"pillow", "numpy"},
        ),
        ("processor_config.json", {"image_processor": {"image_processor_type": "a"}}, {"pillow", "numpy"}),
        ("preprocessor_config.json", {"feature_extractor_type": "WhisperFeatureExtractor"}, {"numpy"}),
        ("preprocessor_config.json", [], {"numpy"}),
        ("LICENSE", {}, set()),
    ],
)
def test_a_checkpoint_with_an_image_processor_needs_pillow(
    file: str, contents: object, needed: set[str], tmp_path: Path
) -> None:
    root = project(tmp_path / "p", HATCHLING)
    (checkpoint(root, architectures=["BertForMaskedLM"]) / file).write_text(json.dumps(contents))
    assert init(root, "--transformers", "models/reviews", "--backend", "aoti").exit_code == 0
    found = {text.partition(">")[0] for text in written(root).unwrap()["project"]["dependencies"]}
    assert found & {"pillow", "numpy"} == needed


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--transformers", "models/none"), "neither a folder of the project nor a commit"),
        (("--transformers", "models"), "the folder holds no checkpoint of transformers"),
        (("--timm", "models/reviews"), "the folder holds no checkpoint of timm"),
        (("--timm", "../elsewhere"), "the checkpoint is not in a folder of the project"),
        (("--timm", "a", "--transformers", "b"), "`--transformers` and `--timm` both name the model"),
        (("--timm", "models/reviews", "--task", "fill-mask"), "give `--transformers`, too"),
        (("--transformers", "../elsewhere"), "the checkpoint is not in a folder of the project"),
        (("--transformers", "."), "the checkpoint is not in a folder of the project"),
        (("--transformers", "models/reviews", "--task", "fill"), "there is no such task"),
        (("--transformers", "models/reviews", "--export", "a:b"), "give only one of them"),
        (("--task", "fill-mask"), "give `--transformers`, too"),
    ],
)
def test_init_refuses_a_checkpoint_that_no_build_takes(options: tuple[str, ...], message: str, tmp_path: Path) -> None:
    root = project(tmp_path / "p", HATCHLING)
    checkpoint(root)
    done = init(root, *options)
    assert done.exit_code != 0
    assert message in done.output + str(done.exception)
    assert (root / "pyproject.toml").read_text() == HATCHLING
    assert not (root / "src").exists()


def test_a_checkpoint_of_the_hub_is_declared_by_its_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("huggingface_hub")
    for name in ("HATCH_LOWER_FETCH", "HF_HUB_OFFLINE", "HF_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.setenv("HATCH_LOWER_CACHE_DIR", str(tmp_path / "cache"))
    root = project(tmp_path / "p", HATCHLING)
    files = {"config.json": b"{}", "tokenizer.json": b"{}", "model.safetensors": b"1"}
    with served(hub_answers(files)) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        done = init(root, "--transformers", f"org/name@{COMMIT}", "--backend", "onnxruntime")
    assert done.exit_code == 0, done.output
    document = written(root).unwrap()
    models = document["tool"]["hatch"]["build"]["hooks"]["lower"]["models"]
    assert models == {"My-Net": {"transformers": f"org/name@{COMMIT}"}}
    assert "tokenizers" in document["project"]["dependencies"]
    assert not any("org/name" in entry["file"] for entry in document["tool"]["uv"]["cache-keys"])
    assert f"the checkpoint `org/name@{COMMIT}` is the model to lower" in done.output
    assert [path for _, path, _ in server.requests if "safetensors" in path] == []


def test_a_checkpoint_of_timm_on_the_hub_is_declared_by_its_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("huggingface_hub")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HATCH_LOWER_CACHE_DIR", str(tmp_path / "cache"))
    place = tmp_path / "hub" / "models--org--name" / "snapshots" / COMMIT
    place.mkdir(parents=True)
    (place / "config.json").write_text('{"architecture": "resnet18"}')
    root = project(tmp_path / "p", HATCHLING)
    done = init(root, "--timm", f"org/name@{COMMIT}", "--backend", "onnxruntime")
    assert done.exit_code == 0, done.output
    models = written(root).unwrap()["tool"]["hatch"]["build"]["hooks"]["lower"]["models"]
    assert models == {"My-Net": {"timm": f"org/name@{COMMIT}"}}


def test_an_encoder_of_the_hub_is_declared_with_its_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("huggingface_hub")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HATCH_LOWER_CACHE_DIR", str(tmp_path / "cache"))
    place = tmp_path / "hub" / "models--org--name" / "snapshots" / COMMIT
    (place / "0_Transformer").mkdir(parents=True)
    (place / "modules.json").write_text(
        '[{"path": "0_Transformer", "type": "sentence_transformers.models.Transformer"}]'
    )
    (place / "0_Transformer" / "config.json").write_text("{}")
    root = project(tmp_path / "p", HATCHLING)
    assert init(root, "--transformers", f"org/name@{COMMIT}", "--backend", "onnxruntime").exit_code == 0
    models = written(root).unwrap()["tool"]["hatch"]["build"]["hooks"]["lower"]["models"]
    assert models == {"My-Net": {"sentence-transformers": f"org/name@{COMMIT}"}}
