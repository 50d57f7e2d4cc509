from __future__ import annotations

import json

import pytest

from hatch_lower import errors
from hatch_lower.errors import ConfigError, InputError, LowerError, error_from_json, nearest


def test_a_message_says_what_where_found_and_what_to_do() -> None:
    error = ConfigError("The table is wrong", where="pyproject.toml", found="first\nsecond", hint="correct it")
    assert str(error) == (
        "The table is wrong\n  where: pyproject.toml\n  found: first\n    second\n  to do: correct it"
    )
    assert str(LowerError("Only what")) == "Only what"


@pytest.mark.parametrize("kind", LowerError.__subclasses__())
def test_an_error_survives_the_way_to_another_process(kind: type[LowerError]) -> None:
    error = kind("What", where="where", found="found", hint="hint")
    again = error_from_json(json.loads(json.dumps(error.to_json())))
    assert type(again) is kind
    assert str(again) == str(error)


def test_an_error_of_an_unknown_class_is_a_plain_one() -> None:
    again = error_from_json({"error": "FutureError", "what": "What", "where": "", "found": "", "hint": ""})
    assert type(again) is LowerError


def test_every_error_is_public_and_has_its_stage() -> None:
    kinds = LowerError.__subclasses__()
    assert {kind.__name__ for kind in kinds} | {"LowerError", "error_from_json", "nearest"} == set(errors.__all__)
    stages = [kind.stage for kind in kinds]
    assert len(set(stages)) == len(stages)


def test_a_wrong_argument_is_also_a_type_error() -> None:
    assert issubclass(InputError, TypeError)


def test_nearest_suggests_or_lists() -> None:
    assert nearest("atoi", ["null", "aoti"]) == "did you mean `aoti`? known: `aoti`, `null`"
    assert nearest("zzz", ["null", "aoti"]) == "known: `aoti`, `null`"
    assert nearest("zzz", []) == "known: none"
