"""The device checks' parts that need no GPU: weights from a seed, projects, comparisons, machine code in libraries."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import torch
from device import errors, native, rebuild, steps
from device.cases import CASES
from device.projects import obtain_weights, write_project, write_weights
from device.stand import difference
from safetensors.torch import load_file
from support.venv import REPOSITORY

pytestmark = pytest.mark.torch
SCRIPT = REPOSITORY / "tools" / "device" / "check.sh"


def test_weights_from_the_seed_are_known(tmp_path: Path) -> None:
    # the wheels of large models name the sha256 of their weights, which the machine with the GPU computes again
    write_weights(tmp_path / "mlp.safetensors", CASES["mlp"])
    content = (tmp_path / "mlp.safetensors").read_bytes()
    assert hashlib.sha256(content).hexdigest() == "6da961a18c10d08c272f0c5a811f031b29d680b37aabee5bd7c665785662aace"


def test_a_file_of_weights_is_a_safetensors_file(tmp_path: Path) -> None:
    for name in ("mlp", "attention_bf16"):
        write_weights(tmp_path / "weights", CASES[name])
        read, made = load_file(tmp_path / "weights"), CASES[name].module().state_dict()
        assert read.keys() == made.keys()
        assert all(torch.equal(read[key], made[key]) for key in made)


def test_large_weights_are_named_by_their_digest(tmp_path: Path) -> None:
    obtain_weights(tmp_path, ["mlp", "decoder"])
    (path,) = tmp_path.iterdir()
    assert path.name == f"{hashlib.sha256(path.read_bytes()).hexdigest()}.safetensors"


@pytest.mark.parametrize("name", CASES)
def test_a_model_has_a_project_for_the_build(name: str, tmp_path: Path) -> None:
    write_project(tmp_path / "project", name, tmp_path / "weights.safetensors")
    text = (tmp_path / "project" / "pyproject.toml").read_text()
    lower = tomllib.loads(text)["tool"]["hatch"]["build"]["hooks"]["lower"]
    assert lower["models"][name]["recipes"] == list(lower["recipes"]) == list(CASES[name].recipes)
    assert ("weights" in lower) is CASES[name].is_large()


def test_models_of_other_steps_exist() -> None:
    assert {*steps.CHECKED, *rebuild.MODELS, *native.MODELS} <= CASES.keys()


def test_a_difference_beyond_the_limit_of_a_dtype_is_wrong() -> None:
    one = torch.ones(3)
    assert difference(one, one) == (0.0, True)
    assert difference(one + 1e-3, one)[1] is False
    assert difference((one + 1e-3).half(), one.half())[1] is True
    assert difference(one * torch.nan, one)[1] is False
    assert difference(torch.tensor([1, 2]), torch.tensor([1, 3])) == (1.0, False)
    with pytest.raises(ValueError, match="outputs differ in kind"):
        difference(one.half(), one)


def test_machine_code_for_gpus_is_found_in_a_library() -> None:
    code = [elf(rebuild.CUDA, 1, b"one"), elf(rebuild.CUDA, 2, b"two")]
    library = elf(62, 1, b"") + b"text" + code[0] + elf(62, 1, b"x") + b"text" + code[1] + b"end"
    assert list(rebuild.machine_code(library)) == code


def elf(machine: int, sections: int, content: bytes) -> bytes:
    head = bytearray(64)
    head[:6], head[18:20] = rebuild.ELF, machine.to_bytes(2, "little")
    head[40:48], head[60:62] = (64 + len(content)).to_bytes(8, "little"), sections.to_bytes(2, "little")
    return bytes(head) + content + bytes(rebuild.SECTION * sections)


def test_an_error_of_another_kind_is_no_refusal() -> None:
    assert errors.refused(errors.InputError, lambda: None) == {"ok": False, "error": "no error was raised"}


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_the_script_ends_at_its_limit_and_names_the_steps_without_time(tmp_path: Path) -> None:
    variables = {**os.environ, "OUT": str(tmp_path), "LIMIT": "0", "HATCH_LOWER_STAND": "cpu"}
    done = subprocess.run(["bash", SCRIPT], env=variables, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    lines = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert lines == [{"step": "install", "end": "no time was left"}]
