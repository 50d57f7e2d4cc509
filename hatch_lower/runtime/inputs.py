"""Generated code that checks a method's arguments, gives delegates tensors in the declared layout, and bypasses a
delegate for tensors without elements. Some engines end the process or wait forever if a tensor has no elements.
If all outputs of a delegate have no elements, the call is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn

from hatch_lower.errors import EmptyError, ProgramError
from hatch_lower.format.arguments import (
    LiteralInput,
    Special,
    Symbol,
    SymbolInput,
    TensorInput,
    expressions_in,
    input_text,
    is_contiguous,
)
from hatch_lower.format.expression import Compound, Expression, evaluate_size, symbols_in
from hatch_lower.format.graph import DelegateCall
from hatch_lower.runtime.analysis import SIZE
from hatch_lower.runtime.arrays import Arrays
from hatch_lower.runtime.names import CodeNames, expression_code, tuple_code
from hatch_lower.runtime.refusals import ArgumentRefusals, refuse_produced


class InputWriter:
    """Writer of the checks of a method's flat inputs; `leaves` are the names of their variables."""

    def __init__(self, refusals: ArgumentRefusals, names: CodeNames, leaves: Sequence[str]) -> None:
        self._plan = refusals.plan
        self._arrays = refusals.arrays
        self._names = names
        self._refusals = refusals
        self._leaves = leaves
        self._bindings = {(each.input, each.dimension, each.symbol): each for each in refusals.bindings}
        self._mutated = frozenset(index for index, _ in self._plan.input_mutations)
        self.symbols: dict[str, str] = {}  # by symbol, the variable of its value after the checks

    def write(self) -> list[str]:
        # kind and dtype of each leaf, symbols, sizes, then strides: each check may rely on the checks before
        lines: list[str] = []
        conditions: list[str] = []
        sizes: list[tuple[str, Expression, int, int | None]] = []
        for index, (entry, leaf) in enumerate(zip(self._plan.inputs, self._leaves, strict=True)):
            if isinstance(entry, LiteralInput):
                lines += self._check_literal(index, entry, leaf)
            elif isinstance(entry, SymbolInput):
                lines.append(f"if {self._type()}({leaf}) is not {self._bound(int)}: {self._refuse_one(index, leaf)}")
                sizes.append((leaf, entry.expr, index, None))
            else:
                lines += self._check_tensor(index, entry, leaf)
                if any(symbols_in(size) for size in entry.shape):
                    variables = [self._names.local(f"n{index}_{position}") for position in range(len(entry.shape))]
                    lines.append(f"{', '.join(variables)}, = {leaf}.shape")
                    positions = range(len(entry.shape))
                    sizes += zip(variables, entry.shape, [index] * len(positions), positions, strict=True)
        lines += self._bind(sizes)
        for variable, size, index, dimension in sizes:
            if not (isinstance(size, str) and (index, dimension, size) in self._bindings):
                conditions.append(f"{variable} != {expression_code(size, self.symbols, self._names)}")
        solved = {
            binding.symbol
            for binding in self._bindings.values()
            if binding.expression != SIZE and binding.dimension is not None
        }
        conditions += [
            condition
            for symbol in sorted(self.symbols)
            if (condition := range_code(self._plan.symbols[symbol], self.symbols[symbol], is_solved=symbol in solved))
        ]
        if conditions:
            refuse = self._names.bind("refuse", self._refusals.refuse_values, "refuse_values")
            lines.append(f"if {' or '.join(conditions)}: {refuse}({', '.join(self._leaves)})")
        for index, (entry, leaf) in enumerate(zip(self._plan.inputs, self._leaves, strict=True)):
            if isinstance(entry, TensorInput):
                lines += self._prepare_tensor(index, entry, leaf)
        return lines

    def _bind(self, sizes: Sequence[tuple[str, Expression, int, int | None]]) -> list[str]:
        # a plain symbol as a size needs no line
        variables = {(index, dimension): variable for variable, _, index, dimension in sizes}
        lines = []
        for binding in self._bindings.values():
            size = variables[binding.input, binding.dimension]
            if binding.expression == SIZE:
                self.symbols[binding.symbol] = size
            else:
                self.symbols[SIZE] = size
                code = expression_code(binding.expression, self.symbols, self._names)
                del self.symbols[SIZE]
                self.symbols[binding.symbol] = self._names.fresh("s")
                lines.append(f"{self.symbols[binding.symbol]} = {code}")
        used = [size for entry in self._plan.inputs for size in expressions_in(entry)]
        unknown = sorted(frozenset[str]().union(*map(symbols_in, used)) - self.symbols.keys())
        if unknown:
            raise ProgramError(
                "a packaged program cannot be run",
                found=f"the symbol `{unknown[0]}` is not determined by the inputs",
                hint="export the method with a dynamic dimension that equals the symbol",
            )
        return lines

    def _check_literal(self, index: int, entry: LiteralInput, leaf: str) -> list[str]:
        value = entry.value
        if value is None or isinstance(value, bool | Special):
            is_same = f"{leaf} is {value}" if not isinstance(value, Special) else "False"
        elif isinstance(value, int):
            is_same = f"{self._type()}({leaf}) is {self._bound(int)} and {leaf} == {value}"
        else:
            bound = self._names.bind("literal", value)
            is_same = f"{self._type()}({leaf}) is {self._bound(type(value))} and {leaf} == {bound}"
        # the test may also fail for equal values (NaN, a dtype): `check_value` compares again before refusing
        return [f"if not ({is_same}): {self._refuse_one(index, leaf)}"]

    def _check_tensor(self, index: int, entry: TensorInput, leaf: str) -> list[str]:
        arrays = self._arrays
        plain = self._names.bind("plain", self._refusals.as_array, "as_array")
        tests = [arrays.dtype_test(entry.dtype, leaf, self._names), *arrays.place_tests(leaf, self._names)]
        tests.append(shape_test(entry, leaf))
        return [
            f"if {self._type()}({leaf}) is not {self._bound(arrays.kind)}: {leaf} = {plain}({index}, {leaf})",
            f"if {' or '.join(tests)}: {self._refuse_one(index, leaf)}",
            *self._check_memory(index, entry, leaf),
        ]

    def _check_memory(self, index: int, entry: TensorInput, leaf: str) -> list[str]:
        # for a tensor wrapped by a function transform (`torch.func`), torch raises
        tests = self._arrays.memory_tests(entry.dtype, leaf)
        if not tests:
            return []
        doubtful, raised = self._names.local("doubtful"), self._names.bind("raised", RuntimeError, "runtime_error")
        check = self._names.bind("check_memory", self._refusals.check_memory, "check_memory")
        return [
            f"try: {doubtful} = {' or '.join(tests)}",
            f"except {raised}: {doubtful} = True",
            f"if {doubtful}: {check}({index}, {leaf})",
        ]

    def _prepare_tensor(self, index: int, entry: TensorInput, leaf: str) -> list[str]:
        # gives the tensor the exported strides
        strides = stride_codes(entry, self.symbols, self._names)
        if index in self._mutated:
            keep = self._names.bind("keep", self._refusals.keep_layout, "keep_layout")
            lines = self._arrays.resolve_lines(entry.dtype, leaf, of_caller=True, in_place=True)
            return [*lines, f"{keep}({index}, {leaf}, {tuple_code(strides)})"]
        lines = self._arrays.resolve_lines(entry.dtype, leaf, of_caller=True)
        return [*lines, *self._arrays.layout_lines(entry, leaf, strides, self._names)]

    def _refuse_one(self, index: int, leaf: str) -> str:
        return f"{self._names.bind('check', self._refusals.check_value, 'check_value')}({index}, {leaf})"

    def _type(self) -> str:
        return self._bound(type)

    def _bound(self, value: type) -> str:
        return self._names.bind(value.__name__, value, value)


