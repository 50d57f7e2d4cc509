"""Compilation of a method's plan to the source of a Python function.

For a method with a single delegate the source looks like this (identifiers shortened):

    def make(again):
        def method(image=missing, *rest, **extra):
            if image is missing or rest or extra: refuse_call(…)
            if is_autocast_enabled("cpu"):
                with autocast("cpu", enabled=False): return again(image)
            if type(image) is not Tensor: image = plain(0, image)
            if image.dtype is not float32 or not image.is_cpu or … or image.ndim != 2: check_value(0, image)
            n0, n1, = image.shape
            if n1 != 64 or n0 > 1024: refuse_values(image)
            if image.requires_grad: image = image.detach()
            if not image.is_contiguous(): image = restride(image, (n1, 1,))
            try: v1 = delegate([image])
            except Exception as error: failed(error, [image])
            if type(v1) is not list or len(v1) != 1: check_outputs(v1, {})
            v2 = v1[0]
            del v1
            return v2
        return method

The functions of nested graphs are in `make`, too: a function that is in its own globals is a reference cycle, which
would keep a model's memory and threads until a garbage collection.
"""

from __future__ import annotations

import inspect
import keyword
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from hatch_lower.format.arguments import Argument, ConstantName, Input, Special, TensorInput, Value
from hatch_lower.format.constants import holds_state
from hatch_lower.format.graph import Cond, DelegateCall, Graph, Instruction, Map, OpCall, PythonCall, Scan, While
from hatch_lower.format.plan import Plan, input_paths
from hatch_lower.format.tree import Leaf, count_leaves
from hatch_lower.frozen import Frozen
from hatch_lower.runtime.analysis import Aliasing, Root, last_uses, references_to_values, symbols_of
from hatch_lower.runtime.arrays import Arrays
from hatch_lower.runtime.containers import output_code, take_apart
from hatch_lower.runtime.indices import ArgumentNames, delegate_range_error, is_lookup, refuse_lookup
from hatch_lower.runtime.inputs import InputWriter, ZeroTests, delegate_input_lines, lines_for_empty, refuse_empty
from hatch_lower.runtime.names import CodeNames, tuple_code
from hatch_lower.runtime.operators import map_rows, python_code, scan_rows, size_code
from hatch_lower.runtime.refusals import ArgumentRefusals, call_failed, check_outputs

if TYPE_CHECKING:
    from hatch_lower.runtime.exchange import Exchange
    from hatch_lower.runtime.timing import Clock


class GraphScope(Frozen):
    """Names in the code of a graph; the dicts grow while the code is written."""

    variables: dict[int, str]  # by slot
    symbols: dict[str, str]  # variables of sizes, by symbol
    checked: Mapping[int, Input]  # slots with inputs that are already checked
    arguments: ArgumentNames


