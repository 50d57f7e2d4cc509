"""Language models with Pixtral as their reader of images, to export for generation: Pixtral and Mistral 3.

`encode_image` takes the patches of an image of any size, which the caller cuts with `format/grids.py`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.export import Dim

from hatch_lower.format.grids import image_patches, patch_positions
from hatch_lower.format.prompts import PIXELS
from hatch_lower.huggingface.generation import CacheForm
from hatch_lower.huggingface.vision import ImageGenerator


class PixtralGenerator(ImageGenerator):
    def __init__(self, model: Any, form: CacheForm) -> None:
        self.merge = getattr(model.config, "spatial_merge_size", 1)
        self.patch = model.config.vision_config.patch_size
        super().__init__(model, form)

    def image_inputs(self) -> list[dict[str, Tensor]]:
        sides, side = [(2, 3), (3, 2)], self.merge * self.patch
        channels = self.model.config.vision_config.num_channels
        self.pictures = [torch.randn(channels, side * height, side * width) for height, width in sides]
        return [
            {
                PIXELS: torch.from_numpy(image_patches(picture.numpy(), self.patch, self.merge)),
                "patch_positions": torch.from_numpy(patch_positions(each, self.merge)),
            }
            for picture, each in zip(self.pictures, sides, strict=True)
        ]

    def image_shapes(self) -> dict[str, Any]:
        places = Dim("places", min=1, max=self.longest)
        return {PIXELS: {0: places}, "patch_positions": {0: places}}

    def start(self, **inputs: Tensor) -> dict[str, Any]:
        return {**super().start(**inputs), "image_merge": self.merge, "image_patch": self.patch}

    def encode_image(self, pixel_values: Tensor, patch_positions: Tensor) -> Tensor:  # type: ignore[override]
        """Return the features of an image, float32 of shape (places, features).

        Args:
            pixel_values: float32 of shape (places, patches of a place, pixels of a patch).
            patch_positions: float32 of shape (places, patches of a place, 2): row and column of each patch.
        """
        base, layers = self.model.base_model, self.model.config.vision_feature_layer
        tower, projector = base.vision_tower, base.multi_modal_projector
        pixels: Tensor = torch.unflatten(pixel_values.flatten(0, 1), 1, (-1, self.patch, self.patch))
        states = [tower.ln_pre(tower.patch_conv(pixels).flatten(1)[None])]
        turns = tower.patch_positional_embedding(states[0], patch_positions.flatten(0, 1))
        for layer in tower.transformer.layers:
            states.append(layer(states[-1], None, position_embeddings=turns))
        seen = torch.cat([states[each][0] for each in ([layers] if isinstance(layers, int) else layers)], -1)
        found: Tensor
        if not hasattr(projector, "patch_merger"):
            found = projector(seen)
            return found
        merged = torch.unflatten(projector.norm(seen), 0, (-1, self.merge**2)).transpose(1, 2).flatten(1)
        hidden = projector.linear_1(projector.patch_merger.merging_layer(merged))
        found = projector.linear_2(projector.act(hidden))
        return found

    def expected_inputs(self, row: int) -> dict[str, Tensor]:
        picture = self.pictures[row]
        return {PIXELS: picture[None], "image_sizes": torch.tensor([picture.shape[1:]])}