def delegate_input_lines(
    where: str,
    entry: TensorInput,
    variable: str,
    symbols: dict[str, str],
    arrays: Arrays,
    names: CodeNames,
    declared: Mapping[str, Symbol],
) -> list[str]:
    """Return lines that check a computed tensor before a delegate call and give it the declared strides."""
    # a symbol that no input determines (a data-dependent size) gets its value here; `symbols` is updated
    refuse = names.bind("refuse", partial(refuse_produced, arrays), "refuse_produced")
    expected = names.bind("expected", f"{where} was lowered for {input_text(entry, declared)}")
    tests = [arrays.dtype_test(entry.dtype, variable, names), *arrays.produced_tests(variable, names)]
    lines = [f"if {' or '.join([*tests, shape_test(entry, variable)])}: {refuse}({expected}, {variable})"]
    if any(symbols_in(size) for size in entry.shape):
        sizes = [names.fresh("n") for _ in entry.shape]
        lines.append(f"{', '.join(sizes)}, = {variable}.shape")
        tests = []
        for size, expression in zip(sizes, entry.shape, strict=True):
            if isinstance(expression, str) and expression not in symbols:
                symbols[expression] = size
                tests.append(range_code(declared[expression], size))
        for size, expression in zip(sizes, entry.shape, strict=True):
            if symbols_in(expression) <= symbols.keys() and symbols.get(str(expression)) != size:
                tests.append(f"{size} != {expression_code(expression, symbols, names)}")
        if tests := [test for test in tests if test]:
            lines.append(f"if {' or '.join(tests)}: {refuse}({expected}, {variable})")
    lines += arrays.resolve_lines(entry.dtype, variable, of_caller=False)
    if all(symbols_in(stride) <= symbols.keys() for stride in entry.stride):
        return [*lines, *arrays.layout_lines(entry, variable, stride_codes(entry, symbols, names), names)]
    if not is_contiguous(entry):
        raise ProgramError(
            "a packaged program cannot be run",
            where=where,
            found="strides that depend on a size that is unknown before the call",
            hint="export the method with inputs that are contiguous",
        )
    return [*lines, *arrays.layout_lines(entry, variable, None, names)]


