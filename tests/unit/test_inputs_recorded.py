from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hatch_lower.build.inputs.record import LISTS, RecordedInputs
from hatch_lower.canonical import canonical_json

TEXTS = st.text(st.characters(codec="utf-8"), max_size=8)
FIELDS = {
    field.name: st.lists(TEXTS, unique=True).map(lambda each: tuple(sorted(each)))
    if field.name in LISTS
    else st.dictionaries(TEXTS, TEXTS)
    for field in fields(RecordedInputs)
}
NOTHING: dict[str, Any] = {name: [] if name in LISTS else {} for name in FIELDS}


@given(st.builds(RecordedInputs, **FIELDS))  # type: ignore[arg-type]
def test_json_holds_every_field(inputs: RecordedInputs) -> None:
    assert RecordedInputs.from_json(json.loads(canonical_json(inputs.to_json()))) == inputs


@given(st.builds(RecordedInputs, **FIELDS))  # type: ignore[arg-type]
def test_order_is_not_in_the_json(inputs: RecordedInputs) -> None:
    turned = {
        name: value[::-1] if name in LISTS else dict(reversed(value.items()))
        for name in FIELDS
        for value in [getattr(inputs, name)]
    }
    assert json.dumps(RecordedInputs(**turned).to_json()) == json.dumps(inputs.to_json())


@pytest.mark.parametrize("name", FIELDS)
def test_a_field_that_is_missing_or_of_another_kind_is_refused(name: str) -> None:
    RecordedInputs.from_json(NOTHING)
    with pytest.raises(ValueError, match="recorded inputs are an object of files, absent"):
        RecordedInputs.from_json({each: value for each, value in NOTHING.items() if each != name})
    other = "a list" if name in LISTS else "an object"
    for wrong in ({} if name in LISTS else [], None, "x"):
        with pytest.raises(ValueError, match=f"recorded inputs have {other} as `{name}`"):
            RecordedInputs.from_json({**NOTHING, name: wrong})
    for wrong in ([1], ["x", None]) if name in LISTS else ({"x": 1}, {"x": ["y"]}):
        with pytest.raises(ValueError, match=f"recorded inputs hold only texts as `{name}`"):
            RecordedInputs.from_json({**NOTHING, name: wrong})


@pytest.mark.parametrize("value", [None, [], "x", {**NOTHING, "more": {}}])
def test_other_values_are_refused(value: object) -> None:
    with pytest.raises(ValueError, match="recorded inputs are an object of"):
        RecordedInputs.from_json(value)
