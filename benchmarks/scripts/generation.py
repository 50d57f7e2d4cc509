"""`generation.py FOLDER [PROMPT …]`: tokens a second of a decoder of 110 M parameters, packaged and by others.

The sides are the recipes `onnxruntime`, `openvino`, `portable` and `int8` (`onnxruntime`) of a packaged Llama with
random weights, transformers on torch, transformers' own exports to ONNX and OpenVINO with their runners, and
onnxruntime-genai and openvino-genai where they are installed. Each side runs in processes of its own, in turns; a row
has the medians. FOLDER keeps the checkpoint and the wheel. Needs `hatch-lower[transformers,onnxruntime,openvino]`.
"""

from __future__ import annotations

import importlib.util
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

RECIPES = ("onnxruntime", "openvino", "portable", "int8")
OTHERS = ("eager", "exporter", "exporter-openvino")
LIBRARIES = ("onnxruntime-genai", "openvino-genai")
PROCESSES = 3
TOKENS = 128
PYPROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "decoder"
version = "1.0"

[tool.hatch.build.targets.wheel]
packages = ["decoder"]

[tool.hatch.build.hooks.lower]
runtime-requirements = "off"
recipes.onnxruntime.backends = ["onnxruntime"]
recipes.openvino.backends = ["openvino"]
recipes.portable.backends = []
recipes.int8 = { backends = ["onnxruntime"], precision = "int8", rtol = 1, atol = 1 }

[tool.hatch.build.hooks.lower.models.decoder]
transformers = "checkpoint"
"""


def prepare(folder: Path) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    (folder / "decoder").mkdir(parents=True)
    (folder / "decoder" / "__init__.py").touch()
    (folder / "pyproject.toml").write_text(PYPROJECT)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32_000,
        hidden_size=768,
        intermediate_size=2048,
        num_hidden_layers=12,
        num_attention_heads=12,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).save_pretrained(folder / "checkpoint")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel"], cwd=folder, check=True)
    (wheel,) = (folder / "dist").glob("*.whl")
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder / "site"), str(wheel)]
    subprocess.run(install, check=True)


def measured(side: str, folder: Path, prompt: int) -> dict[str, float]:
    script = Path(__file__).with_name("generation_measure.py")
    command = [sys.executable, str(script), side, str(folder), str(prompt), str(TOKENS)]
    done = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, env={**os.environ, "HF_HUB_OFFLINE": "1"}
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main(folder: Path, prompts: list[int]) -> None:
    if not (folder / "site").exists():
        prepare(folder)
    installed = [name for name in LIBRARIES if importlib.util.find_spec(name.replace("-", "_"))]
    sides = [*RECIPES, *OTHERS, *installed]
    print("| prompt | side | first token, s | tokens a second | step, first and last 32, ms | memory, MiB |")
    print("|---|---|---|---|---|---|")
    for prompt in prompts:
        rounds = [{side: measured(side, folder, prompt) for side in sides} for _ in range(PROCESSES)]
        for side in sides:
            row = {name: statistics.median(each[side][name] for each in rounds) for name in rounds[0][side]}
            steps = f"{row['early']:.1f}, {row['late']:.1f}"
            print(f"| {prompt} | {side} | {row['first']:.2f} | {row['tokens']:.1f} | {steps} | {row['memory']:.0f} |")


main(Path(sys.argv[1]).resolve(), [int(each) for each in sys.argv[2:]] or [128, 768])
