"""Answers of workers: what was not written by whom it should be, as it is, is refused, whatever it is."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from support.generated import examples

from hatch_lower.driver.spread.protocol import (
    CONTENTS,
    HEAD,
    MAC,
    UnitAnswer,
    UnitRequest,
    WrongAnswerError,
    code,
    mark,
    read_unit_answer,
    read_unit_request,
    write_unit_answer,
    write_unit_request,
)

KEY, SECRET = "ab" * 32, "cd" * 32
ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]))
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)
NUMBERS = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS,
    lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner),
    max_leaves=8,
)
REQUEST = UnitRequest("a/b", KEY, SECRET, {}, {}, {}, KEY)


@settings(max_examples=examples(1))
@given(
    name=TEXTS,
    body=st.dictionaries(TEXTS, JSON),
    environment=st.dictionaries(TEXTS, st.text(st.characters(exclude_categories=["Cs"]))),
)
def test_a_request_survives_the_wire(name: str, body: dict[str, object], environment: dict[str, str]) -> None:
    request = UnitRequest(name, KEY, SECRET, {}, environment, body, KEY)
    assert read_unit_request(write_unit_request(request)) == request


@settings(max_examples=examples(1))
@given(
    log=st.lists(ANY_TEXT).map(tuple),
    position=st.integers(0),
    bit=st.integers(0, 7),
)
def test_an_answer_is_read_as_written_and_refused_with_any_bit_flipped(
    log: tuple[str, ...], position: int, bit: int
) -> None:
    answer = UnitAnswer("a/b", KEY, "host:1", "made", log=log)
    data = write_unit_answer(answer, (), SECRET)
    assert read_unit_answer(data, REQUEST)[0] == answer
    wrong = bytearray(data)
    wrong[position % len(data)] ^= 1 << bit
    assert is_refused(bytes(wrong))


@settings(max_examples=examples(1))
@given(contents=st.binary(max_size=200), true_head=st.booleans())
def test_bytes_of_anybody_are_refused_and_raise_nothing_else(contents: bytes, true_head: bool) -> None:
    assert is_refused(contents)
    # even of a worker that knows the secret
    signed = HEAD + mark(SECRET) + code(SECRET, contents) + contents
    assert len(signed) - len(contents) == CONTENTS
    assert MAC < CONTENTS
    assert is_refused(signed if true_head else signed[1:])


def is_refused(data: bytes) -> bool:
    try:
        read_unit_answer(data, REQUEST)
    except WrongAnswerError as error:
        return bool(str(error))
    return False
