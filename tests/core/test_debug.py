"""Debug maps and the builder that backends use for them."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from hatch_lower.errors import DebugError, ProgramError
from hatch_lower.exir.backend.utils import DelegateMappingBuilder
from hatch_lower.format.debug_map import (
    DebugMap,
    DelegateDebug,
    MethodDebug,
    Origin,
    Undelegated,
    read_debug,
    write_debug,
)


def node(handle: int | None) -> Any:
    return SimpleNamespace(meta={} if handle is None else {"debug_handle": handle})


def test_generated_identifiers_count_from_zero() -> None:
    builder = DelegateMappingBuilder(generated_identifiers=True)
    assert builder.insert_delegate_mapping_entry(nodes=node(3)) == 0
    assert builder.insert_delegate_mapping_entry(nodes=[node(5), node(2), node(5), node(None)]) == 1
    assert builder.insert_delegate_mapping_entry(handles=7) == 2
    assert builder.insert_delegate_mapping_entry(handles=(9, None, 8)) == 3
    assert builder.get_delegate_mapping() == {0: (3,), 1: (2, 5), 2: (7,), 3: (8, 9)}


def test_given_identifiers_are_kept() -> None:
    builder = DelegateMappingBuilder()
    assert builder.insert_delegate_mapping_entry(handles=[2, 1], identifier="conv/relu") == "conv/relu"
    assert builder.insert_delegate_mapping_entry(handles=0, identifier=4) == 4
    assert builder.get_delegate_mapping() == {"conv/relu": (1, 2), 4: (0,)}


def test_a_failed_entry_does_not_use_up_an_identifier() -> None:
    builder = DelegateMappingBuilder(generated_identifiers=True)
    with pytest.raises(DebugError):
        builder.insert_delegate_mapping_entry(handles=[None])
    assert builder.insert_delegate_mapping_entry(handles=1) == 0


def test_the_returned_mapping_is_a_copy() -> None:
    builder = DelegateMappingBuilder(generated_identifiers=True)
    builder.get_delegate_mapping()[5] = (1,)
    assert builder.get_delegate_mapping() == {}


@pytest.mark.parametrize(
    ("generated", "arguments", "message"),
    [
        (
            True,
            {},
            "a debug map entry needs either nodes or debug handles\n"
            "  where: delegate instruction 0\n  found: neither\n  to do: pass exactly one of `nodes` and `handles`",
        ),
        (
            False,
            {"nodes": node(1), "handles": 1, "identifier": "a"},
            "a debug map entry needs either nodes or debug handles\n"
            "  where: delegate instruction 'a'\n  found: both\n  to do: pass exactly one of `nodes` and `handles`",
        ),
        (
            True,
            {"nodes": [node(None)]},
            "a debug map entry has no debug handle\n  where: delegate instruction 0\n"
            "  found: only nodes or handles without a number\n"
            "  to do: pass nodes of the edge program, whose `meta` has a `debug_handle`",
        ),
        (
            True,
            {"handles": 1, "identifier": 2},
            "a builder that generates identifiers was given an identifier\n  found: 2\n"
            "  to do: leave `identifier` out, or make the builder with `generated_identifiers=False`",
        ),
        (
            False,
            {"handles": 1},
            "a debug map entry has no identifier\n"
            "  to do: pass `identifier`, or make the builder with `generated_identifiers=True`",
        ),
        (
            False,
            {"handles": 1, "identifier": "taken"},
            "a delegate instruction has two debug map entries\n  found: 'taken'\n"
            "  to do: pass all nodes of one instruction in one call",
        ),
    ],
)
def test_contradictory_entries(generated: bool, arguments: dict[str, Any], message: str) -> None:
    builder = DelegateMappingBuilder(generated_identifiers=generated)
    if not generated:
        builder.insert_delegate_mapping_entry(handles=1, identifier="taken")
    with pytest.raises(DebugError) as caught:
        builder.insert_delegate_mapping_entry(**arguments)
    assert str(caught.value) == message


def example() -> DebugMap:
    return DebugMap(
        {
            "forward": MethodDebug(
                {1: Origin("aten.conv2d.default", "net.conv1", "digits/model.py:31"), 2: Origin("aten.relu.default")},
                {"0": (1,), "1": (1, 2), "4.true.0": (2,)},
                {"1": DelegateDebug("aoti", {"0": (2,), "kernel": (1, 2)}), "4.true.0": DelegateDebug("null")},
                (Undelegated("relu", "aten.relu.default", 2, "a reason"),),
            )
        }
    )


def test_reading_gives_what_was_written() -> None:
    assert read_debug(write_debug(example()), "default.debug.json") == example()
    assert write_debug(read_debug(write_debug(example()), "default.debug.json")) == write_debug(example())


def test_origins_of_instructions_and_delegate_instructions() -> None:
    method = example().methods["forward"]
    assert method.origins("4.true.0") == (Origin("aten.relu.default"),)
    assert method.origins("1", 0) == (Origin("aten.relu.default"),)
    assert [origin.op for origin in method.origins("1", "kernel")] == ["aten.conv2d.default", "aten.relu.default"]
    with pytest.raises(DebugError, match="the instruction is missing in the debug map\n  found: instruction '9'"):
        method.origins("9")
    with pytest.raises(
        DebugError, match="the instruction is missing in the debug map\n  found: delegate instruction 7 of '1'"
    ):
        method.origins("1", 7)
    with pytest.raises(DebugError, match="the instruction is missing in the debug map"):
        method.origins("4.true.0", 0)


@pytest.mark.parametrize(
    "change",
    [
        lambda value: value.pop("methods"),
        lambda value: value.update(schema="1"),
        lambda value: value.update(schema=0),
        lambda value: value["methods"]["forward"].pop("handles"),
        lambda value: value["methods"]["forward"]["handles"].update({"x": {"op": "a", "module": "", "source": ""}}),
        lambda value: value["methods"]["forward"]["handles"]["1"].update(op=3),
        lambda value: value["methods"]["forward"]["instructions"].update({"0": [True]}),
        lambda value: value["methods"]["forward"]["instructions"].update({"0": 1}),
        lambda value: value["methods"]["forward"]["delegates"]["1"].update(map=[]),
        lambda value: value["methods"]["forward"].update(undelegated={}),
        lambda value: value.update(methods=[]),
    ],
)
def test_damaged_files_are_refused(change: Any) -> None:
    value = json.loads(write_debug(example()))
    change(value)
    with pytest.raises(ProgramError, match="a packaged program file is damaged\n  where: default"):
        read_debug(json.dumps(value).encode(), "default.debug.json")


@pytest.mark.parametrize("data", [b"", b"[]", b"\xff", b"{", b"3"])
def test_other_files_are_refused(data: bytes) -> None:
    with pytest.raises(ProgramError, match="a packaged program file is damaged"):
        read_debug(data, "default.debug.json")


def test_a_newer_schema_is_refused() -> None:
    with pytest.raises(ProgramError) as caught:
        read_debug(b'{"schema":4}', "digits/default.debug.json")
    assert str(caught.value) == (
        "a packaged program needs a newer hatch-lower\n  where: digits/default.debug.json\n"
        "  found: schema 4; this hatch-lower reads schema 3\n  to do: upgrade hatch-lower"
    )
