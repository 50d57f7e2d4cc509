from __future__ import annotations

import errno
import json

import pytest

from hatch_lower.errors import (
    ConfigError,
    FetchError,
    InputError,
    LowerError,
    UnavailableError,
    error_from_json,
    nearest,
    refused_error,
)


def test_a_message_says_what_where_found_and_what_to_do() -> None:
    error = ConfigError("The table is wrong", where="pyproject.toml", found="first\nsecond", hint="correct it")
    assert str(error) == (
        "The table is wrong\n  where: pyproject.toml\n  found: first\n    second\n  to do: correct it"
    )
    assert str(LowerError("Only what")) == "Only what"


@pytest.mark.parametrize("kind", [*LowerError.__subclasses__(), UnavailableError])
def test_an_error_survives_the_way_to_another_process(kind: type[LowerError]) -> None:
    error = kind("What", where="where", found="found", hint="hint")
    again = error_from_json(json.loads(json.dumps(error.to_json())))
    assert type(again) is kind
    assert str(again) == str(error)


def test_an_error_of_an_unknown_class_is_a_plain_one() -> None:
    again = error_from_json({"error": "FutureError", "what": "What", "where": "", "found": "", "hint": ""})
    assert type(again) is LowerError


def test_a_wrong_argument_is_also_a_type_error() -> None:
    assert issubclass(InputError, TypeError)


def test_what_the_system_refuses_is_said_and_other_exceptions_are_not_explained() -> None:
    refused = refused_error(OSError(errno.ENOSPC, "No space left on device"), "/tmp")
    assert str(refused) == (
        "the system refused a file\n"
        "  where: /tmp\n"
        "  found: No space left on device\n"
        "  to do: make room there, or give this user the permission; `TMPDIR` names the folder of a build's own files"
    )
    denied = refused_error(PermissionError(errno.EACCES, "Permission denied", "/x/y"), "/tmp")
    assert denied is not None
    assert denied.where == "/x/y"
    assert refused_error(FileNotFoundError(errno.ENOENT, "No such file", "/x"), "/tmp") is None
    assert refused_error(ValueError("x"), "/tmp") is None


def test_nearest_suggests_or_lists() -> None:
    assert nearest("atoi", ["null", "aoti"]) == "did you mean `aoti`? known: `aoti`, `null`"
    assert nearest("zzz", ["null", "aoti"]) == "known: `aoti`, `null`"
    assert nearest("zzz", []) == "known: none"


def test_a_terminal_obeys_nothing_in_an_error() -> None:
    evil = "\x1b]0;pwned\x07\x9b31m\u202e\r\udc80"
    error = FetchError(f"a{evil}", where=evil, found=f"first\n\tsecond {evil}", hint=evil)
    assert str(error).replace("\n", "").isprintable()
    assert "\\u001b]0;pwned\\u0007\\u009b31m\\u202e\\r\\udc80" in str(error)
    assert "  found: first\n        second " in str(error)
    assert str(error_from_json(error.to_json())) == str(error)
    assert error.where == evil
