"""Comparison of a packaged model with transformers, for `architectures.py`: `measure` is called in a new process.

Calls have 1 and 3 rows of other lengths than the build's. Generated tokens must be the same.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from architecture_images import has_processor, prompts
from architecture_models import WORDS

import hatch_lower

__all__ = ["measure"]

RTOL, ATOL = 1e-4, 1e-5  # the build's for float32; the second is a share of the largest number
SIZES = (1, {"": 7, "samples": 6000}), (3, {"": 19, "samples": 23_456})  # rows, and lengths by name
NEW_TOKENS = 20
FIRST = 10  # smaller numbers are special tokens
INPUT = re.compile(r"(\w+)\[(.*)\]")


def measure(name: str, project: Path, inputs: Mapping[str, str], recipes: Sequence[str], path: Path) -> None:
    """Write the comparison of each recipe as JSON.

    The JSON has the largest difference from transformers as a share of the largest number, and a text for each call
    with unequal results, or an error.

    Args:
        name: of the architecture.
        project: with the folders `site` and `checkpoint`.
        inputs: of `forward` by name, as `hatch-lower inspect` describes them; empty for a model with `generate`.
        recipes: names of recipes.
        path: the file to write.
    """
    sys.path.insert(0, str(project / "site"))
    config = json.loads((project / "checkpoint" / "config.json").read_text())
    kind = getattr(transformers, config["architectures"][0])
    found: dict[str, dict[str, Any]] = {}
    for recipe in recipes:
        try:
            eager = kind.from_pretrained(project / "checkpoint", dtype=torch.float32).eval()
            described = partial(forwards, described=inputs) if inputs else generations
            calls = partial(with_images, name=name) if has_processor(name) else described
            found[recipe] = outcome(hatch_lower.load("subject", recipe=recipe), eager, calls)
        except Exception as error:  # of any kind: the row of the table
            found[recipe] = {"error": f"the call: {type(error).__name__}: {error}"}
    path.write_text(json.dumps(found))


def outcome(model: Any, eager: Any, calls: Callable[..., Iterator[Any]]) -> dict[str, Any]:
    largest, unequal = 0.0, []
    for title, found, wanted in calls(model, eager):
        difference, is_equal = compared(found, wanted)
        largest = max(largest, difference)
        if not is_equal:
            unequal.append(f"{title}: {difference:.1e}")
    return {"largest": largest, "unequal": unequal}


def compared(found: Any, wanted: torch.Tensor) -> tuple[float, bool]:
    """Return the largest difference as a share of the largest number, and whether the results are equal."""
    found = torch.as_tensor(found)
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        return float("inf"), False
    size = max(1.0, wanted.abs().amax().item())
    close = torch.allclose(found, wanted, rtol=RTOL, atol=ATOL * size)
    return (found - wanted).abs().amax().item() / size, close if wanted.is_floating_point() else found.equal(wanted)


def forwards(model: Any, eager: Any, described: Mapping[str, str]) -> Iterator[tuple[str, Any, torch.Tensor]]:
    """Yield results of `forward` of both sides for random inputs, by name."""
    for rows, lengths in SIZES:
        given = random_inputs(described, eager.config, rows, lengths)
        with torch.no_grad():
            wanted = eager(**given, **({"use_cache": False} if eager.can_generate() else {}))
        found = model(**arrays(model, given))
        for name, value in wanted.items():
            if isinstance(value, torch.Tensor):
                yield f"{rows} rows, `{name}`", getattr(found, name), value


def random_inputs(
    described: Mapping[str, str], config: Any, rows: int, lengths: Mapping[str, int]
) -> dict[str, torch.Tensor]:
    """Return inputs for a number of rows; the last row of several has padding."""
    found = {}
    for name, spec in described.items():
        dtype, shape = INPUT.fullmatch(spec).groups()
        sizes = [size_of(each.strip(), rows, lengths) for each in shape.split(",")]
        found[name] = torch.randn(sizes) if dtype.startswith("float") else torch.zeros(sizes, dtype=torch.int64)
    generator = torch.Generator().manual_seed(rows)
    for name in ("input_ids", "decoder_input_ids"):
        if name in found:
            found[name] = torch.randint(FIRST, WORDS, found[name].shape, generator=generator)
    if "attention_mask" in found:
        found["attention_mask"] += 1
        if rows > 1:
            found["attention_mask"][-1, -4:] = 0
            found["input_ids"][-1, -4:] = config.get_text_config().pad_token_id or 0
        if config.is_encoder_decoder:  # an end token for each text
            places = found["attention_mask"].sum(1, keepdim=True) - 1
            found["input_ids"].scatter_(1, places, config.eos_token_id)
    return found


def size_of(text: str, rows: int, lengths: Mapping[str, int]) -> int:
    return int(text) if text.isdigit() else rows if text == "batch" else lengths.get(text, lengths[""])


def generations(model: Any, eager: Any) -> Iterator[tuple[str, Any, torch.Tensor]]:
    """Yield tokens of both sides after random prompts; those of several rows have padding."""
    config = eager.config.get_text_config(decoder=True)
    has_encoder, main = eager.config.is_encoder_decoder, eager.main_input_name
    for rows, lengths in SIZES:
        ids = torch.randint(FIRST, WORDS, (rows, lengths[""]), generator=torch.Generator().manual_seed(rows))
        mask = torch.ones_like(ids)
        if rows > 1:
            padded = (-1, slice(-4, None)) if has_encoder else (-1, slice(4))
            ids[padded], mask[padded] = config.pad_token_id or 0, 0
        given = {"input_ids": ids, "attention_mask": mask}
        if main == "input_values":
            given = {main: torch.randn(rows, lengths["samples"])}
        elif main != "input_ids":
            frames = 2 * eager.config.max_source_positions
            given = {main: torch.randn(rows, eager.config.num_mel_bins, frames)}
        options = {"max_new_tokens": NEW_TOKENS, "pad_token_id": config.pad_token_id or 0}
        more = {"decoder_input_ids": torch.ones(rows, 1, dtype=torch.int64)} if has_encoder else {}
        eager.generation_config.eos_token_id = None
        wanted = transformers.GenerationMixin.generate(eager, **given, **more, **options, do_sample=False)
        found = model.generate(**arrays(model, {**given, **more}), **options, eos_token_id=[])
        yield f"{rows} rows, tokens", found, wanted


def with_images(model: Any, eager: Any, name: str) -> Iterator[tuple[str, Any, torch.Tensor]]:
    """Yield tokens of both sides after prompts with images, and the arguments of `preprocess` and of the processor."""
    options = {"max_new_tokens": NEW_TOKENS, "pad_token_id": 0}
    eager.generation_config.eos_token_id = None
    for title, given, made in prompts(name, model):
        wanted = eager.generate(**given, **options, do_sample=False)
        yield title, model.generate(**arrays(model, given), **options, eos_token_id=[]), wanted
        for argument, value in made.items():
            yield f"{title}, `{argument}` of `preprocess`", value, given[argument]
        if made:
            yield f"{title}, `preprocess`", model.generate(**made, **options, eos_token_id=[]), wanted


def arrays(model: Any, given: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    return {name: each.numpy() if model.arrays == "numpy" else each for name, each in given.items()}
