"""Identifiers of generated code, and the objects bound to the identifiers.

Generated code consists only of identifiers from this module, a method's parameter names (checked by `read_plan`),
integers, finite floats, `None`, `True` and `False`. All other values are objects bound to identifiers.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence

from hatch_lower.format.expression import OPERATIONS, Compound, Expression


class CodeNames:
    """The identifiers in a method's code."""

    # identifiers begin with more underscores than any parameter, and so never equal a parameter's name

    def __init__(self, parameters: Iterable[str]) -> None:
        underscores = max((len(parameter) - len(parameter.lstrip("_")) for parameter in parameters), default=0)
        self._prefix = "_" * (underscores + 1)
        self._known: dict[Hashable, str] = {}
        self._count = 0
        self.objects: dict[str, object] = {}  # by identifier, objects shared by all instances of a program
        self.constants: dict[str, str] = {}  # the identifiers of constants, by name
        self.delegates: dict[int, str] = {}  # the identifiers of delegates, by index

    def local(self, text: str) -> str:
        # `text` consists of ASCII letters, digits and underscores
        return self._prefix + text

    def fresh(self, text: str) -> str:
        self._count += 1
        return f"{self._prefix}{text}_{self._count}"

    def bind(self, text: str, value: object, key: Hashable = None) -> str:
        """Return the identifier of an object; equal keys, if given, share an identifier."""
        known = self._known.get(key) if key is not None else None
        if known is None:
            known = self.fresh(text)
            self.objects[known] = value
            if key is not None:
                self._known[key] = known
        return known

    def constant(self, name: str) -> str:
        if name not in self.constants:
            self.constants[name] = self.fresh("c")
        return self.constants[name]

    def delegate(self, index: int) -> str:
        if index not in self.delegates:
            self.delegates[index] = self.fresh("d")
        return self.delegates[index]


def tuple_code(items: Sequence[str]) -> str:
    return f"({', '.join(items)},)" if items else "()"


def expression_code(expression: Expression, variables: Mapping[str, str], names: CodeNames) -> str:
    if isinstance(expression, str):
        return variables[expression]
    if not isinstance(expression, Compound):
        return f"({expression})" if expression < 0 else str(expression)
    args = [expression_code(arg, variables, names) for arg in expression.args]
    operation = OPERATIONS[expression.op]
    if has_plain_operator(expression):
        return f"({operation.sign.join(args) if len(args) > 1 else operation.sign.lstrip() + args[0]})"
    return f"{names.bind(expression.op, operation.compute, ('size', expression.op))}({', '.join(args)})"


def has_plain_operator(expression: Compound) -> bool:
    """Return whether Python's operator sign can be used: no error or endless power for any values of the symbols."""
    match expression.op:
        case "floordiv" | "mod" | "pow":  # a literal divisor is never 0, a literal exponent has a limit
            return isinstance(expression.args[1], int)
        case "realpow" | "truediv":
            return False
        case "neg" | "not":
            return True
    return len(expression.args) > 1 and bool(OPERATIONS[expression.op].sign)
