"""MiniLM with trained weights: the embedding of a sentence."""

import json
from importlib.resources import files

from safetensors.torch import load
from torch import Tensor, nn
from torch.export import Dim
from transformers import BertConfig, BertModel

from hatch_lower import Method, Model
from sentences.data import PACKAGE, encoded


class Sentence(nn.Module):
    """The normalized mean of the tokens that a mask names."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        hidden = self.model(input_ids=tokens, attention_mask=mask).last_hidden_state
        weights = mask.unsqueeze(-1).to(hidden.dtype)
        return nn.functional.normalize((hidden * weights).sum(1) / weights.sum(1).clamp(min=1e-9))


def export() -> Model:
    folder = files(PACKAGE) / "model"
    config = BertConfig(**json.loads((folder / "config.json").read_text()))
    model = BertModel(config, add_pooling_layer=False)
    left = model.load_state_dict(load((folder / "model.safetensors").read_bytes()), strict=False)
    assert not left.missing_keys, left
    batch = Dim("batch", min=1, max=64)
    inputs = encoded(["sort a list of numbers", "a sentence about the weather"])
    return Model(Sentence(model).eval(), {"forward": Method(inputs, dynamic_shapes=({0: batch}, {0: batch}))})
