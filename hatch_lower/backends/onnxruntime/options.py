"""The options of a recipe for the `onnxruntime` backend."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hatch_lower.backends.onnxruntime.providers import CPU_ALONE, Provider, provider_problems, read_provider
from hatch_lower.exir.backend.backend_details import CompileSpec
from hatch_lower.exir.backend.options import GivenOptions, is_number_from, json_specs

BACKEND_ID = "onnxruntime"


@dataclass(frozen=True, slots=True)
class OnnxruntimeOptions:
    # ONNX Runtime's execution providers, the best first; a model is loaded with all of the providers, or not at all
    providers: tuple[Provider, ...] = CPU_ALONE
    # number of threads of a loaded model; 0: as many as torch has at load
    threads: int = 0
    # ATen overloads (`aten.sort.stable`) that are left to the program's own executor
    exclude: tuple[str, ...] = ()
    # the model computes with finite numbers only, so kernels may treat NaN and infinity as they like
    finite: bool = True

    def to_specs(self) -> list[CompileSpec]:
        # The settings that shape the result of a partition. The choice of nodes is not among them.
        return json_specs({"providers": providers_json(self), "threads": self.threads})


def providers_json(options: OnnxruntimeOptions) -> list[object]:
    return [provider.to_json() for provider in options.providers]


def parse_options(options: Mapping[str, object]) -> OnnxruntimeOptions:
    given = GivenOptions(BACKEND_ID, options)
    exclude, finite = given.excluded("aten.sort.stable"), given.flag("finite-only", True)
    values = given.read("providers", [CPU_ALONE[0].to_json()], lambda value: True, "")
    given.problems += provider_problems(values)
    threads = given.read("threads", 0, is_number_from(0), "a number of threads, or 0 for as many as torch has")
    given.check(f"it knows {', '.join(f'`{name}`' for name in sorted(given.known))}; correct the recipe's table for it")
    return OnnxruntimeOptions(tuple(map(read_provider, values)), threads, exclude, finite)
