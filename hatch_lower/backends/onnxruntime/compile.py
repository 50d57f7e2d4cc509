"""Compile half of the `onnxruntime` backend: edge programs in, ONNX models with their large weights apart out."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from hatch_lower.backends.onnxruntime.library import import_onnxruntime
from hatch_lower.backends.onnxruntime.options import BACKEND_ID, Options, parse_options
from hatch_lower.errors import BackendError
from hatch_lower.exir._serialize._named_data_store import NamedDataStore
from hatch_lower.exir.backend.backend_details import BackendDetails, CompileSpec, PreprocessResult
from hatch_lower.exir.backend.options import extra_hint, spec_values
from hatch_lower.exir.backend.partitioner import Partitioner
from hatch_lower.exir.tensor_layout import TensorLayout

if TYPE_CHECKING:
    from torch.export import ExportedProgram

VERSION = "2"
CONVERTERS = ("onnx", "onnx-ir", "onnxscript", "onnxruntime")
ALIGNMENT = 64  # of weights, in bytes: the widest vector registers load whole lines of the cache

DISTRIBUTIONS: Mapping[str, str] = {
    "CUDAExecutionProvider": "onnxruntime-gpu",
    "TensorrtExecutionProvider": "onnxruntime-gpu",
    "DmlExecutionProvider": "onnxruntime-directml",
    "OpenVINOExecutionProvider": "onnxruntime-openvino",
    "CoreMLExecutionProvider": "onnxruntime",
    "CPUExecutionProvider": "onnxruntime",
}
# ONNX Runtime reads older models for ever; 1.23 is the oldest with which the way that weights are mapped was tried
RANGE = ">=1.23,<2"


class OnnxruntimeBackend(BackendDetails):
    """Lowers a partition to ONNX; its delegate is `hatch_lower.backends.onnxruntime.run:OnnxruntimeDelegate`."""

    @staticmethod
    def preprocess(edge_program: ExportedProgram, compile_specs: list[CompileSpec]) -> PreprocessResult:
        options = parse_options(spec_values(BACKEND_ID, compile_specs))
        require_libraries()
        from hatch_lower.backends.onnxruntime.translate import translate

        translated = translate(edge_program)
        store = NamedDataStore()
        # named by content: a name stands for one in all delegates
        weights = {f"onnxruntime-{digest[:32]}": contents for digest, contents in translated.weights.items()}
        for key, contents in weights.items():
            layout = TensorLayout.of_bytes(len(contents))
            store.add_named_data(key, contents, alignment=ALIGNMENT, tensor_layout=layout)
        return PreprocessResult(
            processed_bytes=translated.model,
            debug_handle_map=dict(translated.handles),
            data_store_output=store.get_named_data_store_output(),
            suffix="onnx",
            requirements=(requirement(options),),
            info={
                **translated.call,
                "weights": list(weights),
                "providers": list(options.providers),
                "threads": options.threads,
            },
        )

    @classmethod
    def partitioner(cls, options: Mapping[str, object]) -> Partitioner:
        parsed = parse_options(options)
        require_libraries()
        from hatch_lower.backends.onnxruntime.partitioner import OnnxruntimePartitioner

        return OnnxruntimePartitioner(parsed)

    @classmethod
    def requirements(cls, options: Mapping[str, object]) -> Sequence[str]:
        return (requirement(parse_options(options)),)

    @classmethod
    def fingerprint(cls, compile_specs: Sequence[CompileSpec]) -> Mapping[str, str]:
        # ONNX Runtime is among them, for it says which operations it has code for
        return {"backend": VERSION, **{name: installed_version(name) for name in CONVERTERS}}


def installed_version(name: str) -> str:
    # a special build of ONNX Runtime goes by another name
    try:
        return version(name)
    except PackageNotFoundError:
        if name == "onnxruntime":
            import_onnxruntime()
        return str(getattr(importlib.import_module(name.replace("-", "_")), "__version__", "unknown"))


def require_libraries() -> None:
    try:
        importlib.import_module("onnx.helper")  # a folder with the name `onnx` would be a package, too
        importlib.import_module("onnxscript.optimizer")
        import_onnxruntime()
    except ImportError as error:
        raise BackendError(
            "the backend `onnxruntime` needs libraries that cannot be imported",
            found=f"{type(error).__name__}: {error}",
            hint=extra_hint("onnxruntime"),
        ) from error


def requirement(options: Options) -> str:
    # that of the provider which the recipe prefers
    return DISTRIBUTIONS.get(options.providers[0], "onnxruntime") + RANGE
