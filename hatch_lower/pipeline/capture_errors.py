"""The error of a failed export: its likely cause, the line of the model's code, and the remedy."""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from hatch_lower.errors import CaptureError
from hatch_lower.model import Method, Model
from hatch_lower.pipeline.exceptions import describe_exception, line_of, message_of, trim_lines
from hatch_lower.pipeline.module_checks import hint_on_gradients
from hatch_lower.pipeline.parameters import declared_sizes, fixed_size
from hatch_lower.runtime.module_copy import copy_module
from hatch_lower.runtime.torch_private.programs import is_users_fault

# torch calls `namedtuple`, a function, a type
TYPE = re.compile(r"<class '([\w.]+)'>|<function (\w+) at 0x[0-9a-f]+>")
NOISE = re.compile(
    r"(For more information, run with TORCH_LOGS=\S+|For more information about this error, see: \S+"
    r"|The error above occurred when calling torch\.export\.export\.[\s\S]*)"
)

UNKNOWN_NUMBER = re.compile(r"Unknown symbol zuf\d+ created by")  # of torch 2.11 and 2.12


def capture_error(
    model: str,
    name: str,
    whole: Model,
    declared: Method,
    call: Callable[..., object],
    error: Exception,
    roots: Sequence[Path],
) -> CaptureError:
    # possible causes: the dynamic shapes, the example inputs (eager fails on the inputs, too), or the code itself
    reason, module, advice = message_of(error), whole.module, whole.advice
    signature = inspect.signature(call)
    parameters = ", ".join(f"`{parameter}`" for parameter in signature.parameters)
    sizes = declared_sizes(signature, declared.dynamic_shapes, tuple(declared.args), declared.kwargs)
    if (fixed := fixed_size(reason, sizes)) is not None:
        return CaptureError(
            f"the dynamic shapes of method `{name}` do not hold",
            where=method_place(model, name, line_of(error, roots, module)),
            found=f"{fixed.text()}, and torch.export treats a size of 0 or 1 as fixed",
            hint=f"use an example size of 2 or more in this dimension; the range of `{fixed.name}` may still begin at 0"
            " or 1",
        )
    if is_users_fault(error) and ("Constraints violated" in reason or "dynamic_shapes" in reason):
        fixes = "Suggested fixes" in reason
        shapes = "declare `dynamic_shapes` as torch suggests" if fixes else "correct `dynamic_shapes`"
        if "generated guard" in reason and not fixes:
            shapes = (
                "check the condition in each call (`defer_guards=True` of the `hatch_lower.Method`), correct the sizes"
            )
        if "<function namedtuple" in reason:
            shapes = "write the named tuple's class in `dynamic_shapes`, as in `Pair({0: batch}, None)`"
        return CaptureError(
            f"the dynamic shapes of method `{name}` do not hold",
            where=method_place(model, name, line_of(error, roots, module)),
            found=cleaned(reason),
            hint=(advice or f"{shapes}, or omit the dimension to keep the size fixed")
            + f"; the parameters are {parameters}",
        )
    if (eager := failure_of_eager(module, name, declared)) is not None:
        return CaptureError(
            f"method `{name}` does not run with its example inputs",
            where=method_place(model, name, line_of(eager, roots, module)),
            found=describe_exception(eager),
            hint=(advice or "correct `args` and `kwargs` of the `hatch_lower.Method`")
            + f"; the parameters are {parameters}",
        )
    if (gradients := hint_on_gradients(error)) != "":
        return CaptureError(
            f"torch.export cannot trace derivatives or vectorized maps in method `{name}`",
            where=method_place(model, name, line_of(error, roots, module)),
            found=f"{type(error).__name__}: {cleaned(reason)}",
            hint=gradients,
        )
    return CaptureError(
        f"torch.export cannot capture method `{name}`",
        where=method_place(model, name, line_of(error, roots, module)),
        found=f"{type(error).__name__}: {cleaned(reason)}",
        hint="; or ".join(filter(None, (hint_on_code(error, reason), advice))),
    )


def hint_on_code(error: Exception, reason: str) -> str:
    if UNKNOWN_NUMBER.search(reason):
        return (
            "leave out the check of a floating-point number from a tensor (`torch._check(x.sum().item() > 0)`), or"
            " build with torch 2.13 or later"
        )
    if "data-dependent" in reason or type(error).__name__ == "GuardOnDataDependentSymNode":
        return "the line depends on the values in a tensor; use `torch.cond`, `torch.where` or `torch._check` there"
    if "Unsupported input type" in reason or "not a known type" in reason:
        return "use tensors, tuples and dictionaries; call `torch.export.register_dataclass` for a dataclass"
    return "rewrite the line with torch operations; `torch.export.draft_export` lists every obstacle"


def failure_of_eager(
    module: torch.nn.Module, name: str, declared: Method, *, gradients: bool = False
) -> Exception | None:
    try:
        run = getattr(copy_module(module), declared.attribute or name)
        args, kwargs = copy.deepcopy((tuple(declared.args), dict(declared.kwargs)))
    except Exception:
        return None
    try:
        with torch.set_grad_enabled(gradients):
            run(*args, **kwargs)
    except Exception as error:
        return error
    return None


def method_place(model: str, method: str, line: str) -> str:
    return f"model `{model}`, method `{method}`{f', {line}' if line else ''}"


def cleaned(reason: str) -> str:
    # torch's reason without its pointers to logs and documentation
    text = TYPE.sub(lambda found: f"`{found[1] or found[2]}`", NOISE.sub("", reason)).strip()
    return trim_lines(text if "Suggested fixes" in text else text.split("\n\n")[0])
