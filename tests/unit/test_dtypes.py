from __future__ import annotations

import json
import random
import threading
from importlib.resources import files
from itertools import product
from pathlib import Path

import pytest
import torch

from hatch_lower.exir.dialects.edge import generate_dtypes
from hatch_lower.exir.dialects.edge.dtype_samples import Slot, call_variants, core_operators
from hatch_lower.exir.dialects.edge.dtypes import (
    REGULAR_DTYPES,
    AllowedDtypeSet,
    FunctionDtypeConstraint,
    _edge_dialect_info,
    constraint_of,
    full_name,
    tensor_names,
)
from hatch_lower.exir.dialects.edge.faults import ConstraintError
from hatch_lower.exir.dialects.edge.generate_dtypes import accepted_dtypes, expand, rows_of, table_of

pytestmark = pytest.mark.torch

aten = torch.ops.aten
SAMPLE = (
    aten.add.Tensor,
    aten.add.Scalar,
    aten.bitwise_and.Tensor,
    aten.cat.default,
    aten.embedding.default,
    aten.eq.Scalar,
    aten.full.default,
    aten.index_select.default,
    aten.logical_not.default,
    aten.max.dim,
    aten.native_layer_norm.default,
    aten.pow.Tensor_Scalar,
    aten.sigmoid.default,
    aten.sum.dim_IntList,
    aten.view.default,
    aten.where.self,
)


def test_a_set_of_dtypes_is_reduced_to_one() -> None:
    allowed = AllowedDtypeSet({torch.int8, torch.int32})
    assert torch.int8 in allowed
    assert torch.float32 not in allowed
    assert not allowed.reduce_to(torch.float32)
    assert torch.int8 in allowed
    assert allowed.reduce_to(torch.int8)
    assert allowed.reduce_to(torch.int8)
    assert not allowed.reduce_to(torch.int32)
    assert torch.int32 not in allowed
    assert repr(allowed) == "AllowedDtypeSet({torch.int8})"
    allowed.clear()
    assert torch.int32 in allowed
    assert repr(allowed) == "AllowedDtypeSet({torch.int32, torch.int8})"


def constraint() -> FunctionDtypeConstraint:
    return FunctionDtypeConstraint(
        essential_tensor_io_names={"self", "other", "__ret_0"},
        optional_tensor_io_names={"bias"},
        type_alias={"T0": {torch.float32, torch.float64}, "T1": [torch.int8], "T2": [torch.bool]},
        type_constraint=[
            {"self": "T0", "other": "T0", "bias": "T0", "__ret_0": "T0"},
            {"self": "T1", "other": "T1", "bias": "T2", "__ret_0": "T2"},
        ],
    )


def test_a_constraint_unifies_aliases() -> None:
    validate = constraint().validate
    f32, f64, i8 = torch.float32, torch.float64, torch.int8
    assert validate({"self": f32, "other": f32, "__ret_0": f32})
    assert validate({"self": f32, "other": f32, "bias": f32, "__ret_0": f32})
    assert validate({"self": i8, "other": i8, "bias": torch.bool, "__ret_0": torch.bool})
    assert not validate({"self": f32, "other": f64, "__ret_0": f32})
    assert not validate({"self": f32, "other": f32, "bias": f64, "__ret_0": f32})
    assert not validate({"self": i8, "other": i8, "__ret_0": i8})
    assert validate({"self": i8, "other": None, "__ret_0": None, "bias": None}), "None says nothing"
    assert not validate({"self": f32, "other": f32}), "an essential tensor is missing"
    assert not validate({"self": f32, "other": f32, "__ret_0": f32, "unknown": f32})


def test_a_constraint_tells_the_dtypes_of_a_tensor() -> None:
    found = constraint()
    assert found["self"] == {torch.float32, torch.float64, torch.int8}
    assert found["bias"] == {torch.float32, torch.float64, torch.bool}
    assert list(found) == ["__ret_0", "bias", "other", "self"]
    with pytest.raises(KeyError, match="unknown"):
        found["unknown"]


@pytest.mark.parametrize(
    "row", [{"self": "T0"}, {"self": "T0", "other": "T9"}, {"self": "T0", "other": "T0", "x": "T0"}]
)
def test_a_row_names_every_tensor(row: dict[str, str]) -> None:
    with pytest.raises(RuntimeError, match="must give every tensor of the operator an alias") as caught:
        FunctionDtypeConstraint({"self", "other"}, set(), {"T0": REGULAR_DTYPES}, [row])
    assert isinstance(caught.value, ConstraintError)
    assert caught.value.found == "tensors ['other', 'self'], aliases ['T0']"


