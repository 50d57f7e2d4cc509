"""Triton's model repository: a folder for each method, with `config.pbtxt` and the files of Triton's backend."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from hatch_lower.cli.serve.describe import Described
from hatch_lower.cli.serve.whole import ENGINE, find_whole, write_whole
from hatch_lower.format.served import ANY, DATATYPES, FACTS, ServedMethod, ServedTensor, write_served
from hatch_lower.frozen import Frozen
from hatch_lower.runtime.files import PackagedFolder

PYTHON = "python"
VERSION = "1"
MODEL = '''\
"""A lowered model for Triton's Python backend, written by hatch-lower: the method that `method.json` describes."""

from functools import partial
from pathlib import Path

import triton_python_backend_utils as pb_utils

from hatch_lower.runtime.serving.method import load_served, open_served


class TritonPythonModel:
    def initialize(self, args):
        gpu = args["model_instance_kind"] == "GPU"
        device = f"cuda:{args['model_instance_device_id']}" if gpu else None
        self.caller = open_served(Path(__file__).parent, partial(load_served, device=device))

    def execute(self, requests):
        names = [tensor.name for tensor in self.caller.served.inputs]
        given = [
            {name: pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in names}
            for request in requests
        ]
        return [self.response(outputs) for outputs in self.caller.call_each(given)]

    def response(self, outputs):
        if isinstance(outputs, Exception):
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(outputs)))
        return pb_utils.InferenceResponse([pb_utils.Tensor(name, array) for name, array in outputs.items()])
'''

README = """\
# A model repository for Triton

Written by hatch-lower from `{requirement}`.

```console
$ tritonserver --model-repository=$PWD
```

| model | Triton's backend | rows of a batch | reason for the Python backend | reason for calls of one request |
|---|---|---|---|---|
{rows}
"""
README_PYTHON = """\
The backend `python` loads the installed wheel: run `pip install {requirement}` in the Python of Triton's Python
backend. Another version is refused.
"""
README_ENGINE = """\
The backend `onnxruntime` runs `model.onnx` without hatch-lower. The file gave the packaged model's numbers for the
packaged example inputs, with the ONNX Runtime of the machine where the file was written. Triton compares names, dtypes,
sizes and the rows of a batch with `config.pbtxt`. No digests of files are compared.
"""
README_BATCH = """\
Triton joins requests (`dynamic_batching`) for a method if a call with two rows gave the numbers of a call for each row.
Two rows are a test and no proof. If rows influence each other, set `max_batch_size` to 0 and begin each `dims` with -1.
"""


class TritonModel(Frozen):
    described: Described
    backend: str  # of Triton
    reason: str  # why the Python backend runs the method; empty for an engine's own backend


def write_triton(folder: Path, packaged: PackagedFolder, described: Described) -> TritonModel:
    """Write the folder of a method into a model repository."""
    place = folder / described.served.name
    version = place / VERSION
    version.mkdir(parents=True)
    whole = find_whole(described)
    reason = whole if isinstance(whole, str) else write_whole(version, packaged, described, whole)
    served = described.served
    if reason:
        shutil.rmtree(version)  # may have an engine's model that is not served
        version.mkdir()
        served = lifted(served)
        (version / FACTS).write_bytes(write_served(served))
        (version / "model.py").write_text(MODEL, "utf-8")
    found = TritonModel(described, PYTHON if reason else ENGINE, reason)
    text = "\n".join(config_lines(served, found.backend, described.owner.device))
    (place / "config.pbtxt").write_text(f"{text}\n", "utf-8")
    return found


def lifted(served: ServedMethod) -> ServedMethod:
    """Return the description with a further dimension for each tensor without dimensions besides the batch's."""
    own = 1 if served.batch else 0

    def tensors(listed: Sequence[ServedTensor]) -> tuple[ServedTensor, ...]:
        return tuple(replace(tensor, lifted=len(tensor.shape) == own) for tensor in listed)

    return replace(served, inputs=tensors(served.inputs), outputs=tensors(served.outputs))


def config_lines(served: ServedMethod, backend: str, device: str) -> Iterator[str]:
    yield f"# hatch-lower: {served.distribution} {served.version}, model {served.model}, method {served.method}"
    yield f'name: "{served.name}"'
    yield f'backend: "{backend}"'
    yield f"max_batch_size: {served.batch}"
    for field, tensors in (("input", served.inputs), ("output", served.outputs)):
        yield from config_tensor_lines(field, tensors, bool(served.batch))
    if served.batch:
        yield "dynamic_batching { }"
    yield f"instance_group [ {{ count: 1 kind: {'KIND_CPU' if device == 'cpu' else 'KIND_GPU'} }} ]"


def config_tensor_lines(field: str, tensors: Sequence[ServedTensor], has_batch: bool) -> Iterator[str]:
    # Triton refuses a size of 0 in a configuration
    for tensor in tensors:
        sizes = [*(size or ANY for size in tensor.shape[has_batch:]), *([1] if tensor.lifted else [])]
        yield f"{field} {{"
        yield f'  name: "{tensor.name}"'
        yield f"  data_type: TYPE_{DATATYPES[tensor.dtype]}"
        yield f"  dims: [ {', '.join(map(str, sizes))} ]"
        yield "}"


def readme_text(models: Sequence[TritonModel], requirement: str) -> str:
    parts = [README.format(requirement=requirement, rows="\n".join(map(readme_row, models)))]
    if any(each.backend == PYTHON for each in models):
        parts.append(README_PYTHON.format(requirement=requirement))
    if any(each.backend == ENGINE for each in models):
        parts.append(README_ENGINE)
    return "\n".join([*parts, README_BATCH])


def readme_row(model: TritonModel) -> str:
    served = model.described.served
    reasons = (model.reason, model.described.not_batched)
    cells = [f"`{served.name}`", f"`{model.backend}`", str(served.batch or "-"), *reasons]
    return f"| {' | '.join(' '.join(cell.replace('|', '/').split()) for cell in cells)} |"
