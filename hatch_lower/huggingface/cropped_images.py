"""Language models whose images are crops of one size, to export for generation: LLaVA-NeXT and LLaVA-OneVision.

`encode_image` takes a crop. The caller joins the features of an image's crops with `format/crops.py`.
"""

from __future__ import annotations

import inspect
import re
from typing import Any

import torch
from torch import Tensor

from hatch_lower.format.crops import Crops, Sides
from hatch_lower.format.prompts import PIXELS
from hatch_lower.huggingface.examples import BATCH
from hatch_lower.huggingface.generation import CacheForm
from hatch_lower.huggingface.refusals import refused_images
from hatch_lower.huggingface.vision import ImageGenerator


class CroppedImageGenerator(ImageGenerator):
    def __init__(self, model: Any, form: CacheForm) -> None:
        config, vision = model.config, model.config.vision_config
        most = re.search(r"\d+", getattr(config, "vision_aspect_ratio", ""))
        self.crops = Crops(
            vision.image_size,
            vision.image_size // vision.patch_size,
            tuple((height, width) for height, width in config.image_grid_pinpoints),
            int(most.group()) if most else 0,
        )
        refuse_other_packing(model, self.crops)
        # an image with borders
        height, width = self.crops.resolutions[0]
        self.size = (max(1, height * 2 // 3), width)
        super().__init__(model, form)

    def image_inputs(self) -> list[dict[str, Tensor]]:
        rows, columns = self.crops.grid(self.size)
        channels, side = self.model.config.vision_config.num_channels, self.crops.side
        self.pixels = torch.randn(BATCH, rows * columns + 1, channels, side, side)
        return [{"crop": crop} for crop in self.pixels[:, :1]]

    def features_of(self, row: int) -> Tensor:
        features = torch.stack([self.encode_image(crop[None]) for crop in self.pixels[row]])
        return torch.from_numpy(self.crops.packed(features.detach().numpy(), self.size))

    def start(self, **inputs: Tensor) -> dict[str, Any]:
        crops = self.crops
        numbers = {
            "side": crops.side,
            "places": crops.places,
            "resolutions": list(crops.resolutions),
            "most": crops.most,
        }
        return {**super().start(**inputs), "crops": numbers}

    def encode_image(self, crop: Tensor) -> Tensor:
        """Return the features of a crop and of a line's end, float32 of shape (places + 1, features).

        Args:
            crop: float32 of shape (1, channels, height, width).
        """
        base, config = self.model.base_model, self.model.config
        states = base.vision_tower(crop, output_hidden_states=True, return_dict=True).hidden_states
        layers = config.vision_feature_layer
        chosen = [states[layer] for layer in ([layers] if isinstance(layers, int) else layers)]
        seen = torch.cat(chosen, -1)
        if config.vision_feature_select_strategy == "default":
            seen = seen[:, 1:]  # without the token of a class
        return torch.cat([base.multi_modal_projector(seen)[0], base.image_newline[None]])

    def expected_inputs(self, row: int) -> dict[str, Tensor]:
        return {PIXELS: self.pixels[row][None], "image_sizes": torch.tensor([self.size])}


def refuse_other_packing(model: Any, crops: Crops) -> None:
    """Compare the features of images of all resolutions with those that transformers joins, for random numbers."""
    base = model.base_model
    options = {"vision_feature_select_strategy": "full", "vision_aspect_ratio": f"anyres_max_{crops.most}"}
    taken = inspect.signature(base.pack_image_features).parameters
    options = {name: each for name, each in options.items() if name in taken}
    end = torch.randn(1, 2)
    for height, width in crops.resolutions:
        sizes: list[Sides] = [(height, width), (height // 2 + 1, width), (height, width // 3 + 1)]
        for size in sizes:
            rows, columns = crops.grid(size)
            features = torch.randn(rows * columns + 1, crops.places**2, 2)
            wanted, _ = base.pack_image_features([features], torch.tensor([size]), image_newline=end[0], **options)
            given = torch.cat([features, end.expand(len(features), 1, 2)], 1)
            found = torch.from_numpy(crops.packed(given.numpy(), size))
            if found.shape != wanted[0].shape or not torch.allclose(found, wanted[0], rtol=1e-4, atol=1e-5):
                raise refused_images(model, f"an image of {size[0]}x{size[1]} has other features than in transformers")
