"""`generation_measure.py SIDE FOLDER PROMPT TOKENS`: tokens a second of one side, in a process of its own.

SIDE is a recipe of the packaged decoder, `eager` for transformers on torch, or `exporter` for transformers' own export
to ONNX and its runner. The last line is JSON: seconds of the first token, medians of the first and last 32 steps in
milliseconds, tokens a second, and the resident memory in MiB.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

EDGE = 32  # steps at each end
ROUNDS = 3


def packaged(recipe: str, folder: Path) -> Callable[[Any, int], Iterator[Any]]:
    sys.path.insert(0, str(folder / "site"))
    import hatch_lower

    model = hatch_lower.load("decoder", recipe=recipe)
    given = (lambda ids: ids) if model.arrays == "numpy" else __import__("torch").from_numpy
    return lambda ids, count: model.stream(given(ids), max_new_tokens=count, eos_token_id=[])


def eager(folder: Path) -> Callable[[Any, int], Iterator[Any]]:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder / "checkpoint").eval()

    @torch.no_grad()
    def steps(ids: Any, count: int) -> Iterator[Any]:
        tokens, cache = torch.from_numpy(ids), None
        for _ in range(count):
            found = model(input_ids=tokens, cache=cache, use_cache=True, logits_to_keep=1)
            cache, tokens = found.cache, found.logits[:, -1:].argmax(-1)
            yield tokens

    return steps


def exporter(folder: Path) -> Callable[[Any, int], Iterator[Any]]:
    import torch
    from transformers import AutoModelForCausalLM, DynamicCache
    from transformers.exporters import ExportedModel, OnnxConfig, OnnxExporter

    if not (folder / "exported").exists():
        model = AutoModelForCausalLM.from_pretrained(folder / "checkpoint").eval()
        ids = torch.ones(2, 16, dtype=torch.int64)
        exported = OnnxExporter().export_for_generation(
            model, {"input_ids": ids, "attention_mask": ids}, OnnxConfig(dynamic=True), multi_token_decode=True
        )
        exported.save_pretrained(folder / "exported")
    exported = ExportedModel.from_pretrained(folder / "exported")
    exported.components = {"decode": exported.components["decode"]}
    run = exported.to().runners["decode"]
    config = exported.config

    @torch.no_grad()
    def steps(ids: Any, count: int) -> Iterator[Any]:
        tokens, total = torch.from_numpy(ids), ids.shape[1]
        empty = torch.zeros(1, config.num_key_value_heads, 0, config.head_dim)
        cache = DynamicCache([(empty, empty) for _ in range(config.num_hidden_layers)])
        for layer in cache.layers:
            layer.keys = layer.values = empty
        for _ in range(count):
            positions = torch.arange(total - tokens.shape[1], total)[None]
            mask = torch.ones(1, total, dtype=torch.int64)
            found = run(input_ids=tokens, attention_mask=mask, position_ids=positions, cache=cache)
            cache, tokens, total = found.cache, found.logits[:, -1:].argmax(-1), total + 1
            yield tokens

    return steps


def memory() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))


def measure(steps: Callable[[Any, int], Iterator[Any]], prompt: int, count: int) -> dict[str, float]:
    ids = np.random.default_rng(0).integers(3, 400, (1, prompt))
    for _ in range(ROUNDS):  # the last round counts
        begin = time.perf_counter()
        times = [begin, *(time.perf_counter() for _ in steps(ids, count + 1))]
    taken = np.diff(times)
    first, rest = taken[0], taken[1:]
    early, late = (float(np.median(each)) * 1000 for each in (rest[:EDGE], rest[-EDGE:]))
    return {"first": float(first), "early": early, "late": late, "tokens": count / rest.sum(), "memory": memory()}


side, where, prompt, count = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
makers: dict[str, Callable[[Path], Callable[[Any, int], Iterator[Any]]]] = {"eager": eager, "exporter": exporter}
chosen = makers[side](where) if side in makers else packaged(side, where)
print(json.dumps(measure(chosen, prompt, count)))