def test_checking_leaves_nothing_behind() -> None:
    """Threads that check different calls of one operator at a time do not see each other's dtypes."""
    found = constraint_of(aten.mul.Tensor)
    wrong: list[torch.dtype] = []

    def check(dtype: torch.dtype) -> None:
        given = {"self": dtype, "other": dtype, "__ret_0": dtype}
        wrong.extend(dtype for _ in range(300) if not found.validate(given))

    threads = [threading.Thread(target=check, args=(dtype,)) for dtype in (torch.int8, torch.float32, torch.bool)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_the_table_covers_the_core_operators() -> None:
    complex_only = {"aten::_fft_c2r", "aten::_fft_r2c"}
    assert {full_name(op) for op in core_operators()} - set(_edge_dialect_info) == complex_only
    assert len(_edge_dialect_info) == len(list(_edge_dialect_info)) > 180
    entry = _edge_dialect_info["aten::_softmax"]
    assert entry["type_constraint"] == [{"self": "T0", "__ret_0": "T0"}]
    assert entry["type_alias"] == {"T0": ["float16", "bfloat16", "float32", "float64"]}
    assert "aten::no_such_operator" not in _edge_dialect_info
    for op in core_operators():
        names = tensor_names(op._schema)
        assert set(constraint_of(op)) == {*names[0], *names[1]}


def test_the_table_is_small_and_canonical() -> None:
    text = files("hatch_lower.exir.dialects.edge").joinpath("dtypes.json").read_text()
    assert len(text) < 32_000
    table = json.loads(text)
    assert text == json.dumps(table, indent=0, sort_keys=True) + "\n"
    assert torch.__version__.startswith(".".join(table["torch"].split(".")[:2]))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("op", SAMPLE, ids=full_name)
def test_the_table_is_what_torch_accepts(op: torch._ops.OpOverload) -> None:
    """Every combination of dtypes: the table allows it if torch accepts it, and no other."""
    names, accepted = accepted_dtypes(op)
    found = constraint_of(op)
    optional = found.optional_tensor_io_names
    texts = [str(dtype).removeprefix("torch.") for dtype in REGULAR_DTYPES]
    given = {combination for combination in accepted if None not in combination}
    for combination in product(texts, repeat=len(names)) if len(names) <= 4 else sorted(given):
        dtypes = {name: getattr(torch, text) for name, text in zip(names, combination, strict=True)}
        assert found.validate(dtypes) == (combination in given), combination
    for combination in accepted - given:
        assert found.validate(
            {
                name: getattr(torch, text)
                for name, text in zip(names, combination, strict=True)
                if not (text is None and name in optional)
            }
        )


@pytest.mark.filterwarnings("ignore")
def test_the_table_made_anew_is_the_table() -> None:
    stored = json.loads(files("hatch_lower.exir.dialects.edge").joinpath("dtypes.json").read_text())
    fresh = table_of(SAMPLE)
    for name, entry in fresh["operators"].items():
        assert entry["tensors"] == stored["operators"][name]["tensors"]
        assert meaning(entry, fresh["aliases"]) == meaning(stored["operators"][name], stored["aliases"])


def meaning(entry: dict[str, list[str]], aliases: dict[str, list[str]]) -> list[list[tuple[str, tuple[str, ...]]]]:
    """Rows with the sets in the place of their names, and the number of each alias in its row."""
    rows = []
    for row in entry["rows"]:
        order = list(dict.fromkeys(row.split()))
        rows.append([(str(order.index(each)), tuple(aliases[each.rstrip("'")])) for each in row.split()])
    return rows


def test_the_generator_writes_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate_dtypes, "core_operators", lambda: [aten.abs.default, aten._fft_r2c.default])
    generate_dtypes.write_table(tmp_path / "table.json")
    table = json.loads((tmp_path / "table.json").read_text())
    assert list(table["operators"]) == ["aten::abs"], "an operator without regular dtypes has no entry"


def test_rows_describe_a_set_and_nothing_else() -> None:
    """For random sets of combinations: the rows stand for exactly the members."""
    generator = random.Random(0)
    names = ("bool", "int8", "float32", None)
    for _ in range(60):
        everything = list(product(names, repeat=3))
        accepted = set(generator.sample(everything, generator.randrange(1, len(everything))))
        rows = rows_of(accepted)
        assert {each for row in rows for each in expand(*row)} == accepted
        assert rows == rows_of(sorted(accepted, key=str))
    diagonal = {(each, each) for each in ("bool", "int8", "float32")}
    assert len(rows_of(diagonal)) == 1
    assert len(rows_of(set(product(("bool", "int8"), repeat=3)))) == 1


def test_every_core_operator_has_a_call_to_try() -> None:
    for op in core_operators():
        calls = list(call_variants(op))
        assert calls
        slots = {name for call in calls for name, value in call.items() if isinstance(value, Slot)}
        arguments = {argument.name for argument in op._schema.arguments}
        tensors = {*tensor_names(op._schema)[0], *tensor_names(op._schema)[1]} & arguments
        assert slots == tensors, op
