"""Language models whose images have sizes of their own, to export for generation: Qwen2-VL and Qwen2.5-VL.

`encode_image` takes the patches of an image, and `decode` takes three positions of each token. The caller computes both
by the grid of the image, with `format/grids.py`.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor
from torch.export import Dim
from torch.nn.functional import scaled_dot_product_attention

from hatch_lower.format.grids import Sides, patch_positions, same_window, token_positions
from hatch_lower.format.prompts import PIXELS
from hatch_lower.huggingface.generation import CacheForm
from hatch_lower.huggingface.vision import ImageGenerator


class SizedImageGenerator(ImageGenerator):
    position_rows = 3

    def __init__(self, model: Any, form: CacheForm) -> None:
        config = model.config.vision_config
        self.merge = config.spatial_merge_size
        # the side of a window in places; 0 if each layer sees the whole image
        self.image_window = getattr(config, "window_size", 0) // config.patch_size // self.merge
        super().__init__(model, form)

    def image_inputs(self) -> list[dict[str, Tensor]]:
        # of one number of places, and of more than a window
        side = self.image_window
        self.grids: list[Sides] = [(side + 2, side + 3), (side + 3, side + 2)]
        config = self.model.config.vision_config
        pixels = config.in_channels * config.temporal_patch_size * config.patch_size**2
        return [self.image_input(sides, pixels) for sides in self.grids]

    def image_input(self, sides: Sides, pixels: int) -> dict[str, Tensor]:
        positions = torch.from_numpy(patch_positions(sides, self.merge))
        found = {PIXELS: torch.randn(*positions.shape[:2], pixels), "image_positions": positions}
        if self.image_window:
            found["same_window"] = torch.from_numpy(same_window(sides, self.image_window))
        return found

    def start(self, **inputs: Tensor) -> dict[str, Any]:
        return {**super().start(**inputs), "image_merge": self.merge, "image_window": self.image_window}

    def encode_image(  # type: ignore[override]
        self, pixel_values: Tensor, image_positions: Tensor, same_window: Tensor | None = None
    ) -> Tensor:
        """Return the features of an image, float32 of shape (places, features).

        Args:
            pixel_values: float32 of shape (places, patches of a place, pixels of a patch).
            image_positions: float32 of shape (places, patches of a place, 2): row and column of each patch.
            same_window: bool of shape (places, places): pairs that all layers see.
        """
        visual = self.model.base_model.visual
        hidden = visual.patch_embed(pixel_values.flatten(0, 1))
        turns = visual.rotary_pos_emb(hidden, image_positions.flatten(0, 1))
        sees = None if same_window is None else of_patches(same_window, pixel_values.shape[1])
        for number, block in enumerate(visual.blocks):
            is_whole = sees is None or number in visual.fullatt_block_indexes
            hidden = hidden + attended(block.attn, block.norm1(hidden), turns, None if is_whole else sees)
            hidden = hidden + block.mlp(block.norm2(hidden))
        found: Tensor = visual.merger(hidden)
        return found

    def image_shapes(self) -> dict[str, Any]:
        places = Dim("places", min=1, max=self.longest)
        return {PIXELS: {0: places}, "image_positions": {0: places}, "same_window": {0: places, 1: places}}

    def trial_positions(self, ids: Tensor) -> Tensor:
        visible = torch.ones_like(ids, dtype=torch.bool)
        visible[-1, 0] = False
        return torch.from_numpy(token_positions(ids.numpy(), visible.numpy(), self.token, self.grids))

    def expected_inputs(self, row: int) -> dict[str, Tensor]:
        height, width = self.grids[row]
        grid = torch.tensor([[1, height * self.merge, width * self.merge]])
        return {PIXELS: self.images[row][PIXELS].flatten(0, 1), "image_grid_thw": grid}

    def kinds_of_tokens(self, ids: Tensor) -> dict[str, Tensor]:
        return {"mm_token_type_ids": (ids == self.token).int()}


def of_patches(places: Tensor, count: int) -> Tensor:
    """Return a matrix of pairs of places as one of pairs of patches, with `count` patches of each place."""
    size = places.shape[0] * count
    return places[:, None, :, None].expand(-1, count, -1, count).reshape(size, size)


def attended(attention: Any, hidden: Tensor, turns: tuple[Tensor, Tensor], sees: Tensor | None) -> Tensor:
    """Return the result of an attention among the patches of an image.

    Args:
        attention: of transformers, whose own `forward` takes windows as a number for each.
        hidden: of shape (patches, features).
        turns: cosines and sines of the patches.
        sees: bool of shape (patches, patches); `None`: each patch sees all.
    """
    rotated = sys.modules[type(attention).__module__].apply_rotary_pos_emb_vision
    parts = attention.qkv(hidden).unflatten(1, (3, attention.num_heads, -1)).unbind(1)
    query, key, value = (each.transpose(0, 1)[None] for each in (*rotated(parts[0], parts[1], *turns), parts[2]))
    found = scaled_dot_product_attention(query, key, value, attn_mask=sees, scale=attention.scaling)
    result: Tensor = attention.proj(found[0].transpose(0, 1).flatten(1))
    return result
