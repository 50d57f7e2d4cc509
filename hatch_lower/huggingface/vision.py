"""Language models that read images, to export for generation.

The method `encode_image` returns the features of an image, and `embed` the features of tokens. The caller puts an
image's features in the places of the image's tokens, and `decode` takes the features.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor
from torch.export import Dim

from hatch_lower.format.prompts import NEAR_IMAGES, NEAR_NONE, NEAR_PROMPT, PIXELS
from hatch_lower.huggingface.attention import Layers
from hatch_lower.huggingface.examples import BATCH, known_inputs
from hatch_lower.huggingface.generation import (
    TOKENS,
    CacheForm,
    Example,
    Generator,
    example_mask,
    keys_and_values,
)
from hatch_lower.huggingface.refusals import refused_images
from hatch_lower.huggingface.trial import Trial

# the tokens of a prompt that see each other in both directions, by the model's kind; default: none
NEAR = {"gemma3": NEAR_IMAGES, "paligemma": NEAR_PROMPT}
SIZES = ("image_grid_thw", "image_sizes")  # arguments
QUESTION = "qformer_input_ids"  # argument
SEPARATE = ("blip-2",)  # kinds of models that take no prompt without an image: their language models take the prompts


def reads_images(model: Any) -> bool:
    """Return whether images have places in the prompts of a language model.

    Raises:
        EntryPointError: if the model takes images in another way.
    """
    has_token, takes = isinstance(image_token(model), int), inspect.signature(model.forward).parameters
    if PIXELS not in takes or (model.config.is_encoder_decoder and not has_token):
        return False
    if QUESTION in takes:
        raise refused_images(model, f"features of images that depend on the text, `{QUESTION}`")
    if model.config.is_encoder_decoder:
        raise refused_images(model, "an encoder reads the prompt with the images, and a decoder generates")
    if has_token and hasattr(model, "get_image_features"):
        return True
    raise refused_images(model, "no `image_token_id` in its configuration, or no method `get_image_features`")


def image_token(model: Any) -> Any:
    return getattr(model.config, "image_token_id", None)


class ImageGenerator(Generator):
    def __init__(self, model: Any, form: CacheForm) -> None:
        is_apart = model.config.model_type in SEPARATE
        super().__init__(model.language_model if is_apart else model, form)
        if is_apart:
            self.outer = model
        self.near = NEAR.get(model.config.model_type, NEAR_NONE)
        self.token = image_token(model)
        self.has_rows = False  # whether images are of shape (rows, images of a row, channels, height, width)
        self.images = self.image_inputs()
        with torch.no_grad():
            self._choose_shape()
            self.places = len(self.features_of(0))

    @property
    def whole(self) -> Any:
        """The model with its language model and its reader of images."""
        return self.outer if "outer" in self._modules else self.model

    def image_inputs(self) -> list[dict[str, Tensor]]:
        """Return the arguments of `encode_image` for each image of the examples."""
        images = dict(known_inputs(self.whole, Dim("images"), (PIXELS,)))[PIXELS].value
        return [{PIXELS: image[None]} for image in images]

    def features_of(self, row: int) -> Tensor:
        """Return the features of an image of the examples."""
        return self.encode_image(**self.images[row])

    def _choose_shape(self) -> None:
        try:
            self.features_of(0)
        except ValueError:
            self.has_rows = True
        except (TypeError, AttributeError) as error:
            sizes = sorted(set(SIZES) & inspect.signature(self.whole.forward).parameters.keys())
            reason = f"images with sizes of their own, `{sizes[0]}`" if sizes else f"{type(error).__name__}: {error}"
            raise refused_images(self.whole, reason) from error

    def start(self, **inputs: Tensor) -> dict[str, Any]:
        """Return the cache before the first token, the sizes, and the token of images with its number in an image."""
        more = {"image_token": self.token, "image_places": self.places, "near": self.near}
        return {**super().start(**inputs), **more}

    def encode_image(self, pixel_values: Tensor) -> Tensor:
        """Return the features of an image, float32 of shape (places, features).

        Args:
            pixel_values: float32 of shape (1, channels, height, width).
        """
        given = pixel_values[None] if self.has_rows else pixel_values
        found: Tensor = self.whole.get_image_features(pixel_values=given, return_dict=True).pooler_output[0]
        return found

    def embed(self, input_ids: Tensor) -> Tensor:
        """Return the features of tokens, float32 of shape (batch, tokens, features)."""
        found: Tensor = self.model.get_input_embeddings()(input_ids)
        return found

    def decode(  # type: ignore[override]
        self,
        inputs_embeds: Tensor,
        attention_mask: Tensor,
        kept: Tensor,
        cache: Layers,
        position_ids: Tensor | None = None,
        sliding_mask: Tensor | None = None,
    ) -> tuple[Tensor, Layers]:
        """Return logits and the new keys and values, as `Generator.decode` does, from features of tokens and images."""
        own, mask = self._own_cache(cache, position_ids), self._masks(attention_mask, sliding_mask)
        given: dict[str, Any] = {"inputs_embeds": inputs_embeds, "attention_mask": mask, "cache": own}
        return self._logits(given, kept, position_ids), keys_and_values(own)

    def token_argument(self, ids: Tensor) -> tuple[str, Tensor]:
        with torch.no_grad():
            return "inputs_embeds", self.embed(ids)

    def further_examples(self, batch: Any) -> dict[str, dict[str, Example]]:
        ids = torch.randint(0, self.vocabulary, (BATCH, TOKENS))
        tokens, shapes = Dim("tokens", min=1, max=self.longest), self.image_shapes()
        return {
            "embed": {"input_ids": Example(ids, {0: batch, 1: tokens})},
            "encode_image": {name: Example(each, shapes.get(name)) for name, each in self.images[0].items()},
        }

    def image_shapes(self) -> dict[str, Any]:
        """Return the dynamic sizes of the arguments of `encode_image`."""
        return {}

    def trial(self) -> Trial:
        """Return two prompts with an image each, of which the second begins with padding."""
        ids = torch.randint(0, self.vocabulary - 1, (BATCH, 1 + self.places + TOKENS + 2))
        ids += (ids >= self.token).long()  # no token of images
        ids[:, 1 : 1 + self.places] = self.token
        count = ids.shape[1]
        is_image = ids == self.token
        is_near = is_image if self.near == NEAR_IMAGES else torch.full_like(is_image, self.near == NEAR_PROMPT)
        is_near[-1, 0] = False
        is_near[:, -2:] = False  # new tokens
        near = torch.nn.functional.pad(is_near[:, None, :, None] & is_near[:, None, None], (1, 0))
        mask = example_mask(BATCH, count, 1) | near
        mask[-1, :, 1:, 1] = False
        features = self.embed(ids)
        features[is_image] = torch.cat([self.features_of(row) for row in range(BATCH)])
        kinds = self.kinds_of_tokens(ids)
        expected = [self._expected(ids, kinds, row, begin=row) for row in range(BATCH)]
        return Trial(features, mask, self.trial_positions(ids), {"input_ids": ids}, torch.cat(expected), near)

    def trial_positions(self, ids: Tensor) -> Tensor:
        positions = torch.arange(ids.shape[1]).repeat(BATCH, 1)
        positions[-1] = (positions[-1] - 1).clamp(min=0)
        return positions

    def kinds_of_tokens(self, ids: Tensor) -> dict[str, Tensor]:
        """Return the argument of the model for the kinds of tokens; the last two are new."""
        kinds = {NEAR_IMAGES: (ids == self.token).long(), NEAR_PROMPT: torch.zeros_like(ids)}.get(self.near)
        if kinds is None:
            return {}
        if self.near == NEAR_PROMPT:
            kinds[:, -2:] = 1
        return {"token_type_ids": kinds}

    def expected_inputs(self, row: int) -> dict[str, Tensor]:
        """Return the arguments of the model for the image of a row."""
        image = self.images[row][PIXELS]
        return {PIXELS: image[None] if self.has_rows else image}

    def _expected(self, ids: Tensor, kinds: dict[str, Tensor], row: int, begin: int) -> Tensor:
        """Return the model's logits of the last two tokens of a row, which begins behind its padding."""
        part = (slice(row, row + 1), slice(begin, None))
        given = {
            "input_ids": ids[part],
            **self.expected_inputs(row),
            **{name: each[part] for name, each in kinds.items()},
        }
        found: Tensor = self.whole(**given, use_cache=False).logits[:, -2:]
        return found
