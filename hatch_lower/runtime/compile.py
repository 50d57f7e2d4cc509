"""A method of a plan as a Python function: compiled once, linked for each loaded instance."""

from __future__ import annotations

import builtins
import inspect
from collections.abc import Callable, Mapping, Sequence
from types import CodeType
from typing import TYPE_CHECKING, Any

from hatch_lower.format.codec import installation_error
from hatch_lower.format.plan import Plan, signature_text
from hatch_lower.frozen import Frozen
from hatch_lower.runtime.arrays import Arrays
from hatch_lower.runtime.names import Names
from hatch_lower.runtime.writer import MethodWriter

if TYPE_CHECKING:
    from hatch_lower.runtime.exchange import Exchange
    from hatch_lower.runtime.timing import Clock


class MethodCode(Frozen):
    """A compiled method, not yet linked to constants and delegates."""

    source: str  # of a module with the function `make`, which returns the method
    code: CodeType  # `source`, compiled
    names: Names
    signature: inspect.Signature  # the Python signature that callers see
    text: str  # the signature with dtypes and symbolic shapes


def compile_method(
    plan: Plan,
    name: str,
    arrays: Arrays,
    exchanges: Sequence[Exchange | None],
    without_elements: Sequence[str],
    *,
    is_locked: bool,
    checks_outputs: bool = False,
    clock: Clock | None = None,
) -> MethodCode:
    writer = MethodWriter(plan, name, arrays, exchanges, without_elements, is_locked, checks_outputs, clock)
    source = "\n".join(writer.write()) + "\n"
    parameters = [
        inspect.Parameter(
            parameter.name,
            inspect.Parameter.KEYWORD_ONLY if parameter.kind == "keyword" else inspect.Parameter.POSITIONAL_OR_KEYWORD,
        )
        for parameter in plan.methods[name].parameters
    ]
    try:
        code = compile(source, f"<hatch-lower method {name}>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        found = f"Python cannot compile the method: {type(error).__name__}: {error}"
        raise installation_error("a packaged program cannot be run", f"method `{name:.80}`", found) from error
    return MethodCode(
        source, code, writer.names, inspect.Signature(parameters), signature_text(name, plan.methods[name])
    )


def link_method(
    code: MethodCode, name: str, constants: Mapping[str, object], runs: Sequence[Callable[..., Any]], lock: Any
) -> Callable[..., Any]:
    names = code.names
    # torch's C++ imports modules with the globals of the calling frame, which therefore need the built-in functions
    namespace: dict[str, Any] = {"__builtins__": builtins, "__name__": "hatch_lower.program", **names.objects}
    namespace.update({identifier: constants[constant] for constant, identifier in names.constants.items()})
    namespace.update({identifier: runs[index] for index, identifier in names.delegates.items()})
    namespace[names.local("lock")] = lock
    exec(code.code, namespace)
    make = namespace.pop(names.local("make"))  # `pop`: otherwise globals and function would form a reference cycle
    function: Any = make(make(None))  # the argument is the method for calls under autocast
    function.__name__ = function.__qualname__ = name
    function.__doc__ = code.text
    function.__signature__ = code.signature
    linked: Callable[..., object] = function
    return linked
