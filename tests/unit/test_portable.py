"""Partitions as bytes: what is read is the partition that was written, and whatever else is refused."""

from __future__ import annotations

import ast
import builtins
import json
import random
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from support.backends import TagBy, everything
from support.quantised import mlp, quantised, x86_quantizer
from torch import Tensor

from hatch_lower.backends.testing.bench import Bench, Exports, Subject, quiet
from hatch_lower.backends.testing.programs import all_cases
from hatch_lower.exir.backend.backend_api import make_request, tag_program
from hatch_lower.exir.backend.registry import find_backend
from hatch_lower.exir.graph.canonical import structure_digest
from hatch_lower.exir.lowering.convert import to_edge
from hatch_lower.exir.lowering.extract import extract
from hatch_lower.exir.lowering.partition import plan_partitions
from hatch_lower.exir.lowering.portable import read_partition, write_partition
from hatch_lower.exir.lowering.portable_sizes import NotPortableError, read_expression, read_symbol
from hatch_lower.exir.lowering.preprocess import Request, key_of, preprocess_all

pytestmark = pytest.mark.torch

CASES = {case.name: case for case in all_cases()}
# each group, and what is written in a way of its own
CHOSEN = (
    *("operators/perceptron", "operators/fused", "operators/attention", "shapes/views", "shapes/empty tensors"),
    *("symbolic sizes/two", "symbolic sizes/empty batch", "outputs/several", "aliases/views of results"),
    *("constants/every kind", "constants/tied", "state/counted", "state/replaced", "control flow/cond"),
)
EVERYTHING = TagBy(everything, "null")


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(Subject("reference"), tmp_path_factory.mktemp("bench"), Exports())


def requests_of(program: Any, partitioner: Any) -> list[Request]:
    with quiet():
        tagged = tag_program(program, partitioner, True)
        plan = plan_partitions(tagged.tagged_exported_program, tagged.partition_tags, lambda backend_id, state: False)
        return [
            make_request(
                "forward",
                partition.spec,
                find_backend(partition.spec.backend_id),
                extract(tagged.tagged_exported_program, partition),
            )
            for partition in plan.all_partitions()
        ]


def carried(request: Request) -> Request:
    data = write_partition(request.local, contents=not request.backend.weight_free)
    return replace(request, local=read_partition(data))


@pytest.mark.parametrize("name", CHOSEN)
def test_a_partition_that_was_read_has_the_same_key_and_the_same_result(bench: Bench, name: str) -> None:
    requests = bench.requests(bench.edge(CASES[name]))
    assert requests
    for request in requests:
        read = carried(request)
        assert key_of(read, {}) == key_of(request, {})
        (made,), (again,) = preprocess_all([request], None), preprocess_all([read], None)
        assert again.result == made.result


@pytest.mark.parametrize("name", ["control flow/cond", "symbolic sizes/two", "state/counted", "constants/tied"])
def test_a_whole_program_with_its_branches_and_sizes_is_portable(bench: Bench, name: str) -> None:
    for request in requests_of(bench.edge(CASES[name]), EVERYTHING):
        assert key_of(carried(request), {}) == key_of(request, {})


def test_a_quantised_partition_is_portable() -> None:
    pytest.importorskip("torchao")
    model, inputs = mlp()
    with quiet():
        edge = to_edge(torch.export.export(quantised(model, inputs, x86_quantizer()), inputs))
    (request,) = requests_of(edge, EVERYTHING)
    assert "quantized_decomposed" in str(request.local.program.graph)
    assert key_of(carried(request), {}) == key_of(request, {})


@pytest.fixture(scope="module")
def linear() -> Request:
    edge = to_edge(torch.export.export(torch.nn.Linear(64, 64).eval(), (torch.ones(1, 64),), strict=False))
    (request,) = requests_of(edge, TagBy(everything, "reference"))
    return request


def test_stand_ins_are_written_without_contents(linear: Request) -> None:
    data = write_partition(linear.local, contents=False)
    assert len(data) < 64 * 64 * 4 < len(write_partition(linear.local, contents=True))
    assert structure_digest(read_partition(data).program) == structure_digest(linear.local.program)


def test_equal_partitions_are_equal_bytes(linear: Request) -> None:
    data = write_partition(linear.local, contents=True)
    assert write_partition(read_partition(data), contents=True) == data


