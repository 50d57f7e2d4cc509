from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hatch_lower.canonical import canonical_json
from hatch_lower.driver.inputs.record import RecordedInputs
from hatch_lower.errors import ProgramError
from hatch_lower.format.codec import decode, encode

LISTS = frozenset({"absent", "unknown"})
LATER = frozenset({"accelerators", "deciding"})  # fields that older records lack
TEXTS = st.text(st.characters(codec="utf-8"), max_size=8)
FIELDS = {
    field.name: st.lists(TEXTS, unique=True).map(lambda each: tuple(sorted(each)))
    if field.name in LISTS
    else st.none() | TEXTS
    if field.name == "accelerators"
    else st.dictionaries(TEXTS, TEXTS)
    for field in fields(RecordedInputs)
}
NOTHING: dict[str, Any] = {name: [] if name in LISTS else None if name == "accelerators" else {} for name in FIELDS}


@given(st.builds(RecordedInputs, **FIELDS))  # type: ignore[arg-type]
def test_json_holds_every_field(inputs: RecordedInputs) -> None:
    assert decode(RecordedInputs, json.loads(canonical_json(encode(inputs))), "") == inputs


@pytest.mark.parametrize("name", FIELDS)
def test_a_field_that_is_missing_or_of_another_kind_is_refused(name: str) -> None:
    decode(RecordedInputs, NOTHING, "")
    if name not in LATER:
        with pytest.raises(ProgramError, match=f"the key `{name}` is missing"):
            decode(RecordedInputs, {each: value for each, value in NOTHING.items() if each != name}, "")
    kinds = ({}, None, "x", [1], ["x", None]) if name in LISTS else ([], None, "x", {"x": 1}, {"x": ["y"]})
    kinds = ({}, [], 1, False) if name == "accelerators" else kinds
    for wrong in kinds:
        with pytest.raises(ProgramError, match=name):
            decode(RecordedInputs, {**NOTHING, name: wrong}, "")


@pytest.mark.parametrize("value", [None, [], "x", {**NOTHING, "more": {}}])
def test_other_values_are_refused(value: object) -> None:
    with pytest.raises(ProgramError):
        decode(RecordedInputs, value, "")