class MethodWriter:
    """Writer of the function `make`, which contains a function for each nested graph, and last the method."""

    def __init__(
        self,
        plan: Plan,
        name: str,
        arrays: Arrays,
        exchanges: Sequence[Exchange | None],
        without_elements: Sequence[str],
        *,
        is_locked: bool,
        checks_outputs: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self._plan = plan
        self._arrays = arrays
        self._exchanges = exchanges  # of each delegate
        self._without_elements = without_elements  # `Delegate.without_elements` of each delegate
        self.name = name
        self._is_locked = is_locked
        self._checks_outputs = checks_outputs
        self._clock = clock  # records the start of each instruction; `None` if calls are not timed
        self.method = plan.methods[name]
        self._where = f"method `{name}`"
        self._operators = arrays.operators(self.method.graph, self._where)
        self._functions: list[str] = []
        self.names = CodeNames(parameter.name for parameter in self.method.parameters)

    def write(self) -> list[str]:
        method, names = self.method, self.names
        refusals = ArgumentRefusals(self.name, method, self._arrays)
        opening, leaves = self._open_parameters(refusals)
        checks = InputWriter(refusals, names, leaves)
        body = checks.write()
        slots = method.graph.inputs
        checked = dict(zip(slots, method.inputs, strict=True))
        arguments = ArgumentNames(self._where, input_paths(method), slots)
        scope = GraphScope(dict(zip(slots, leaves, strict=True)), checks.symbols, checked, arguments)
        body += self._write_graph(method.graph, scope, "", self._kept_slots())
        if self._clock is not None:
            body.append(self._clock.ending(names, self._arrays.clock()))
        body += self._write_end(scope, leaves)
        if self._is_locked:
            body = [f"with {names.local('lock')}:", *indent_lines(body)]
        body = self._arrays.guarded(body, names)
        missing = names.bind("missing", inspect.Parameter.empty, "missing")
        parameters = [f"{parameter.name}={missing}" for parameter in method.parameters]
        count = sum(parameter.kind == "positional" for parameter in method.parameters)
        parameters[count:count] = [f"*{names.local('rest')}"]
        parameters.append(f"**{names.local('extra')}")
        head = f"def {names.local('method')}({', '.join(parameters)}):"
        functions = [*self._functions, head, *indent_lines([*opening, *body]), f"return {names.local('method')}"]
        return [f"def {names.local('make')}({names.local('again')}):", *indent_lines(functions)]

    def _open_parameters(self, refusals: ArgumentRefusals) -> tuple[list[str], list[str]]:
        """Return the lines that flatten the arguments, and the variable of each leaf."""
        names, parameters = self.names, self.method.parameters
        missing = names.bind("missing", inspect.Parameter.empty, "missing")
        rest, extra = names.local("rest"), names.local("extra")
        given = ", ".join(
            f"{names.bind('key', parameter.name)}: {parameter.name} is not {missing}" for parameter in parameters
        )
        tests = [rest, extra, *(f"{parameter.name} is {missing}" for parameter in parameters)]
        refuse = names.bind("refuse", refusals.refuse_call)
        passed = [each.name if each.kind == "positional" else f"{each.name}={each.name}" for each in parameters]
        again = f"{names.local('again')}({', '.join(passed)})"
        lines = [f"if {' or '.join(tests)}: {refuse}({{{given}}}, {rest}, {extra})"]
        lines += self._arrays.opening_lines(again, names)
        leaves: list[str] = []
        for parameter in parameters:
            if isinstance(parameter.tree, Leaf):
                leaves.append(parameter.name)
            else:
                opened = [names.fresh("leaf") for _ in range(count_leaves(parameter.tree))]
                function = names.bind("open", take_apart(self.name, parameter.tree, parameter.name))
                lines.append(f"[{', '.join(opened)}] = {function}({parameter.name})")
                leaves += opened
        return lines, leaves

    def _write_graph(
        self, graph: Graph, scope: GraphScope, before: str, kept: frozenset[int] = frozenset()
    ) -> list[str]:
        # `before`: prefix of an instruction's number in the debug map, `4.true.`; empty at the top
        last = last_uses(graph, kept)
        lines: list[str] = []
        for index, instruction in enumerate(graph.instructions):
            out = self.names.local(f"v{instruction.out}")
            path = f"{before}{index}"
            if self._clock is not None:
                lines.append(self._clock.beginning(path, instruction, self.names, self._arrays.clock()))
            lines += self._write_instruction(instruction, out, path, scope)
            scope.variables[instruction.out] = out
            dead = [scope.variables[slot] for slot in last.get(index, ())]
            if dead:
                lines.append(f"del {', '.join(dead)}")
        return lines

    def _kept_slots(self) -> frozenset[int]:
        method = self.method
        sources = [source for _, source in (*method.mutations, *method.input_mutations)]
        slots = {value.slot for value in references_to_values(sources)}
        return frozenset(slots | {method.graph.inputs[index] for index, _ in method.input_mutations})

    def _write_instruction(self, instruction: Instruction, out: str, path: str, scope: GraphScope) -> list[str]:
        args = self._arguments(instruction.args, scope)
        match instruction:
            case OpCall():
                templates = self._arrays.size_templates if not instruction.kwargs else {}
                code = size_code(templates, instruction.op, args)
                if code is None:
                    op = instruction.op
                    function = self.names.bind(op.split(".")[1], self._operators[op].function, op)
                    code = f"{function}({', '.join([*args, *self._keywords(instruction, scope)])})"
                    if is_lookup(instruction) and self._arrays.device == "cpu":
                        refuse = partial(refuse_lookup, scope.arguments, instruction, self._arrays)
                        return self._write_attempt(f"{out} = {code}", self.names.bind("refuse", refuse), args)
                return [f"{out} = {code}"]
            case PythonCall():
                return [f"{out} = {python_code(instruction.op, args, self.names)}"]
            case DelegateCall():
                return self._write_delegate(instruction, args, out, scope)
            case Cond():
                predicate = self._argument(instruction.predicate, scope)
                yes = self._call_graph(instruction.true, f"{path}.true.", args, scope)
                no = self._call_graph(instruction.false, f"{path}.false.", args, scope)
                return [f"{out} = {yes} if {predicate} else {no}"]
            case While():
                return self._write_while(instruction, args, out, path, scope)
        return [f"{out} = {self._rows_code(instruction, args, path, scope)}"]

    def _write_delegate(self, instruction: DelegateCall, args: list[str], out: str, scope: GraphScope) -> list[str]:
        where = f"delegate {instruction.delegate} of {self._where}"
        lines: list[str] = []
        given: list[str] = []
        for argument, entry, code in zip(instruction.args, instruction.inputs, args, strict=True):
            is_checked = isinstance(argument, Value) and scope.checked.get(argument.slot) == entry
            if isinstance(entry, TensorInput) and not is_checked:
                variable = self.names.fresh("a")
                lines.append(f"{variable} = {code}")
                lines += delegate_input_lines(
                    where, entry, variable, scope.symbols, self._arrays, self.names, self.method.symbols
                )
                given.append(variable)
            else:
                given.append(code)
        copies = [argument for argument, code in zip(given, args, strict=True) if argument != code]
        arguments = [scope.arguments.name_of(argument) for argument in instruction.args]
        find = partial(delegate_range_error, arguments, self._where, self._arrays)
        failed = partial(call_failed, self._plan.delegates[instruction.delegate].backend, where, find=find)
        called = self._write_attempt(
            f"{out} = {self._delegate_call(instruction, given)}", self.names.bind("failed", failed), given
        )
        around = self._around_empty(instruction, given, out, where, scope)
        lines += [*around, "else:", *indent_lines(called)] if around else called
        check = self.names.bind("check_outputs", partial(check_outputs, self._arrays, where, instruction.outputs))
        if self._checks_outputs:
            known = [f"{self.names.bind('key', name, ('key', name))}: {code}" for name, code in scope.symbols.items()]
            lines.append(f"{check}({out}, {{{', '.join(known)}}})")
        else:
            kind, plain = self.names.bind("type", type, "type"), self.names.bind("list", list, "list")
            length = self.names.bind("len", len, "len")
            wrong = f"{kind}({out}) is not {plain} or {length}({out}) != {len(instruction.outputs)}"
            lines.append(f"if {wrong}: {check}({out}, {{}})")
        return [*lines, f"del {', '.join(copies)}"] if copies else lines

    def _write_attempt(self, line: str, failed: str, values: Sequence[str]) -> list[str]:
        error, raised = self.names.local("error"), self.names.bind("raised", Exception, "raised")
        return [f"try: {line}", f"except {raised} as {error}: {failed}({error}, [{', '.join(values)}])"]

    def _around_empty(
        self, instruction: DelegateCall, given: Sequence[str], out: str, where: str, scope: GraphScope
    ) -> list[str]:
        does = self._without_elements[instruction.delegate]
        if does == "run":
            return []
        entry = self._plan.delegates[instruction.delegate]
        refuse = partial(refuse_empty, self._arrays, entry.backend, where)
        return lines_for_empty(
            instruction,
            out,
            given,
            ZeroTests(scope.symbols, self.method.symbols, self.names),
            self._arrays,
            refuse=refuse if does == "refuse" else None,
            has_state=holds_state(entry) or any(self._plan.constants[name].mutable for name in entry.constants),
        )

    def _delegate_call(self, instruction: DelegateCall, given: Sequence[str]) -> str:
        exchange, run = self._exchanges[instruction.delegate], self.names.delegate(instruction.delegate)
        if exchange is None:
            return f"{run}([{', '.join(given)}])"
        converted = [
            exchange.given_code(entry, code, self.names) if isinstance(entry, TensorInput) else code
            for entry, code in zip(instruction.inputs, given, strict=True)
        ]
        return exchange.returned_code(instruction.outputs, f"{run}([{', '.join(converted)}])", self.names)

    def _write_while(self, loop: While, args: list[str], out: str, path: str, scope: GraphScope) -> list[str]:
        carried = [f"*{out}", *self._arguments(loop.extra, scope)]
        condition = self._call_graph(loop.condition, f"{path}.condition.", carried, scope)
        body = self._call_graph(loop.body, f"{path}.body.", carried, scope)
        # eager's loop without a step returns copies
        copy = self.names.bind("copy", partial(copy_array, self._arrays), "copy")
        every = self.names.bind("map", map, "map")
        return [
            f"{out} = {tuple_code(args)}",
            f"if {condition}[0]:",
            *indent_lines([f"{out} = {body}", f"while {condition}[0]: {out} = {body}"]),
            f"else: {out} = [*{every}({copy}, {out})]",
        ]

    def _rows_code(self, loop: Map | Scan, args: list[str], path: str, scope: GraphScope) -> str:
        function, given = self._write_function(loop.body, f"{path}.body.", scope)
        if given:
            function = f"{self.names.bind('partial', partial, 'partial')}({', '.join([function, *given])})"
        groups = [args, self._arguments(loop.extra, scope)]
        if isinstance(loop, Scan):
            groups.insert(1, self._arguments(loop.rows, scope))
        run = map_rows if isinstance(loop, Map) else scan_rows
        bound = self.names.bind("rows", partial(run, self._arrays), run)
        where = self.names.bind("where", self._where, "where")
        return f"{bound}({where}, {function}, {', '.join(map(tuple_code, groups))})"

    def _call_graph(self, graph: Graph, before: str, args: Sequence[str], scope: GraphScope) -> str:
        function, given = self._write_function(graph, before, scope)
        return f"{function}({', '.join([*given, *args])})"

    def _write_function(self, graph: Graph, before: str, outer: GraphScope) -> tuple[str, list[str]]:
        """Write the function of a nested graph; return its name, and the code of its first arguments, the sizes."""
        needed = sorted(symbols_of(graph) & outer.symbols.keys())
        sizes = {symbol: self.names.fresh("s") for symbol in needed}
        variables = {slot: self.names.local(f"v{slot}") for slot in graph.inputs}
        function = self.names.fresh("graph")
        parameters = [*sizes.values(), *(variables[slot] for slot in graph.inputs)]
        scope = GraphScope(variables, dict(sizes), {}, ArgumentNames(self._where))
        lines = self._write_graph(graph, scope, before)
        outputs = self._arguments(graph.outputs, scope)
        lines = [f"def {function}({', '.join(parameters)}):", *indent_lines([*lines, f"return {tuple_code(outputs)}"])]
        self._functions += lines
        return function, [outer.symbols[symbol] for symbol in needed]

    def _write_end(self, scope: GraphScope, leaves: Sequence[str]) -> list[str]:
        # All values are computed from the old contents, so values that share memory with a target of an assignment are
        # cloned first. An output never shares memory with a constant: a write by the caller would change the model,
        # and every other instance.
        method, names = self.method, self.names
        aliasing = Aliasing(method.graph, self._plan.constants, self._operators)
        targets: list[tuple[str, Argument, Root]] = []
        for name, source in method.mutations:
            if source != ConstantName(name):
                targets.append((names.constant(name), source, aliasing.constant_root(name)))
        for index, source in method.input_mutations:
            if source != Value(method.graph.inputs[index]):
                targets.append((leaves[index], source, Root(False, index)))
        changed = {root for *_, root in targets}
        copy = names.bind("copy", partial(copy_array, self._arrays), "copy")
        assign = names.bind("assign", self._arrays.assign, "assign")
        lines: list[str] = []

        def copied(code: str) -> str:
            variable = names.fresh("o")
            lines.append(f"{variable} = {copy}({code})")
            return variable

        codes = []
        for argument in method.graph.outputs:
            code = self._argument(argument, scope)
            roots = aliasing.roots_of(argument)
            is_shared = any(root.is_constant for root in roots) or roots & changed
            codes.append(copied(code) if is_shared and isinstance(argument, Value | ConstantName) else code)
        copies = []
        for target, source, _ in targets:
            code = self._argument(source, scope)
            code = copied(code) if aliasing.roots_of(source) & changed else code
            copies.append(f"{assign}({target}, {code})")
        return [*lines, *copies, f"return {output_code(method.outputs, iter(codes), names)}"]

    def _keywords(self, call: OpCall, scope: GraphScope) -> Iterator[str]:
        # keywords of Python, such as torch's argument `from`, are passed in a dict
        for name, argument in call.kwargs.items():
            code = self._argument(argument, scope)
            if keyword.iskeyword(name):
                yield f"**{{{self.names.bind('key', name, ('key', name))}: {code}}}"
            else:
                yield f"{name}={code}"

    def _arguments(self, arguments: Iterable[Argument], scope: GraphScope) -> list[str]:
        return [self._argument(argument, scope) for argument in arguments]

    def _argument(self, argument: Argument, scope: GraphScope) -> str:
        if isinstance(argument, Value):
            return scope.variables[argument.slot]
        if isinstance(argument, ConstantName):
            return self.names.constant(argument.name)
        if isinstance(argument, tuple):
            return f"[{', '.join(self._arguments(argument, scope))}]"
        if argument is None or isinstance(argument, bool):
            return str(argument)
        if isinstance(argument, int):
            return f"({argument})" if argument < 0 else str(argument)
        if isinstance(argument, Special):
            return self.names.bind(argument.name, self._arrays.special(argument), ("special", argument))
        return self.names.bind("literal", argument, ("literal", type(argument), repr(argument)))


def indent_lines(lines: Iterable[str]) -> list[str]:
    return [f" {line}" for line in lines]


def copy_array(arrays: Arrays, value: object) -> object:
    return arrays.copy(value) if isinstance(value, arrays.kind) else value
