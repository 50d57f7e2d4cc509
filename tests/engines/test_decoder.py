"""The decoder among the examples: every recipe generates the tokens that transformers generates."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from support.effort import LONG
from support.scenarios import copy_project, unpack
from support.venv import run

if None in (find_spec("openvino"), find_spec("onnxruntime"), find_spec("transformers")):
    pytest.skip("the engines or transformers are not installed", allow_module_level=True)

pytestmark = [pytest.mark.isolated, pytest.mark.slow]

ENGINES = {"onnxruntime": {"onnxruntime"}, "openvino": {"openvino"}}
RECIPES = {"default": {"aoti"}, "portable": set(), **ENGINES} if LONG else {"default": set(), **ENGINES}
"""Recipe to the backends of its delegates; native code is for long runs, for compiling it takes a minute."""

PROMPTS = [[5, 17], [3, 200, 41, 7, 99, 12, 8], [5, 17]]
COUNT = 10

BY_TRANSFORMERS = """
import json, sys
import torch
from decoder.model import llama

prompts, count = json.loads(sys.argv[1]), int(sys.argv[2])
answers = [llama().generate(torch.tensor([p]), max_new_tokens=count, do_sample=False)[0, len(p):] for p in prompts]
print(json.dumps([answer.tolist() for answer in answers]))
"""

BY_THE_WHEEL = """
import json, sys
import hatch_lower
from decoder.__main__ import generate

prompts, count = json.loads(sys.argv[1]), int(sys.argv[2])
models = [hatch_lower.load("decoder", recipe=recipe) for recipe in sys.argv[3:]]
print(json.dumps({model.recipe: [generate(model, prompt, count) for prompt in prompts] for model in models}))
assert "transformers" not in sys.modules
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built wheel, unpacked."""
    folder = tmp_path_factory.mktemp("decoder")
    project = copy_project("decoder", folder)
    if not LONG:  # the default recipe is what the portable one would be
        project.edit("pyproject.toml", 'backends = ["aoti"] ', "backends = []")
        project.edit("pyproject.toml", "[tool.hatch.build.hooks.lower.recipes.portable]\nbackends = []", "")
    return unpack(project.wheel(), folder / "site")


def test_every_recipe_generates_what_transformers_generates(site: Path) -> None:
    environment, arguments = {"PYTHONPATH": str(site)}, [json.dumps(PROMPTS), str(COUNT)]
    told = run([sys.executable, "-c", BY_TRANSFORMERS, *arguments], environment=environment).check().stdout
    expected = json.loads(told.splitlines()[-1])
    assert expected[0] != expected[1]
    assert [len(answer) for answer in expected] == [COUNT] * 3
    command = [sys.executable, "-W", "error", "-c", BY_THE_WHEEL, *arguments, *RECIPES]
    found = json.loads(run(command, environment=environment).check().stdout)
    assert found == dict.fromkeys(RECIPES, expected)


def test_each_recipe_runs_on_its_engine(site: Path) -> None:
    for recipe, backends in RECIPES.items():
        debug = json.loads((site / "decoder" / "_lowered" / "decoder" / f"{recipe}.debug.json").read_text())
        for method in ("prefill", "decode"):
            delegates = debug["methods"][method]["delegates"].values()
            assert {delegate["backend"] for delegate in delegates} == backends, (recipe, method)
            if recipe in ENGINES:
                assert len(delegates) == 1, (recipe, method)
