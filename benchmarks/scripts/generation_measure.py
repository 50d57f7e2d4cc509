"""`generation_measure.py SIDE FOLDER PROMPT TOKENS`: tokens a second of one side, in a process of its own.

SIDE is a recipe of the packaged decoder; `eager`, transformers on torch; `exporter` or `exporter-openvino`,
transformers' own export to ONNX or OpenVINO and its runner; `onnxruntime-genai`, with the model of its own builder; or
`openvino-genai`, with the model that transformers exported. The last line is JSON: seconds of the first token, medians
of the first and last 32 steps in milliseconds, tokens a second, and the resident memory in MiB.
"""

from __future__ import annotations

import json
import shutil
import subprocess
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


def exported(kind: str, folder: Path) -> Any:
    """Return the decoder with a cache as transformers exports it to "Onnx" or "OpenVINO"; FOLDER keeps the export."""
    import torch
    from transformers import AutoModelForCausalLM, exporters

    kept = folder / f"exported-{kind.lower()}"
    if not kept.exists():
        model = AutoModelForCausalLM.from_pretrained(folder / "checkpoint").eval()
        ids = torch.ones(2, 16, dtype=torch.int64)
        made, config = (getattr(exporters, kind + part) for part in ("Exporter", "Config"))
        made().export_for_generation(
            model, {"input_ids": ids, "attention_mask": ids}, config(dynamic=True), multi_token_decode=True
        ).save_pretrained(kept)
    found = exporters.ExportedModel.from_pretrained(kept)
    found.components = {"decode": found.components["decode"]}
    return found


def exporter(folder: Path) -> Callable[[Any, int], Iterator[Any]]:
    import torch
    from transformers import DynamicCache

    model = exported("Onnx", folder)
    run, config = model.to().runners["decode"], model.config

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


def exporter_openvino(folder: Path) -> Callable[[Any, int], Iterator[Any]]:
    # as the recipe: by default, OpenVINO computes in bfloat16 on processors with instructions for bfloat16
    settings = {"INFERENCE_PRECISION_HINT": "f32"}
    request = exported("OpenVINO", folder).to(config=settings).runners["decode"].request
    rows = np.zeros(1, np.int32)

    def steps(ids: Any, count: int) -> Iterator[Any]:
        request.reset_state()
        tokens, total = ids, ids.shape[1]
        for _ in range(count):
            positions = np.arange(total - tokens.shape[1], total)[None]
            found = request.infer({"input_ids": tokens, "position_ids": positions, "beam_idx": rows})
            tokens, total = next(iter(found.values()))[:, -1:].argmax(-1), total + 1
            yield tokens

    return steps


def with_tokenizer(folder: Path) -> Path:
    """Return a checkpoint with a tokenizer, which both libraries for generation require; a word for each token."""
    from tokenizers import Tokenizer, models
    from transformers import AutoConfig, PreTrainedTokenizerFast

    kept = folder / "with-tokenizer"
    if not kept.exists():
        shutil.copytree(folder / "checkpoint", kept)
        size = AutoConfig.from_pretrained(kept).vocab_size
        words = Tokenizer(models.WordLevel({f"w{each}": each for each in range(size)}, unk_token="w0"))
        names = {"unk_token": "w0", "bos_token": "w1", "eos_token": "w2"}
        PreTrainedTokenizerFast(tokenizer_object=words, **names).save_pretrained(kept)
    return kept


def onnxruntime_genai(folder: Path) -> Callable[[Any, int], Iterator[Any]]:
    import onnxruntime_genai as genai

    kept, source = folder / "onnxruntime-genai", with_tokenizer(folder)
    if not kept.exists():
        paths = ["-i", source, "-m", source, "-o", kept, "-c", folder / "onnxruntime-genai-cache"]
        command = ["-m", "onnxruntime_genai.models.builder", *paths, "-p", "fp32", "-e", "cpu"]
        subprocess.run([sys.executable, *map(str, command)], check=True, stdout=subprocess.DEVNULL)
    model = genai.Model(str(kept))

    def steps(ids: Any, count: int) -> Iterator[Any]:
        parameters = genai.GeneratorParams(model)
        length = ids.shape[1] + count
        parameters.set_search_options(min_length=length, max_length=length, do_sample=False)
        generator = genai.Generator(model, parameters)
        generator.append_tokens(ids.astype(np.int32))
        for _ in range(count):
            generator.generate_next_token()
            yield generator.get_next_tokens()

    return steps


def openvino_genai(folder: Path) -> Callable[[Any, int], list[float]]:
    import openvino
    import openvino_genai as genai
    from openvino import opset13
    from openvino_tokenizers import convert_tokenizer
    from transformers import AutoTokenizer

    kept, source = folder / "openvino-genai", with_tokenizer(folder)
    if not kept.exists():
        model = exported("OpenVINO", folder).components["decode"].program
        mask = opset13.parameter([-1, -1], openvino.Type.i64, name="attention_mask")  # required; the graph has no use
        mask.output(0).get_tensor().set_names({"attention_mask"})
        model.add_parameters([mask])
        openvino.save_model(model, kept / "openvino_model.xml", compress_to_fp16=False)
        pair = convert_tokenizer(AutoTokenizer.from_pretrained(source), with_detokenizer=True)
        for name, each in zip(("tokenizer", "detokenizer"), pair, strict=True):
            openvino.save_model(each, kept / f"openvino_{name}.xml")
        for name in ("config.json", "generation_config.json"):
            shutil.copy(source / name, kept)
    model = genai.LLMPipeline(str(kept), "CPU", INFERENCE_PRECISION_HINT="f32")

    class Times(genai.StreamerBase):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.times: list[float] = []

        def write(self, tokens: Any) -> Any:
            self.times.append(time.perf_counter())
            return genai.StreamingStatus.RUNNING

        def end(self) -> None: ...

    def times(ids: Any, count: int) -> list[float]:
        settings = genai.GenerationConfig(max_new_tokens=count, ignore_eos=True, do_sample=False)
        streamer = Times()
        given = genai.TokenizedInputs(openvino.Tensor(ids), openvino.Tensor(np.ones_like(ids)))
        model.generate(given, settings, streamer)
        assert len(streamer.times) == count
        return streamer.times

    return times


def memory() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))


def each_time(steps: Callable[[Any, int], Iterator[Any]]) -> Callable[[Any, int], list[float]]:
    return lambda ids, count: [time.perf_counter() for _ in steps(ids, count)]


def measure(run: Callable[[Any, int], list[float]], prompt: int, count: int) -> dict[str, float]:
    for seed in range(ROUNDS):  # the last round counts; openvino-genai remembers prompts
        ids = np.random.default_rng(seed).integers(3, 400, (1, prompt))
        begin = time.perf_counter()
        times = [begin, *run(ids, count + 1)]
    taken = np.diff(times)
    first, rest = taken[0], taken[1:]
    early, late = (float(np.median(each)) * 1000 for each in (rest[:EDGE], rest[-EDGE:]))
    return {"first": float(first), "early": early, "late": late, "tokens": count / rest.sum(), "memory": memory()}


side, where, prompt, count = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
makers: dict[str, Callable[[Path], Callable[[Any, int], Iterator[Any]]]] = {
    "eager": eager,
    "exporter": exporter,
    "exporter-openvino": exporter_openvino,
    "onnxruntime-genai": onnxruntime_genai,
}
if side == "openvino-genai":
    chosen = openvino_genai(where)
else:
    chosen = each_time(makers[side](where) if side in makers else packaged(side, where))
print(json.dumps(measure(chosen, prompt, count)))
