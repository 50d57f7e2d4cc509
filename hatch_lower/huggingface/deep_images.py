"""Qwen3-VL, to export for generation: features of images for the first layers of the language model, too.

The features of a token are those of the first layer, and behind them the summands of the results of the first layers,
which are zero for a token of a text.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.export import Dim
from torch.nn.functional import pad

from hatch_lower.format.grids import Sides, table_weights
from hatch_lower.huggingface.attention import Layers
from hatch_lower.huggingface.generation import CacheForm
from hatch_lower.huggingface.sized_images import SizedImageGenerator, attended


class DeepImageGenerator(SizedImageGenerator):
    def __init__(self, model: Any, form: CacheForm) -> None:
        self.table = model.base_model.visual.num_grid_per_side
        super().__init__(model, form)

    def image_input(self, sides: Sides, pixels: int) -> dict[str, Tensor]:
        weights = torch.from_numpy(table_weights(sides, self.merge, self.table))
        return {**super().image_input(sides, pixels), "table_weights": weights}

    def image_shapes(self) -> dict[str, Any]:
        places = Dim("places", min=1, max=self.longest)
        return {name: {0: places} for name in self.images[0]}

    def start(self, **inputs: Tensor) -> dict[str, Any]:
        return {**super().start(**inputs), "image_table": self.table}

    def encode_image(  # type: ignore[override]
        self, pixel_values: Tensor, image_positions: Tensor, table_weights: Tensor
    ) -> Tensor:
        """Return the features of an image, float32 of shape (places, features of the layers).

        Args:
            pixel_values: float32 of shape (places, patches of a place, pixels of a patch).
            image_positions: float32 of shape (places, patches of a place, 2): row and column of each patch.
            table_weights: float32 of shape (places, patches of a place, 2, side of the table of positions).
        """
        visual = self.model.base_model.visual
        rows, columns = table_weights.flatten(0, 1).unbind(1)
        positions = (rows[:, :, None] * columns[:, None]).flatten(1) @ visual.pos_embed.weight
        hidden = visual.patch_embed(pixel_values.flatten(0, 1)) + positions
        turns = visual.rotary_pos_emb(hidden, image_positions.flatten(0, 1))
        deep: list[Tensor] = []
        for number, block in enumerate(visual.blocks):
            hidden = hidden + attended(block.attn, block.norm1(hidden), turns, None)
            hidden = hidden + block.mlp(block.norm2(hidden))
            if number in visual.deepstack_visual_indexes:
                deep.append(visual.deepstack_merger_list[len(deep)](hidden))
        return torch.cat([visual.merger(hidden), *deep], -1)

    def embed(self, input_ids: Tensor) -> Tensor:
        found = super().embed(input_ids)
        return pad(found, (0, found.shape[2] * len(self.model.base_model.visual.deepstack_merger_list)))

    def decode(  # type: ignore[override]
        self,
        inputs_embeds: Tensor,
        attention_mask: Tensor,
        kept: Tensor,
        cache: Layers,
        position_ids: Tensor | None = None,
        sliding_mask: Tensor | None = None,
    ) -> tuple[Tensor, Layers]:
        first, *deep = torch.split(inputs_embeds, self.text_config.hidden_size, -1)
        with self.adding(deep):
            return super().decode(first, attention_mask, kept, cache, position_ids, sliding_mask)

    @contextmanager
    def adding(self, deep: list[Tensor]) -> Iterator[None]:
        """Let the first layers of the language model add features to their results."""
        layers = self.model.base_model.language_model.layers
        hooks = [
            layer.register_forward_hook(lambda _, args, found, more=more: found + more)
            for layer, more in zip(layers, deep, strict=False)
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