def shape_test(entry: TensorInput, variable: str) -> str:
    """Return code that is true if an array's shape is wrong; with symbolic sizes, only the rank is compared."""
    if any(symbols_in(size) for size in entry.shape):
        return f"{variable}.ndim != {len(entry.shape)}"
    return f"{variable}.shape != {tuple_code([str(size) for size in entry.shape])}"


def stride_codes(entry: TensorInput, symbols: Mapping[str, str], names: CodeNames) -> list[str]:
    return [expression_code(stride, symbols, names) for stride in entry.stride]


def range_code(symbol: Symbol, variable: str, *, is_solved: bool = False) -> str:
    """Return code that is true if a size is outside its symbol's range; empty if always inside."""
    # the solution of an equation for a symbol may be negative
    tests = [f"{variable} < {symbol.min}"] if symbol.min > 0 or is_solved else []
    if symbol.max is not None:
        tests.append(f"{variable} > {symbol.max}")
    return " or ".join(tests)


GROWING = frozenset({"add", "floordiv", "max", "min", "mul", "pow"})  # monotonic in their arguments, from 0 on


def lines_for_empty(
    call: DelegateCall,
    out: str,
    given: Sequence[str],
    tests: ZeroTests,
    arrays: Arrays,
    *,
    refuse: partial[NoReturn] | None,
    has_state: bool,
) -> list[str]:
    """Return the lines before `else:` and the call itself; empty if all tensors always have elements."""
    # `refuse`: raises the error for a call with a tensor without elements; `None` if the delegate computes such calls
    lines = []
    if call.outputs and not has_state and all(entry is not None and tests.any_of([entry]) for entry in call.outputs):
        outputs = [entry for entry in call.outputs if entry is not None]
        results = ", ".join(empty_code(entry, tests.symbols, arrays, tests.names) for entry in outputs)
        conditions = dict.fromkeys(tests.any_of([entry]) for entry in outputs)
        lines.append(f"if {' and '.join(f'({each})' for each in conditions)}: {out} = [{results}]")
    # only dynamic sizes: with sizes that are always 0, the build has tried the delegate
    tensors = [entry for entry in (*call.inputs, *call.outputs) if isinstance(entry, TensorInput)]
    if refuse is not None and (some := tests.any_of(tensors, is_dynamic=True)):
        lines.append(f"{'elif' if lines else 'if'} {some}: {tests.names.bind('refuse', refuse)}([{', '.join(given)}])")
    return lines


class ZeroTests:
    """Code that tests for tensors without elements, by the sizes known before the call."""

    def __init__(self, symbols: Mapping[str, str], declared: Mapping[str, Symbol], names: CodeNames) -> None:
        self.symbols = symbols
        self._least = {name: symbol.min for name, symbol in declared.items()}
        self.names = names

    def any_of(self, entries: Iterable[TensorInput], *, is_dynamic: bool = False) -> str:
        every = dict.fromkeys(size for entry in entries for size in entry.shape if self._may_be_zero(size))
        sizes = [size for size in every if not is_dynamic or symbols_in(size)]
        return " or ".join(f"{expression_code(size, self.symbols, self.names)} == 0" for size in sizes)

    def _may_be_zero(self, size: Expression) -> bool:
        if not symbols_in(size) <= self.symbols.keys():
            return False
        return not is_growing(size) or evaluate_size(size, self._least) == 0


def is_growing(size: Expression) -> bool:
    if isinstance(size, Compound):
        return (
            size.op in GROWING
            and (size.op != "floordiv" or isinstance(size.args[1], int))
            and all(map(is_growing, size.args))
        )
    return not isinstance(size, int) or size >= 0


def empty_code(entry: TensorInput, symbols: Mapping[str, str], arrays: Arrays, names: CodeNames) -> str:
    function = names.bind("empty", partial(arrays.empty, entry.dtype), ("empty", entry.dtype))
    steps = [stride if symbols_in(stride) <= symbols.keys() else 1 for stride in entry.stride]
    codes = (tuple_code([expression_code(size, symbols, names) for size in sizes]) for sizes in (entry.shape, steps))
    return f"{function}({', '.join(codes)})"


def refuse_empty(arrays: Arrays, backend: str, where: str, given: Sequence[Any]) -> NoReturn:
    raise EmptyError(
        f"the delegate `{backend}` takes no tensor without elements",
        where=where,
        found=", ".join(map(arrays.describe, given)),
        hint="call the method with sizes of 1 and more, and write `min=1` in the `Dim` of the size; without this"
        " backend torch computes such calls",
    )
