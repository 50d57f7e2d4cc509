"""Plans: what is written is read back, and nothing else is read."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.hostile import replaced
from support.plans import (
    BATCH,
    c,
    call,
    constant,
    delegate_entry,
    graph,
    method,
    op,
    parameter,
    plan_of,
    plan_value,
    product,
    python,
    tensor_input,
    v,
)

from hatch_lower.canonical import canonical_json
from hatch_lower.errors import ProgramError
from hatch_lower.format.arguments import Argument, TensorInput, is_contiguous
from hatch_lower.format.codec import decode
from hatch_lower.format.expression import Expression, evaluate_size, expression_text
from hatch_lower.format.plan import MethodPlan, Plan, read_plan, signature_text, write_plan

WHERE = "digits/default.json"
DAMAGED = (
    "a packaged program file is damaged\n"
    "  where: {where}\n"
    "  found: {found}\n"
    "  to do: install the distribution again; if that does not help, build its wheel again"
)
TREE = {
    "dict": [
        ["image", "*"],
        [3, {"tuple": ["*", None, {"list": []}]}],
        ["named", {"namedtuple": "digits.model:Corner", "fields": ["x"], "children": ["*"]}],
        ["object", {"object": "digits.model:Out.Inner", "keys": ["logits", "state"], "children": [None, "*"]}],
    ]
}


def full_value() -> dict[str, Any]:
    """Return a plan that uses everything that a plan can hold."""
    image = tensor_input("s0", 1, 8, 8)
    branch = graph(1, [op("aten.relu.default", v(0), out=1)], v(1))
    condition = graph(2, [op("aten.lt.Tensor", v(0), v(1), out=2)], v(2))
    step = graph(2, [op("aten.add.Tensor", v(0), 1, out=2)], v(2))
    row = graph(2, [op("aten.mul.Tensor", v(0), v(1), out=2)], v(2))
    combine = graph(3, [op("aten.add.Tensor", v(0), v(1), out=3)], v(3), v(2), None, c("net.w"))
    body = [
        op("aten.add.Tensor", v(0), c("net.w"), alpha=2, out=5),
        op(
            "aten.full.default",
            [2, [1, -3]],
            {"float": "nan"},
            dtype={"dtype": "float16"},
            device={"device": "cpu"},
            layout={"layout": "strided"},
            memory_format={"memory_format": "channels_last"},
            value={"complex": [1.5, {"float": "-inf"}]},
            flag=True,
            text="größe",
            nothing=None,
            out=6,
        ),
        call(0, [v(5), v(3), 2], [image, {"kind": "symbol", "expr": "s1"}, {"kind": "literal", "value": 2}], 7),
        python("getitem", v(7), 0, out=8),
        {"kind": "cond", "predicate": v(3), "true": branch, "false": branch, "args": [v(8)], "out": 9},
        {"kind": "while", "condition": condition, "body": step, "args": [v(8)], "extra": [v(5)], "out": 10},
        {"kind": "map", "body": row, "args": [v(8)], "extra": [2], "out": 11},
        {"kind": "scan", "body": combine, "args": [v(8)], "rows": [c("net.t")], "extra": [v(3)], "out": 12},
    ]
    inputs = [
        image,
        tensor_input({"op": "floordiv", "args": ["s0", 2]}, {"op": "max", "args": [1, "s1"]}, dtype="int64"),
        {"kind": "literal", "value": {"float": "inf"}},
        {"kind": "symbol", "expr": {"op": "add", "args": ["s1", {"op": "neg", "args": [1]}]}},
    ]
    forward = method(
        inputs,
        body,
        *(v(8), v(9), v(10), None),
        parameters=[parameter("batch", TREE)],
        symbols={**BATCH, "s1": {"min": 0, "max": None, "name": "s1"}},
        tree=TREE,
        mutations=[("count", v(8))],
        input_mutations=[(0, v(5)), (1, c("net.w"))],
    )
    return plan_value(
        {"forward": forward, "embed": method([], [], tree=None)},
        storages=[("a", "float32", 6), ("b", "bool", 0)],
        constants={
            "net.w": constant(0, 2, 3),
            "net.t": constant(0, 3, 2, stride=(1, 3)),
            "count": constant(0, 1, offset=5, mutable=True),
            "complex": constant(0, 3, dtype="complex64"),
            "empty": constant(1, 0, 4, dtype="bool"),
        },
        delegates=[
            delegate_entry(
                "aoti",
                "net.w",
                info={"any": [1, {"thing": None}]},
                target={"system": "Linux", "machine": "x86_64", "isa": "x86-64-v3"},
            ),
            delegate_entry(
                "reference",
                data={
                    "weights": {
                        "file": "digits/data/abc.bin",
                        "size": 24,
                        "alignment": 64,
                        "layout": {"dtype": "float32", "sizes": [2, 3], "dim_order": [1, 0]},
                    },
                    "größe": {"file": "digits/data/def.bin", "size": 0, "alignment": 1, "layout": None},
                },
            ),
        ],
    )


def refusal(value: Any) -> ProgramError:
    with pytest.raises(ProgramError) as caught:
        plan_of(value)
    return caught.value


def test_reading_a_written_plan_gives_an_equal_plan() -> None:
    plan = plan_of(full_value())
    data = write_plan(plan)
    assert read_plan(data, WHERE) == plan
    assert write_plan(read_plan(data, WHERE)) == data


def test_a_canonical_plan_is_written_as_it_was_read() -> None:
    data = canonical_json(full_value())
    assert write_plan(read_plan(data, WHERE)) == data


def test_a_newer_schema() -> None:
    value = plan_value({}) | {"schema": 3, "something": "new"}
    assert str(refusal(value)) == (
        "a packaged program needs a newer hatch-lower\n"
        "  where: digits/default.json\n"
        "  found: schema 3; this hatch-lower reads schema 2\n"
        "  to do: upgrade hatch-lower"
    )


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"", "no JSON: Expecting value: line 1 column 1 (char 0)"),
        (b"\xff", "no JSON: 'utf-8' codec can't decode byte 0xff in position 0: invalid start byte"),
        (b"[NaN]", "no JSON: the constant NaN"),
        (b'{"schema":1', "no JSON: Expecting ',' delimiter: line 1 column 12 (char 11)"),
        (b"[" * 100000, "JSON that nests too deeply"),
        (b'{"schema":1,"a":' + b"[" * 100000, "JSON that nests too deeply"),
        (b"[]", "no JSON object with the key `schema`"),
        (b"{}", "no JSON object with the key `schema`"),
        (b'{"schema":true}', "schema True"),
        (b'{"schema":0}', "schema 0"),
        (b'{"schema":1}', "the key `constants` is missing"),
    ],
)
def test_what_is_no_plan(data: bytes, found: str) -> None:
    with pytest.raises(ProgramError) as caught:
        read_plan(data, WHERE)
    assert str(caught.value) == DAMAGED.format(where=WHERE, found=found)


@pytest.mark.parametrize("data", [b'{"schema":' + b"9" * 5000 + b"}", b'{"schema":"\\ud800"}', b'{"schema":1e999}'])
def test_values_that_json_allows_and_python_does_not(data: bytes) -> None:
    with pytest.raises(ProgramError, match="damaged"):
        read_plan(data, WHERE)


def test_every_truncation_is_refused() -> None:
    data = canonical_json(full_value())
    for end in range(len(data) - 1):  # the last byte is a newline
        with pytest.raises(ProgramError):
            read_plan(data[:end], WHERE)


def test_every_flipped_byte_is_read_or_refused() -> None:
    data = canonical_json(full_value())
    for index in range(len(data)):
        for bit in (1, 4, 128):
            damaged = bytearray(data)
            damaged[index] ^= bit
            try:
                plan = read_plan(bytes(damaged), WHERE)
            except ProgramError:
                continue
            write_plan(plan)


FORWARD = ("methods", "forward")
BODY = (*FORWARD, "graph", "instructions")
AT_FORWARD = "digits/default.json: methods['forward']"
AT_DATA = "digits/default.json: delegates[1].data['weights']"
AT_BODY = f"{AT_FORWARD}.graph.instructions"


@pytest.mark.parametrize(
    ("path", "new", "where", "found"),
    [
        (("storages",), {}, "digits/default.json: storages", "an object instead of a list"),
        (("more",), 1, "digits/default.json", "unknown key `more`"),
        (
            ("storages", 0, "dtype"),
            "complex128",
            "digits/default.json: storages[0]",
            "a storage of complex128, which safetensors cannot hold",
        ),
        (("storages", 0, "dtype"), "float31", "digits/default.json: storages[0].dtype", "the dtype 'float31'"),
        (
            ("storages", 0, "length"),
            -1,
            "digits/default.json: storages[0].length",
            f"-1 instead of an integer from 0 to {2**63 - 1}",
        ),
        (
            ("storages", 0, "length"),
            2**70,
            "digits/default.json: storages[0].length",
            f"an integer of more than 64 bits instead of an integer from 0 to {2**63 - 1}",
        ),
        (
            ("storages", 0, "length"),
            True,
            "digits/default.json: storages[0].length",
            f"True instead of an integer from 0 to {2**63 - 1}",
        ),
        (
            ("storages", 0, "length"),
            5,
            "digits/default.json: constants['complex']",
            "a storage of 20 bytes seen as complex64",
        ),
        (("constants", "net.w", "storage"), 2, "digits/default.json: constants['net.w']", "storage 2 of 2"),
        (
            ("constants", "net.w", "offset"),
            1,
            "digits/default.json: constants['net.w']",
            "a view of [2, 3] that ends beyond its storage",
        ),
        (
            ("constants", "net.w", "stride"),
            [4, 1],
            "digits/default.json: constants['net.w']",
            "a view of [2, 3] that ends beyond its storage",
        ),
        (
            ("constants", "net.w", "stride"),
            [-3, 1],
            "digits/default.json: constants['net.w'].stride[0]",
            f"-3 instead of an integer from 0 to {2**63 - 1}",
        ),
        (
            ("constants", "empty", "offset"),
            9,
            "digits/default.json: constants['empty']",
            "a view of [0, 4] that ends beyond its storage",
        ),
        (
            ("constants", "count", "mutable"),
            0,
            "digits/default.json: constants['count'].mutable",
            "0 instead of true or false",
        ),
        (
            ("delegates", 0, "file"),
            "../x.so",
            "digits/default.json: delegates[0].file",
            "'../x.so' instead of a relative path without `..`",
        ),
        (
            ("delegates", 0, "file"),
            "/x.so",
            "digits/default.json: delegates[0].file",
            "'/x.so' instead of a relative path without `..`",
        ),
        (
            ("delegates", 0, "file"),
            "a\\b",
            "digits/default.json: delegates[0].file",
            "'a\\\\b' instead of a relative path without `..`",
        ),
        (("delegates", 0, "constants"), ["net.x"], "digits/default.json: delegates[0]", "the unknown constant `net.x`"),
        (("delegates", 0, "target"), {}, "digits/default.json: delegates[0].target", "the key `isa` is missing"),
        (("delegates", 1, "data", "weights"), 1, AT_DATA, "1 instead of an object"),
        (
            ("delegates", 1, "data", "weights", "file"),
            "../x",
            f"{AT_DATA}.file",
            "'../x' instead of a relative path without `..`",
        ),
        (("delegates", 1, "data", "weights", "alignment"), 0, AT_DATA, "an alignment of 0 bytes"),
        (("delegates", 1, "data", "weights", "alignment"), 48, AT_DATA, "an alignment of 48 bytes"),
        (("delegates", 1, "data", "weights", "size"), 20, AT_DATA, "20 bytes in another layout"),
        (("delegates", 1, "data", "weights", "layout", "dtype"), "f32", AT_DATA, "24 bytes in another layout"),
        (("delegates", 1, "data", "weights", "layout", "dim_order"), [0, 0], AT_DATA, "24 bytes in another layout"),
        (
            ("delegates", 0, "data"),
            {"weights": {"file": "digits/data/def.bin", "size": 0, "alignment": 1, "layout": None}},
            "digits/default.json: delegates[1]",
            "the name 'weights', which stands for different data in another delegate",
        ),
        (
            (*FORWARD, "parameters", 0, "name"),
            "a b",
            f"{AT_FORWARD}.parameters[0].name",
            "'a b' instead of an identifier",
        ),
        (
            (*FORWARD, "parameters", 0, "name"),
            "lambda",
            f"{AT_FORWARD}.parameters[0].name",
            "'lambda' instead of an identifier",
        ),
        ((*FORWARD, "parameters", 0, "name"), "ﬁ", f"{AT_FORWARD}.parameters[0].name", "'ﬁ' instead of an identifier"),
        (
            (*FORWARD, "parameters", 0, "kind"),
            "star",
            f"{AT_FORWARD}.parameters[0].kind",
            "'star' instead of one of `positional`, `keyword`",
        ),
        ((*FORWARD, "parameters", 0, "tree"), "*", AT_FORWARD, "1 leaves, 4 inputs, 4 graph inputs"),
        ((*FORWARD, "symbols", "s0", "max"), 0, f"{AT_FORWARD}.symbols['s0']", "a range from 1 to 0"),
        ((*FORWARD, "symbols"), {}, f"{AT_FORWARD}.inputs[0]", "the symbol `s0` is not declared"),
        (
            (*FORWARD, "inputs", 0, "kind"),
            "scalar",
            f"{AT_FORWARD}.inputs[0].kind",
            "'scalar' instead of one of `tensor`, `literal`, `symbol`",
        ),
        ((*FORWARD, "inputs", 0, "dtype"), [], f"{AT_FORWARD}.inputs[0].dtype", "the dtype []"),
        ((*FORWARD, "inputs", 0, "device"), "cuda", f"{AT_FORWARD}.inputs[0]", "unknown key `device`"),
        ((*FORWARD, "inputs", 0, "shape"), [1], f"{AT_FORWARD}.inputs[0]", "1 sizes and 4 strides"),
        ((*FORWARD, "inputs", 0, "shape", 1), -1, f"{AT_FORWARD}.inputs[0]", "a negative size or stride"),
        (
            (*FORWARD, "inputs", 0, "shape", 1),
            1.5,
            f"{AT_FORWARD}.inputs[0].shape[1]",
            "1.5 instead of an integer of 64 bits",
        ),
        ((*FORWARD, "graph", "inputs"), [0, 0, 1, 2], f"{AT_FORWARD}.graph", "two inputs with the same slot"),
        (
            (*FORWARD, "graph", "outputs"),
            [v(99), 1, 1, 1],
            f"{AT_FORWARD}.graph.outputs",
            "the slot 99 is read before it is written",
        ),
        ((*FORWARD, "graph", "outputs"), [1], AT_FORWARD, "4 output leaves for 1 graph outputs"),
        (
            (*BODY, 0, "kind"),
            "jump",
            f"{AT_BODY}[0].kind",
            "'jump' instead of one of `op`, `python`, `delegate`, `cond`, `while`, `map`, `scan`",
        ),
        (
            (*BODY, 0, "op"),
            "aten.add",
            f"{AT_BODY}[0].op",
            "'aten.add' instead of an operator `namespace.name.overload`",
        ),
        (
            (*BODY, 0, "op"),
            "aten.add.Tensor\n",
            f"{AT_BODY}[0].op",
            "'aten.add.Tensor\\n' instead of an operator `namespace.name.overload`",
        ),
        ((*BODY, 0, "kwargs"), {"a b": 1}, f"{AT_BODY}[0].kwargs['a b']", "a keyword argument 'a b'"),
        ((*BODY, 0, "args", 0), v(7), f"{AT_BODY}[0]", "the slot 7 is read before it is written"),
        ((*BODY, 0, "args", 1), c("net.x"), f"{AT_BODY}[0]", "the unknown constant `net.x`"),
        ((*BODY, 0, "args", 1), {"code": "1"}, f"{AT_BODY}[0].args[1]", "unknown argument `code`: '1'"),
        ((*BODY, 0, "args", 1), {"float": "1"}, f"{AT_BODY}[0].args[1]", "unknown argument `float`: '1'"),
        ((*BODY, 0, "args", 1), {"device": "cuda"}, f"{AT_BODY}[0].args[1]", "unknown argument `device`: 'cuda'"),
        (
            (*BODY, 0, "args", 1),
            {"v": 0, "c": 1},
            f"{AT_BODY}[0].args[1]",
            "an object of 2 keys instead of an argument",
        ),
        ((*BODY, 0, "args", 1), [[[[[[[[[1]]]]]]]]], f"{AT_BODY}[0].args[1]", "lists of more than 8 levels"),
        ((*BODY, 0, "out"), 0, f"{AT_BODY}[0]", "the slot 0 is written twice"),
        ((*BODY, 2, "delegate"), 2, f"{AT_BODY}[2]", "delegate 2 of 2"),
        ((*BODY, 2, "args"), [], f"{AT_BODY}[2]", "0 arguments for 3 inputs"),
        ((*BODY, 3, "op"), "exec", f"{AT_BODY}[3]", "the operation 'exec' of 2 arguments"),
        ((*BODY, 3, "op"), "neg", f"{AT_BODY}[3]", "the operation 'neg' of 2 arguments"),
        ((*BODY, 3, "args", 1), "x", f"{AT_BODY}[3]", "an item 'x'"),
        ((*BODY, 4, "args"), [], f"{AT_BODY}[4]", "branches with more or fewer inputs than arguments"),
        ((*BODY, 4, "true"), graph(1, []), f"{AT_BODY}[4]", "branches with different numbers of outputs"),
        (
            (*BODY, 5, "extra"),
            [],
            f"{AT_BODY}[5]",
            "a loop whose graphs have more or fewer inputs than arguments",
        ),
        (
            (*BODY, 5, "body"),
            graph(2, []),
            f"{AT_BODY}[5]",
            "a loop whose graphs have more or fewer outputs than expected",
        ),
        ((*BODY, 6, "args"), [], f"{AT_BODY}[6]", "a map whose arguments are not tensors"),
        ((*BODY, 6, "args"), [1], f"{AT_BODY}[6]", "a map whose arguments are not tensors"),
        ((*BODY, 6, "extra", 0), v(11), f"{AT_BODY}[6]", "the slot 11 is read before it is written"),
        (
            (*BODY, 6, "extra"),
            [],
            f"{AT_BODY}[6]",
            "a map whose graph has more or fewer inputs than arguments",
        ),
        (
            (*BODY, 6, "body", "outputs"),
            [v(2), 3],
            f"{AT_BODY}[6]",
            "the output 3 of each row, which is no tensor",
        ),
        ((*BODY, 6, "body"), 1, f"{AT_BODY}[6].body", "1 instead of an object"),
        ((*BODY, 7, "rows"), [], f"{AT_BODY}[7]", "a scan whose rows are not tensors"),
        ((*BODY, 7, "rows", 0), c("net.x"), f"{AT_BODY}[7]", "the unknown constant `net.x`"),
        (
            (*BODY, 7, "args"),
            [],
            f"{AT_BODY}[7]",
            "a scan whose graph has more or fewer inputs than arguments",
        ),
        (
            (*BODY, 7, "body", "outputs"),
            [],
            f"{AT_BODY}[7]",
            "a scan whose graph has fewer outputs than carried values",
        ),
        (
            (*BODY, 7, "body", "outputs", 1),
            [v(2)],
            f"{AT_BODY}[7]",
            "the output (Value(slot=2),) of each row, which is no tensor",
        ),
        (
            (*FORWARD, "mutations"),
            [["net.w", v(8)]],
            f"{AT_FORWARD}.mutations",
            "'net.w' instead of a mutable constant",
        ),
        ((*FORWARD, "mutations"), [["count", 1]], f"{AT_FORWARD}.mutations", "neither a slot nor a constant"),
        ((*FORWARD, "input_mutations"), [[2, v(8)]], f"{AT_FORWARD}.input_mutations", "input 2, which is no tensor"),
        ((*FORWARD, "outputs"), {"set": ["*"]}, f"{AT_FORWARD}.outputs", "no tree of containers"),
        ((*FORWARD, "outputs"), {"dict": [["a", "*"], ["a", "*"]]}, f"{AT_FORWARD}.outputs", "the same key twice"),
        (
            (*FORWARD, "outputs"),
            {"object": "os", "keys": [], "children": []},
            f"{AT_FORWARD}.outputs",
            "'os' instead of `module:Class`",
        ),
        (
            (*FORWARD, "outputs"),
            {"object": "os:x", "keys": ["a"], "children": []},
            f"{AT_FORWARD}.outputs",
            "1 names for 0 children, or a name twice",
        ),
        (
            (*FORWARD, "outputs"),
            {"namedtuple": "a:B", "fields": ["_a"], "children": ["*"]},
            f"{AT_FORWARD}.outputs",
            "a named tuple's field that starts with an underscore",
        ),
    ],
)
def test_a_malformed_plan_says_where_and_what(path: tuple[str | int, ...], new: Any, where: str, found: str) -> None:
    assert str(refusal(replaced(full_value(), path, new))) == DAMAGED.format(where=where, found=found)


def test_graphs_and_trees_nest_only_so_deep() -> None:
    tree: Any = "*"
    body = graph(0, [])
    for _ in range(40):
        tree = {"list": [tree]}
        body = graph(
            0, [{"kind": "cond", "predicate": True, "true": body, "false": graph(0, []), "args": [], "out": 0}]
        )
    assert "containers of more than 32 levels" in str(refusal(replaced(full_value(), (*FORWARD, "outputs"), tree)))
    assert "graphs of more than 16 levels" in str(refusal(replaced(full_value(), (*FORWARD, "graph"), body)))


# expressions


REAL = {"op": "float", "args": ["s0"]}


@pytest.mark.parametrize(
    ("value", "number", "text"),
    [
        ("s0", 5, "batch"),
        (product(2, "s0"), 10, "2*batch"),
        (product({"op": "add", "args": ["s0", 1]}, 3), 18, "(batch + 1)*3"),
        ({"op": "sub", "args": ["s0", 1]}, 4, "batch - 1"),
        ({"op": "neg", "args": ["s0"]}, -5, "-batch"),
        ({"op": "floordiv", "args": ["s0", 2]}, 2, "batch//2"),
        ({"op": "mod", "args": ["s0", 3]}, 2, "batch % 3"),
        ({"op": "floordiv", "args": [1, {"op": "sub", "args": ["s0", "s0"]}]}, -1, "1//(batch - batch)"),
        ({"op": "pow", "args": ["s0", 2]}, 25, "batch**2"),
        ({"op": "max", "args": [1, "s0", -3]}, 5, "max(1, batch, -3)"),
        ({"op": "min", "args": [1, "s0"]}, 1, "min(1, batch)"),
        ({"op": "trunc", "args": [product(2.3, REAL)]}, 11, "trunc(2.3*batch)"),
        ({"op": "ceil", "args": [{"op": "truediv", "args": ["s0", 2]}]}, 3, "ceil(batch / 2)"),
        ({"op": "floor", "args": [{"op": "sqrt", "args": [REAL]}]}, 2, "floor(sqrt(batch))"),
        ({"op": "round", "args": [product(0.5, REAL)]}, 2, "round(0.5*batch)"),
        ({"op": "pow", "args": [2, "s0"]}, 32, "2**batch"),
        ({"op": "where", "args": [{"op": "lt", "args": ["s0", 9]}, 1, "s0"]}, 1, "1 if batch < 9 else batch"),
        # Python has an error or no finite number for these
        ({"op": "trunc", "args": [{"op": "truediv", "args": ["s0", 0]}]}, -1, "trunc(batch / 0)"),
        ({"op": "trunc", "args": [{"op": "sqrt", "args": [-4.0]}]}, -1, "trunc(sqrt(-4.0))"),
        ({"op": "trunc", "args": [{"op": "exp", "args": [1e9]}]}, -1, "trunc(exp(1000000000.0))"),
        ({"op": "trunc", "args": [{"op": "realpow", "args": [-8.0, 0.5]}]}, -1, "trunc((-8.0)**0.5)"),
        ({"op": "trunc", "args": [product(1e300, 1e300)]}, -1, "trunc(1e+300*1e+300)"),
        ({"op": "pow", "args": ["s0", {"op": "neg", "args": ["s0"]}]}, -1, "batch**(-batch)"),
        ({"op": "pow", "args": [2, {"op": "pow", "args": ["s0", 60]}]}, -1, "2**(batch**60)"),
    ],
)
def test_expressions(value: Any, number: int, text: str) -> None:
    expression = decode(Expression, value, WHERE)
    assert evaluate_size(expression, {"s0": 5}) == number
    assert expression_text(expression, {"s0": "batch"}) == text


@pytest.mark.parametrize(
    "value",
    [
        {"op": "shift", "args": ["s0", 1]},
        {"op": [], "args": ["s0", 1]},
        {"op": "add", "args": []},
        {"op": "mod", "args": ["s0"]},
        {"op": "mod", "args": ["s0", 0]},
        {"op": "pow", "args": ["s0", 65]},
        0.5,
        REAL,
        {"op": "lt", "args": ["s0", 2]},
        {"op": "add", "args": ["s0", 0.5]},
        {"op": "trunc", "args": ["s0"]},
        {"op": "trunc", "args": [1e999]},
        {"op": "float", "args": [0.5]},
        {"op": "where", "args": ["s0", 1, 2]},
        {"op": "where", "args": [True, 1, 2.0]},
        {"op": "add", "args": [True, 1]},
        {"op": "floordiv", "args": [REAL, REAL]},
        {"op": "pow", "args": ["s0", -1]},
        "s 0",
        "größe",
        None,
        True,
        json.loads('{"op":"neg","args":[' * 40 + "1" + "]}" * 40),
    ],
)
def test_malformed_expressions(value: Any) -> None:
    with pytest.raises(ProgramError):
        decode(Expression, value, WHERE)


@pytest.mark.parametrize(
    ("shape", "stride", "expected"),
    [
        ([2, 3], [3, 1], True),
        ([2, 3], [1, 2], False),
        ([2, 1, 3], [3, 99, 1], True),
        (["s0", 8, "s1"], [product("s1", 8), "s1", 1], True),
        (["s0", 8, "s1"], [product(8, {"op": "max", "args": [1, "s1"]}), "s1", 1], True),
        (["s0", 8], [1, "s0"], False),
        ([], [], True),
        ([0, 4], [4, 1], True),
    ],
)
def test_contiguity_whatever_the_symbols(shape: list[Any], stride: list[Any], expected: bool) -> None:
    entry = decode(TensorInput, tensor_input(*shape, stride=stride), WHERE)
    assert is_contiguous(entry) is expected


@pytest.mark.parametrize("value", [1e400, float("nan"), 2**63, object])
def test_arguments_that_json_cannot_hold(value: Any) -> None:
    with pytest.raises(ProgramError):
        decode(Argument, value, WHERE)


def test_signatures_in_words() -> None:
    plan = plan_of(full_value())
    assert signature_text("forward", plan.methods["forward"]) == (
        "forward(batch: {'image': float32[batch, 1, 8, 8], 3: (int64[batch//2, max(1, s1)], None, []), "
        "'named': Corner(x=the value inf), 'object': Out.Inner(logits=None, state=an integer (s1 + (-1)))}); "
        "batch from 1 to 1024; s1 from 0"
    )
    assert signature_text("embed", plan.methods["embed"]) == "embed()"


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        (bytes, "no reader exists for the type <class 'bytes'>"),
        (set[int], "no reader exists for the type set[int]"),
        (MethodPlan | Plan, "have no class attribute `kind`"),
    ],
)
def test_a_type_that_no_document_holds_is_a_fault_of_the_caller(kind: Any, found: str) -> None:
    with pytest.raises(TypeError) as caught:
        decode(kind, {}, "a document")
    assert found in str(caught.value)
