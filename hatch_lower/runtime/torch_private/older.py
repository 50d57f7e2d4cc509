"""Differences of torch 2.11 and 2.12 from later versions: absent settings and options, checks and roundings that get
lost, and names that differ from process to process. With later versions, nothing here changes torch.
"""

from __future__ import annotations

import ctypes
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from traceback import StackSummary
from typing import Any, cast

import torch

# torch 2.11 lacks all of these settings of inductor, torch 2.12 some
NEWER_SETTINGS = frozenset({"aot_inductor.enable_frame_pointer", "aot_inductor.enable_line_tables", "cpp.march"})
CHECK = "aten::_linalg_check_errors"


def is_older() -> bool:
    """Return whether torch is older than 2.13."""
    major, minor, *_ = torch.__version__.split(".")
    return (int(major), int(minor)) < (2, 13)


def accepted(function: Callable[..., object], **named: object) -> dict[str, object]:
    """Return the named arguments for which a function has parameters."""
    parameters = inspect.signature(function).parameters
    return {name: value for name, value in named.items() if name in parameters}


def without_newer(settings: Mapping[str, object]) -> dict[str, object]:
    """Return inductor's settings without those that an older torch lacks."""
    if not is_older():
        return dict(settings)
    from torch._inductor import config

    known: Any = config
    absent = NEWER_SETTINGS.difference(known.get_config_copy())
    return {name: value for name, value in settings.items() if name not in absent}


@contextmanager
def inductor_mended() -> Iterator[None]:
    """Mend inductor's generated code where torch is older."""
    with ExitStack() as mends:
        if is_older():
            mends.enter_context(arrays_steady())
            mends.enter_context(conversions_kept())
        yield


@contextmanager
def arrays_steady() -> Iterator[None]:
    """Let inductor declare the integer arrays of a wrapper in the same way in every process.

    Inductor finds the name of an array by the address of a bound method. The method is a temporary object, so a second
    declaration depends on the memory that the process uses again. Here each method is kept as long as the wrapper.
    """
    from torch._inductor.codegen.cpp_wrapper_cpu import CppWrapperCpu

    wrapper: Any = CppWrapperCpu
    name_array = wrapper.codegen_int_array_var

    def name_steadily(self: Any, int_array: str, writeline: Any, *args: Any, **named: Any) -> Any:
        owner = getattr(writeline, "__self__", None)
        if owner is not None:
            kept = vars(self).setdefault("hatch_lower_writers", {})
            writeline = kept.setdefault((id(owner), writeline.__name__), writeline)
        return name_array(self, int_array, writeline, *args, **named)

    wrapper.codegen_int_array_var = name_steadily
    try:
        yield
    finally:
        wrapper.codegen_int_array_var = name_array


@contextmanager
def conversions_kept() -> Iterator[None]:
    """Let `emulate_precision_casts` hold for conversions in C++, and for a conversion of a conversion."""
    from torch._inductor.codegen.cpp import CppKernel
    from torch._inductor.fx_passes import joint_graph

    kernel: Any = CppKernel
    cache, remove = kernel.cache_dtype_convert, joint_graph.pointless_convert

    def remove_exact(match: Any, arg: Any, dtype1: torch.dtype, dtype2: torch.dtype) -> None:
        given = arg.meta["val"].dtype
        if given.is_floating_point and torch.promote_types(given, dtype1) is dtype1:
            remove(match, arg, dtype1, dtype2)

    def keep_none(*_: object) -> None:
        # inductor keeps the number before a conversion, and reads it for the conversion back
        pass

    groups: Any = joint_graph.patterns.patterns.values()
    pairs = [entry for group in groups for entry in group if getattr(entry, "handler", None) is remove]
    kernel.cache_dtype_convert = keep_none
    for entry in pairs:
        entry.handler = remove_exact
    try:
        yield
    finally:
        kernel.cache_dtype_convert = cache
        for entry in pairs:
            entry.handler = remove


def checked_decompositions() -> Mapping[Any, Callable[..., torch.Tensor]]:
    """Return decompositions of operators for which those of torch 2.11 lack checks."""
    return {torch.ops.aten.one_hot.default: decompose_one_hot} if is_older() else {}


def decompose_one_hot(classes: torch.Tensor, count: int = -1) -> torch.Tensor:
    # as in later versions; without checks, bad classes would give zeros
    if count == -1:
        count = int(classes.max().item()) + 1
    check = torch.ops.aten._assert_async.msg
    check(torch.all(classes >= 0), "one_hot: Class values must be non-negative.")
    check(torch.all(classes < count), "one_hot: Class values must be smaller than num_classes.")
    places = torch.arange(count, dtype=classes.dtype, device=classes.device)
    return (classes.unsqueeze(-1) == places).to(torch.int64)


def register_anchor(function: Callable[..., Any]) -> None:
    """Let exports record source lines of a function, for the rest of the process, as torch 2.13 does."""
    from torch.fx.experimental.symbolic_shapes import uninteresting_files
    from torch.fx.proxy import TracerBase

    tracer: Any = TracerBase
    choose = tracer._filter_traceback_frames
    if not hasattr(choose, "anchors"):
        anchors: set[tuple[str, str]] = set()

        def choose_with_anchors(self: Any, frames: StackSummary) -> StackSummary:
            if not self._record_forward_stack_traces_only:
                return cast(StackSummary, choose(self, frames))
            kept = [
                frame
                for frame in frames
                if frame.name == "forward"
                or frame.filename.endswith("torch/__init__.py")
                or (frame.filename, frame.name) in anchors
            ]
            return StackSummary.from_list([frame for frame in kept if frame.filename not in uninteresting_files()])

        vars(choose_with_anchors)["anchors"] = anchors
        tracer._filter_traceback_frames = choose_with_anchors
    code = getattr(function, "__code__", None)
    if code is not None:
        tracer._filter_traceback_frames.anchors.add((code.co_filename, code.co_name))


class TellingRunner:
    """A runner of a library whose errors have the library's text; an older torch names the failed function only."""

    def __init__(self, runner: Any, path: Path) -> None:
        self._runner = runner
        self._path = path

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def run(self, inputs: Any) -> Any:
        try:
            return self._runner.run(inputs)
        except RuntimeError as error:
            reason = last_error(self._path)
            raise RuntimeError(reason or str(error)) from error


def last_error(path: Path) -> str:
    """Return the text of the last error of an open library in this thread; empty for a library without texts."""
    function: Any = getattr(ctypes.CDLL(str(path)), "AOTInductorGetLastError", None)
    text = ctypes.c_char_p()
    if function is None or function(ctypes.byref(text)) != 0:
        return ""
    return (text.value or b"").decode(errors="replace")


@contextmanager
def linalg_checks_kept() -> Iterator[None]:
    """Keep the checks of linear algebra while a program is decomposed.

    To an older torch the checks are unused operations, and matrices that eager refuses would give numbers.
    """
    if not is_older():
        yield
        return
    from torch._higher_order_ops.effects import _register_effectful_op
    from torch.library import EffectType  # type: ignore[attr-defined]

    registration = _register_effectful_op(CHECK, EffectType.ORDERED)
    try:
        yield
    finally:
        registration.destroy()