def test_an_operator_of_the_models_own_code_is_not_portable() -> None:
    with torch.library._scoped_library("portable_test", "FRAGMENT") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")

        class Net(torch.nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                result: Tensor = torch.ops.portable_test.twice(x)
                return result

        edge = to_edge(torch.export.export(Net(), (torch.ones(2),), strict=False))
        (request,) = requests_of(edge, EVERYTHING)
        with pytest.raises(NotPortableError, match=r"the operator `portable_test.twice.default`, which is not torch's"):
            write_partition(request.local, contents=False)


def test_metadata_that_is_not_written_is_no_secret(linear: Request) -> None:
    local = read_partition(write_partition(linear.local, contents=True))
    next(iter(local.program.graph.nodes)).meta["colour"] = "red"
    with pytest.raises(NotPortableError, match="the metadata `colour` of a node"):
        write_partition(local, contents=True)


def damages(data: bytes) -> Iterator[tuple[str, bytes]]:
    end = 8 + int.from_bytes(data[:8], "little")
    yield "no partition", b""
    yield "no partition", data[:40]
    yield "cut off", data[:-1]
    yield "1 bytes too many", data + b"\0"
    for match, old, new in (
        ("a call of", b"edge:aten.", b"edge:evil."),
        ("a call of", b"edge:aten.", b"python:aten."),
        ("schema 7", b'"schema":1', b'"schema":7'),
        ("beyond its memory", b'"offset":0', b'"offset":9'),
        ("no partition", b'"stride":[64,1]', b'"stride":[64]'),
        ("the dtype", b'"dtype":"float32"', b'"dtype":"ones"'),
        ("a node of the kind", b'"op":"call_function"', b'"op":"call_module"'),
    ):
        assert old in data[:end]
        text = data[8:end].replace(old, new)
        yield match, len(text).to_bytes(8, "little") + text + data[end:]


def test_what_is_no_partition_is_refused_with_a_reason(linear: Request) -> None:
    for match, data in damages(write_partition(linear.local, contents=True)):
        with pytest.raises(NotPortableError, match=match):
            read_partition(data)


# Python that leaves a trace where something runs it
TRACE = "__import__('builtins').setattr(__import__('builtins'), 'zq7marker', 1)"


@pytest.fixture
def no_trace() -> Iterator[None]:
    yield
    assert not hasattr(builtins, "zq7marker")


@pytest.mark.usefixtures("no_trace")
@pytest.mark.parametrize(
    "written",
    [
        ["rational", [TRACE], 2],
        ["rational", 1, [TRACE]],
        ["rational", [[TRACE]], 1],
        ["rational", {TRACE: TRACE}, 1],
        ["rational", TRACE, 1],
        ["rational", "1e9999999", 1],
        ["rational", 1, 0],
        ["rational", True, 1],
        ["float", [TRACE]],
        ["float", TRACE],
        ["sympy.Add", [TRACE], 1],
        ["sympy.Add", TRACE],
        [[TRACE]],
        [TRACE, 1],
        {TRACE: 1},
        TRACE,
        ["sympy.Pow", 10, 10**9],
        ["sympy.Pow", ["sympy.Pow", 10, ["sympy.Pow", 10, 9]], 2],
        ["sympy.Pow", ["sympy.Pow", ["sympy.Pow", ["sympy.Pow", 10, 64], 64], 64], 64],
        ["sympy.Pow", 10, ["rational", 10**12, 7]],
        ["sympy.Pow", 2, 10**12, 3],
        ["sympy.Pow", 10, ["oo"]],
        ["LShift", 1, 10**12],
        ["PowByNatural", 10, 10**12],
    ],
)
def test_a_size_that_is_read_runs_nothing_and_takes_no_time(written: Any) -> None:
    begin = time.process_time()
    with pytest.raises((NotPortableError, KeyError, TypeError, ValueError)):
        read_expression(written, {})
    assert time.process_time() - begin < 1


@pytest.mark.parametrize(
    ("name", "assumptions"),
    [(f"s0; {TRACE}", {}), ([TRACE], {}), ("s\u0430", {}), ("", {}), ("s0", {"integer": TRACE}), ("s0", {"cls": [1]})],
)
@pytest.mark.usefixtures("no_trace")
def test_the_name_of_a_symbol_is_an_identifier(name: Any, assumptions: Any) -> None:
    with pytest.raises(NotPortableError, match=r"a symbol|assumptions"):
        read_symbol({"name": name, "assumptions": assumptions})


@pytest.mark.usefixtures("no_trace")
def test_no_text_of_a_partition_gets_into_code(bench: Bench) -> None:
    """Each text, as a key and as a value, is refused, or an identifier, or a literal of the code."""
    (request,) = requests_of(bench.edge(CASES["control flow/cond"]), EVERYTHING)
    data = write_partition(request.local, contents=True)
    end = 8 + int.from_bytes(data[:8], "little")
    document = json.loads(data[8:end])
    node = next(row for row in document["graph"] if row["op"] == "call_function")
    node["kwargs"]["zq7"] = {"tuple": [TRACE, {"dict": [["zq7", TRACE]]}]}
    texts = sorted({text for text in re.findall(r'"([^"\\]*)"', json.dumps(document)) if text})
    assert len(texts) > 30

    def is_refused(text: str) -> bool:
        try:
            local = read_partition(len(text.encode()).to_bytes(8, "little") + text.encode() + data[end:])
        except NotPortableError:
            return True
        for module in local.program.graph_module.modules():
            code = module.code if isinstance(module, torch.fx.GraphModule) else ""
            assert "__import__" not in {node.id for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)}
        return False

    assert not is_refused(json.dumps(document))
    changed = [
        json.dumps(document).replace(json.dumps(text), json.dumps(marker))
        for text in texts
        for marker in (f"x={TRACE}", f"x = {TRACE}, y")
    ]
    assert sum(map(is_refused, changed)) > len(texts)


def test_a_changed_byte_is_refused_or_read_and_nothing_else(bench: Bench) -> None:
    (request,) = requests_of(bench.edge(CASES["symbolic sizes/two"]), EVERYTHING)
    data = write_partition(request.local, contents=True)
    chance = random.Random(7)
    refused = 0
    for _ in range(120):
        changed = bytearray(data)
        changed[chance.randrange(len(data))] = chance.randrange(256)
        try:
            read_partition(bytes(changed))
        except NotPortableError:
            refused += 1
    assert refused > 60
