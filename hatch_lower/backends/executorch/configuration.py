"""The options of a recipe for this backend, and where ExecuTorch is imported: only in functions, and quietly."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from hatch_lower.errors import BackendError, extra_hint
from hatch_lower.exir.backend.backend_details import CompileSpec
from hatch_lower.exir.backend.options import GivenOptions, is_number_from, json_specs

BACKEND_ID = "executorch"


@dataclass(frozen=True, slots=True)
class ExecutorchOptions:
    # the model computes with finite numbers only, so kernels may treat NaN and infinity as they like
    finite: bool = True
    # also take operators for which XNNPACK has no kernel and ExecuTorch's portable library has a kernel
    portable: bool = False
    # of the process's pool where the program is loaded; `None`: as many as ExecuTorch chooses there
    threads: int | None = None
    # ATen overloads (`aten.relu.default`) that are left to the program's own executor
    exclude: tuple[str, ...] = ()

    def to_specs(self) -> list[CompileSpec]:
        # The settings that shape the result of a partition. The choice of nodes is not among them.
        return json_specs({"finite-only": self.finite, "threads": self.threads})


def parse_options(options: Mapping[str, object]) -> ExecutorchOptions:
    given = GivenOptions(BACKEND_ID, options)
    parsed = ExecutorchOptions(
        exclude=given.excluded("aten.relu.default"),
        finite=given.flag("finite-only", True),
        portable=given.flag("portable-operators", False),
        threads=given.read("threads", None, is_number_from(1), "a number from 1 on"),
    )
    given.check()
    return parsed


@contextmanager
def executorch() -> Iterator[None]:
    # Importing ExecuTorch brings in torchao, which warns of its own libraries, and configures the root logger
    root = logging.getLogger()
    handlers, level, disabled = list(root.handlers), root.level, logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                import executorch.exir  # noqa: F401
            except ModuleNotFoundError as error:
                raise BackendError(
                    "the backend `executorch` needs ExecuTorch, which is not installed",
                    found=str(error),
                    hint=extra_hint("executorch"),
                ) from error
            yield
    finally:
        logging.disable(disabled)
        root.handlers[:] = handlers
        root.setLevel(level)
