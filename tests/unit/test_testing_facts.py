from __future__ import annotations

import dataclasses

import pytest

from hatch_lower.backends.testing import backend_tests, check_backend
from hatch_lower.backends.testing.bench import Subject
from hatch_lower.backends.testing.case import Tolerance
from hatch_lower.backends.testing.facts import Facts, subject_of

pytestmark = pytest.mark.torch


def test_what_is_not_said_is_as_a_subject_has_it() -> None:
    assert subject_of("demo", None, {}) == Subject("demo")
    assert subject_of("demo", None, {"delegate": None, "variations": None, "tolerance": None}) == Subject("demo")


def test_what_is_said_is_taken_over() -> None:
    facts: Facts = {
        "variations": {"fuse": [False]},
        "computes": False,
        "packed_copies": 2,
        "tolerance": Tolerance(1, 1),
    }
    found = subject_of("demo", {"fuse": True}, facts)
    assert found == Subject("demo", {"fuse": True}, **facts)


def test_there_is_a_fact_for_each_field_of_a_subject() -> None:
    fields = {field.name for field in dataclasses.fields(Subject)}
    assert fields - {"backend_id", "options"} == set(Facts.__annotations__)


def test_a_fact_that_there_is_not_is_refused() -> None:
    with pytest.raises(TypeError, match="packed_copy"):
        check_backend("reference", packed_copy=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="packed_copy"):
        backend_tests("reference", packed_copy=1)  # type: ignore[call-arg]
