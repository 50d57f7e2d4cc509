"""Numbers in the results of a packaged language model's method `start`, and names of its arguments."""

from __future__ import annotations

PIXELS = "pixel_values"
NEAR_NONE, NEAR_IMAGES, NEAR_PROMPT = range(3)  # the tokens of a prompt that see each other in both directions
