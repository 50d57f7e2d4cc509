"""Compile half of the `onnxruntime` backend: edge programs in, ONNX models without their constants out."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, ClassVar

from hatch_lower.backends.onnxruntime.library import CPU, import_onnxruntime, requirement
from hatch_lower.backends.onnxruntime.options import BACKEND_ID, parse_options, providers_json
from hatch_lower.backends.onnxruntime.providers import CUDA, on_cuda
from hatch_lower.errors import BackendError, extra_hint
from hatch_lower.exir.backend.backend_details import BackendDetails, CompileSpec, PreprocessResult
from hatch_lower.exir.backend.options import spec_values
from hatch_lower.exir.backend.partitioner import Partitioner

if TYPE_CHECKING:
    from torch.export import ExportedProgram

VERSION = "21"
CONVERTERS = ("onnx", "onnx-ir", "onnxscript", "onnxruntime")

# providers with a kernel for ONNX Runtime's own product of transposed matrices
FUSING = frozenset({CPU, CUDA})


class OnnxruntimeBackend(BackendDetails):
    """Lowers a partition to ONNX; its delegate is `hatch_lower.backends.onnxruntime.run:OnnxruntimeDelegate`."""

    weight_free: ClassVar[bool] = True
    copies_constants: ClassVar[bool] = True

    @staticmethod
    def preprocess(edge_program: ExportedProgram, compile_specs: list[CompileSpec]) -> PreprocessResult:
        options = parse_options(spec_values(BACKEND_ID, compile_specs))
        require_libraries()
        from hatch_lower.backends.onnxruntime.translate import translate

        names = [provider.name for provider in options.providers]
        translated = translate(edge_program, fuses=FUSING.issuperset(names), on_cpu=names == [CPU])
        return PreprocessResult(
            processed_bytes=translated.model,
            debug_handle_map=dict(translated.handles),
            suffix="onnx",
            requirements=(requirement(names),),
            info={
                **translated.call,
                "bound": translated.bound,
                "providers": providers_json(options),
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
    def device(cls, options: Mapping[str, object]) -> str:
        return "cuda" if on_cuda(parse_options(options).providers) else "cpu"

    @classmethod
    def requirements(cls, options: Mapping[str, object]) -> Sequence[str]:
        return (requirement(provider.name for provider in parse_options(options).providers),)

    @classmethod
    def fingerprint(cls, compile_specs: Sequence[CompileSpec]) -> Mapping[str, str]:
        # ONNX Runtime is among the converters, as its kernels decide which operations are taken
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
