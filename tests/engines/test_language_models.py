"""Language models with an engine: NumPy moves the cache and the positions of tokens, without torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.exports import Workshop, packaged_report, settings_of, write_folder
from support.kept_events import Events

import hatch_lower
from hatch_lower.config.settings import Recipe
from hatch_lower.config.tables import BackendChoice
from hatch_lower.huggingface.declare import generator
from hatch_lower.pipeline.capture import capture_model

pytestmark = pytest.mark.torch

KINDS = {
    "Llama": {
        "vocab_size": 60,
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 64,
    },
    "GPT2": {"vocab_size": 60, "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 64},
}


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_language_model_generates_without_torch(kind: str, engine: str, tmp_path: Path) -> None:
    pytest.importorskip(engine)
    transformers: Any = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**KINDS[kind], pad_token_id=0, eos_token_id=1, bos_token_id=2)
    module = transformers.AutoModelForCausalLM.from_config(config)
    source = capture_model("net", generator(module.eval()), Events())
    report, _ = Workshop(tmp_path).build(source, settings_of(Recipe("default", (BackendChoice(engine),))))
    model = hatch_lower.load(write_folder(tmp_path / "_lowered", packaged_report(report)), arrays="numpy")
    prompt = np.array([[5, 17, 3, 9]])
    options = {"max_new_tokens": 8, "eos_token_id": 1}
    expected = module.generate(torch.from_numpy(prompt), do_sample=False, **options)
    np.testing.assert_array_equal(model.generate(input_ids=prompt, **options), expected.numpy())
