"""Two wheels are compared: each kind of difference is named with its place and its likely reason."""

from __future__ import annotations

import json
import struct
import tracemalloc
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some
from support.wheels import METADATA, Contents, lowered, make_wheel, sha256, tensors

from hatch_lower.driver.diff.difference import Difference
from hatch_lower.driver.diff.wheels import compare_wheels
from hatch_lower.errors import PackageError
from hatch_lower.pipeline.emit.constants import data_map_head

DOCUMENT = "tiny/_lowered/net/default.debug.json"
NAME = "tiny-1.0-py3-none-any.whl"


def compare(
    folder: Path, first: Contents, second: Contents, places: Mapping[str, str] | None = None
) -> list[Difference]:
    """Return in what two wheels with these files differ."""
    one = make_wheel(folder / "one" / NAME, first)
    other = make_wheel(folder / "other" / NAME, second)
    return list(compare_wheels(one, other, places))


def content(data: bytes) -> str:
    return f"{len(data)} bytes, sha256 {sha256(data)[:16]}"


def floats(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


def test_equal_wheels_have_no_difference(tmp_path: Path) -> None:
    files = {"tiny/__init__.py": "x = 1\n", **lowered([("so", b"code")], {"w": floats(1, 2)})}
    assert compare(tmp_path, files, files) == []


@pytest.mark.parametrize(
    ("first", "second", "place", "reason"),
    [
        ({"torch": "2.13.0"}, {"torch": "2.13.1"}, "/torch", "other versions"),
        ({"tools": {"g++": "12"}}, {"tools": {"g++": "13"}}, "/tools/g++", "other versions"),
        ({"tools": {}}, {"tools": {"g++": "13"}}, "/tools/g++", "other versions"),
        ({"target": {"isa": "x86-64-v3"}}, {"target": {"isa": "x86-64-v4"}}, "/target/isa", "`isa`"),
        ({"target": {"machine": "x86_64"}}, {"target": {"machine": "aarch64"}}, "/target/machine", "kind of machine"),
        (
            {"handles": {"3": {"source": "a.py:3"}}},
            {"handles": {"3": {"source": "a.py:4"}}},
            "/handles/3/source",
            "lines",
        ),
        ({"a": "in /nowhere/ada/x.py"}, {"a": "in /srv/build/y/x.py"}, "/a", "path of a folder"),
        ({"a": "/tmp/b/x"}, {"a": "x"}, "/a", "the rebuild's TMPDIR"),
        ({"a": "2026-01-02T03:04:05Z"}, {"a": "2026-01-02T03:04:06Z"}, "/a", "time stamp"),
        ({"a": "built Jan  2 2026"}, {"a": "built Feb 12 2026"}, "/a", "time stamp"),
        ({"a": 1767000000}, {"a": 1767000009}, "/a", "time stamp"),
        ({"a": 1767000000.25}, {"a": 1767990009.5}, "/a", "time stamp"),
        (
            {"a": f"urn:uuid:{'1' * 8}-1111-1111-1111-{'1' * 12}"},
            {"a": f"urn:uuid:{'2' * 8}-1111-1111-1111-{'3' * 12}"},
            "/a",
            "random",
        ),
        ({"a": "<object at 0x7f001122>"}, {"a": "<object at 0x7f001133>"}, "/a", "address in memory"),
        ({"a": "0" * 64}, {"a": "1" * 64}, "/a", "digest of other contents"),
        ({"a": ["x", "y", "z"]}, {"a": ["y", "x", "z"]}, "/a", "another order"),
        (
            {"a": [{"op": "x", "out": 1}, {"op": "y", "out": 2}]},
            {"a": [{"op": "y", "out": 1}, {"op": "x", "out": 2}]},
            "/a/0/op",
            "another order",
        ),
        ({"a": 0.1}, {"a": 0.1000001}, "/a", "low bits"),
        ({"a": 1}, {"a": True}, "/a", ""),
        ({"a": 1, "b/~": None}, {"a": 1}, "/b~1~0", ""),
        ({"a": [1, 2]}, {"a": [1, 2, 3]}, "/a/2", ""),
        ({"a": [1, 2]}, {"a": [9, 1, 2]}, "/a/0", ""),
    ],
)
def test_a_field_of_a_document_is_named(first: Any, second: Any, place: str, reason: str, tmp_path: Path) -> None:
    places = {"/tmp/b": "the rebuild's TMPDIR"}
    found = compare(tmp_path, {DOCUMENT: json.dumps(first)}, {DOCUMENT: json.dumps(second)}, places)
    assert (found[0].member, found[0].place) == (DOCUMENT, place)
    assert reason in found[0].reason
    assert bool(reason) == bool(found[0].reason)


def test_both_values_of_a_field_are_shown_and_long_ones_shortened(tmp_path: Path) -> None:
    found = compare(tmp_path, {DOCUMENT: json.dumps({"a": "x" * 500})}, {DOCUMENT: "{}"})
    assert found[0].first.startswith('"xxx')
    assert " … " in found[0].first
    assert len(found[0].first) < 100
    assert found[0].second == "(not there)"


def test_a_document_with_equal_values_in_another_form_is_named(tmp_path: Path) -> None:
    (found,) = compare(tmp_path, {DOCUMENT: '{"a":1}'}, {DOCUMENT: '{"a": 1}'})
    assert "in another form" in found.reason


def test_a_changed_delegate_is_one_difference_whatever_names_it(tmp_path: Path) -> None:
    """Its digest is its name, and stands in plan, manifest and RECORD."""
    found = compare(tmp_path, lowered([("bin", b"\0one")]), lowered([("bin", b"\0other")]))
    assert [each.member for each in found] == [f"tiny/_lowered/net/delegates/{sha256(bytes(1) + b'one')}.bin"]


def test_delegates_that_change_places_in_the_order_of_their_digests_are_told_apart(tmp_path: Path) -> None:
    pairs = [(b"\0first %d" % at, b"\0second %d" % at) for at in range(4)]
    before = [("bin", one) for one, _ in pairs]
    after = [("bin", other) for _, other in pairs]
    ranks = [sorted(range(4), key=lambda at, listed=listed: sha256(listed[at][1])) for listed in (before, after)]  # type: ignore[misc]
    assert ranks[0] != ranks[1]
    found = compare(tmp_path, lowered(before), lowered(after))
    assert {(each.member, each.first, each.second) for each in found} == {
        (f"tiny/_lowered/net/delegates/{sha256(one)}.bin", content(one), content(other)) for one, other in pairs
    }


def test_tensors_are_called_by_the_constants_names(tmp_path: Path) -> None:
    found = compare(
        tmp_path,
        lowered(constants={"net.weight": floats(1, 2, 3, 4), "net.bias": floats(5)}),
        lowered(constants={"net.weight": floats(-7, 9, 0.5, 11), "net.bias": floats(5)}),
    )
    assert [(each.member, each.place) for each in found] == [
        ("tiny/_lowered/net/constants.safetensors", "tensor net.weight")
    ]
    assert "seed it there" in found[0].reason
    assert (found[0].first, found[0].second) == ("1, 2, 3, …", "-7, 9, 0.5, …")
    assert found[0].lines == ("4 of 4 numbers differ, by up to 8, or 1.1 of their size",)


def test_a_constants_file_with_names_for_delegates_is_compared_by_tensors(tmp_path: Path) -> None:
    name = "tiny/_lowered/net/constants.ptd"
    files = [tensors({"w": ("F32", [4], floats(1, 2, 3, last))}) for last in (4, 5)]
    (found,) = compare(tmp_path, *({name: data_map_head([], len(data), 64) + data} for data in files))
    assert (found.member, found.place, found.first, found.second) == (name, "tensor w", "4", "5")


def test_another_tool_is_told_before_what_follows_from_it(tmp_path: Path) -> None:
    found = compare(tmp_path, lowered([("bin", b"\0one")], tools="1"), lowered([("bin", b"\0other")], tools="2"))
    assert ("/torch", '"1"', '"2"') in {(each.place, each.first, each.second) for each in found}
    assert len(found) == 2


def tensor_file(dtype: str, contents: bytes, shape: Sequence[int] = (2,), name: str = "w") -> bytes:
    return tensors({name: (dtype, shape, contents)})


@pytest.mark.parametrize(
    ("first", "second", "place", "sides", "reason"),
    [
        (
            tensor_file("F32", floats(1, 2)),
            tensor_file("F32", floats(1, 2.0000002)),
            "tensor w",
            ("2", "2.00000024"),
            "low bits",
        ),
        (
            tensor_file("BF16", b"\x80\x3f\x80\x3f"),
            tensor_file("BF16", b"\x80\x3f\x00\x40"),
            "tensor w",
            ("1", "2"),
            "",
        ),
        (
            tensor_file("I64", struct.pack("<2q", 1, 2)),
            tensor_file("I64", struct.pack("<2q", 1, 3)),
            "tensor w",
            ("2", "3"),
            "",
        ),
        (tensor_file("BOOL", b"\0\1"), tensor_file("BOOL", b"\1\1"), "tensor w", ("0", "1"), ""),
        (tensor_file("F8_E4M3", b"\0\1"), tensor_file("F8_E4M3", b"\1\1"), "tensor w", ("0", "0.001953125"), ""),
        (tensor_file("F4", b"\0\1"), tensor_file("F4", b"\1\1"), "tensor w", ("00 01", "01 01"), ""),
        (
            tensor_file("F32", floats(1, 2)),
            tensor_file("F32", floats(1, 2), (1, 2)),
            "tensor w",
            ("F32 [2]", "F32 [1, 2]"),
            "another model",
        ),
        (
            tensor_file("F32", floats(1, 2)),
            tensor_file("F32", floats(1, 2), name="v"),
            "tensor v",
            ("(not there)", "F32 [2]"),
            "",
        ),
        (
            tensors({}, {"made": "2026-01-01"}),
            tensors({}, {"made": "2026-01-02"}),
            "/__metadata__/made",
            ('"2026-01-01"', '"2026-01-02"'),
            "time",
        ),
        (tensor_file("F32", floats(float("nan"), 2)), tensor_file("F32", floats(0, 2)), "tensor w", ("nan", "0"), ""),
    ],
)
def test_a_tensor_is_named(
    first: bytes, second: bytes, place: str, sides: tuple[str, str], reason: str, tmp_path: Path
) -> None:
    found = compare(tmp_path, {"tiny/w.safetensors": first}, {"tiny/w.safetensors": second})
    assert (found[0].member, found[0].place) == ("tiny/w.safetensors", place)
    assert (found[0].first, found[0].second) == sides
    assert reason in found[0].reason
    assert bool(reason) == bool(found[0].reason)


def test_tensors_that_are_listed_in_another_order_are_told(tmp_path: Path) -> None:
    one = tensors({"a": ("F32", [1], floats(1)), "b": ("F32", [1], floats(1))})
    header = json.loads(one[8:-8])
    text = json.dumps({"b": header["b"], "a": header["a"]}).encode()
    (found,) = compare(tmp_path, {"t/w": one}, {"t/w": one[:8] + text + one[-8:]})
    assert (found.place, found.first, found.second) == ("order of the header", "a, b", "b, a")


def test_outputs_to_check_with_follow_from_weights_that_differ(tmp_path: Path) -> None:
    check = "tiny/_lowered/net/check.safetensors"
    sides = [
        {**lowered(constants={"w": floats(value)}), check: tensor_file("F32", floats(value, 1))}
        for value in (1.0, -3.0)
    ]
    found = compare(tmp_path, *sides)
    assert [each.member for each in found] == ["tiny/_lowered/net/constants.safetensors", check]
    assert found[1].reason == "computed from weights or by code that differs too"
    alone = compare(tmp_path / "alone", {check: sides[0][check]}, {check: sides[1][check]})
    assert alone[0].reason == ""


def test_a_delegate_with_a_plan_and_its_weights_is_looked_into(tmp_path: Path) -> None:
    """As those of the backend `reference`: the weights are said of the file of constants."""

    def blob(operator: str, weights: bytes) -> bytes:
        text = json.dumps({"op": operator, "storages": [{"key": sha256(weights)}]}).encode()
        return struct.pack("<Q", len(text)) + text + tensors({sha256(weights): ("F32", [1], weights)})

    sides = [
        lowered([("reference", blob(*each))], {"w": each[1]}) for each in (("relu", floats(1)), ("tanh", floats(2)))
    ]
    found = compare(tmp_path, *sides)
    assert {(each.member.rpartition(".")[2], each.place) for each in found} == {
        ("reference", "/op"),
        ("safetensors", "tensor w"),
    }


@pytest.mark.parametrize(
    ("member", "first", "second", "reason"),
    [
        (
            f"{METADATA}METADATA",
            "Requires-Dist: a\nRequires-Dist: b\n",
            "Requires-Dist: b\nRequires-Dist: a\n",
            "another order",
        ),
        (
            f"{METADATA}WHEEL",
            "Generator: hatchling 1.27\n",
            "Generator: hatchling 1.30\n",
            "version of the build backend",
        ),
        ("tiny/model.py", "x = 1\n", "x = 2\n", "the sources are not those"),
        ("tiny/model.py", "a\nb\n", "a\r\nb\r\n", "ends of lines"),
        ("tiny/_version.py", "DATE = '2026-01-01'\n", "DATE = '2026-01-02'\n", "time stamp"),
        ("tiny/where.txt", "/nowhere/ada/tiny\n", "/srv/x/tiny\n", "path of a folder"),
        ("tiny/x.so", "\x7fELF\0one", "\x7fELF\0other", "the compiler made other code"),
        ("tiny/x.bin", "\0one", "\0other", ""),
    ],
)
def test_other_files_are_compared_by_size_and_digest(
    member: str, first: str, second: str, reason: str, tmp_path: Path
) -> None:
    (found,) = compare(tmp_path, {member: first}, {member: second})
    assert (found.member, found.first, found.second) == (member, content(first.encode()), content(second.encode()))
    assert reason in found.reason
    assert bool(reason) == bool(found.reason)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("tiny/notes.txt", "only one of the source trees"),
        ("tiny/_lowered/other/default.json", "build hook `lower`"),
        (f"{METADATA}licenses/LICENSE", "version of the build backend"),
    ],
)
def test_a_file_that_only_one_wheel_has(name: str, reason: str, tmp_path: Path) -> None:
    (found,) = compare(tmp_path, {"tiny/a.py": ""}, {"tiny/a.py": "", name: "x"})
    assert (found.member, found.first, found.second) == (name, "(not there)", "1 bytes")
    assert reason in found.reason
    (found,) = compare(tmp_path / "again", {"tiny/a.py": "", name: "x"}, {"tiny/a.py": ""})
    assert (found.member, found.first, found.second) == (name, "1 bytes", "(not there)")


FILES = {"tiny/a.py": "a = 1\n" * 40, "tiny/b.py": "b = 1\n"}


@pytest.mark.parametrize(
    ("changes", "place", "sides", "reason"),
    [
        ({"date": (2026, 1, 2, 3, 4, 6)}, "date", ("2020-02-02 00:00:00", "2026-01-02 03:04:06"), "the clock"),
        ({"mode": 0o100600}, "permissions", ("100644", "100600"), "umask"),
        ({"deflated": False}, "compression", ("deflated", "stored"), "other settings"),
        ({"level": 0}, "bytes outside of the members", None, "another tool"),
        ({"extra": b"UT\1\0x"}, "bytes outside of the members", None, "another tool"),
        ({"comment": b"hello"}, "bytes outside of the members", None, "another tool"),
        (
            {"order": ("tiny/b.py", "tiny/a.py", f"{METADATA}RECORD")},
            "bytes outside of the members",
            None,
            "another tool",
        ),
    ],
)
def test_what_an_archive_says_of_its_members(
    changes: dict[str, Any], place: str, sides: tuple[str, str] | None, reason: str, tmp_path: Path
) -> None:
    one = make_wheel(tmp_path / "one" / NAME, FILES)
    other = make_wheel(tmp_path / "other" / NAME, FILES, **changes)
    found = {each.place: each for each in compare_wheels(one, other)}
    assert {each.member for each in found.values()} == {""}
    assert reason in found[place].reason
    assert sides is None or (found[place].first, found[place].second) == sides


def test_one_date_of_all_members_is_said_once(tmp_path: Path) -> None:
    one = make_wheel(tmp_path / "one" / NAME, FILES)
    other = make_wheel(tmp_path / "other" / NAME, FILES, date=(2026, 1, 2, 3, 4, 6))
    (found,) = compare_wheels(one, other)
    assert found.lines == ("of 3 members, first tiny/a.py",)


def test_a_record_that_lists_something_else_than_the_wheel_has(tmp_path: Path) -> None:
    one = make_wheel(tmp_path / "one" / NAME, FILES)
    other = make_wheel(tmp_path / "other" / NAME, FILES, record="tiny/a.py,sha256=AAAA,6\n")
    (found,) = compare_wheels(one, other)
    assert found.member == f"{METADATA}RECORD"
    assert "changed after its build" in found.reason


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("tiny-1.1-py3-none-any.whl", "another version of the project"),
        ("tiny-1.0-py3-none-manylinux_2_35_x86_64.whl", "another platform"),
        ("renamed.whl", "renamed"),
    ],
)
def test_names_of_wheels(name: str, reason: str, tmp_path: Path) -> None:
    one, other = make_wheel(tmp_path / NAME, FILES), make_wheel(tmp_path / name, FILES)
    (found,) = compare_wheels(one, other)
    assert (found.place, found.first, found.second) == ("name", NAME, name)
    assert reason in found.reason


def test_metadata_of_another_version_is_compared_with_its_counterpart(tmp_path: Path) -> None:
    one = make_wheel(tmp_path / NAME, {f"{METADATA}METADATA": "Version: 1.0\n"})
    other = tmp_path / "tiny-1.1-py3-none-any.whl"
    with zipfile.ZipFile(one) as source, zipfile.ZipFile(other, "w") as target:
        for name in source.namelist():
            text = source.read(name).replace(b"1.0", b"1.1") if name.endswith("METADATA") else b""
            target.writestr(name.replace("-1.0.", "-1.1."), text)
    found = {each.member: each for each in compare_wheels(one, other)}
    assert found[f"{METADATA}METADATA"].second.startswith("13 bytes, sha256 ")


@pytest.mark.parametrize("damage", ["empty", "cut", "text", "flipped", "missing"])
def test_a_wheel_that_cannot_be_read(damage: str, tmp_path: Path) -> None:
    one = make_wheel(tmp_path / "one" / NAME, FILES)
    other = make_wheel(tmp_path / "other" / NAME, FILES)
    data = bytearray(one.read_bytes())
    if damage == "flipped":
        data[42] ^= 0xFF
    other.write_bytes({"empty": b"", "cut": data[:-40], "text": b"x" * 500}.get(damage, data))
    if damage == "missing":
        other.unlink()
    with pytest.raises(PackageError, match="the wheel cannot be read") as caught:
        compare_wheels(one, other)
    assert caught.value.where == str(other)
    assert "name a complete wheel" in caught.value.hint


SAMPLE = {
    "tiny/a.py": "a = 1\n",
    "tiny/x.so": b"\x7fELF\2\1\1" + bytes(57),
    **lowered([("so", b"\x7fELF\2\1\1\0more")], {"w": floats(1, 2, 3)}),
}


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=some.data())
def test_no_byte_that_differs_goes_unsaid(data: some.DataObject, tmp_path: Path) -> None:
    """Whatever is damaged: a difference, or one error."""
    one = make_wheel(tmp_path / "one" / NAME, SAMPLE)
    contents = bytearray(one.read_bytes())
    position = data.draw(some.integers(0, len(contents) - 1))
    contents[position] ^= data.draw(some.integers(1, 255))
    other = tmp_path / "other" / NAME
    other.parent.mkdir(exist_ok=True)
    other.write_bytes(contents)
    try:
        found = compare_wheels(one, other)
    except PackageError:
        return
    assert found


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=some.data())
def test_members_with_other_contents_are_always_named(data: some.DataObject, tmp_path: Path) -> None:
    """Documents and headers that are damaged are compared as bytes."""
    name = data.draw(some.sampled_from(sorted(SAMPLE)))
    text = SAMPLE[name]
    old = text.encode() if isinstance(text, str) else text
    position, new = data.draw(some.integers(0, len(old))), data.draw(some.binary(min_size=1, max_size=9))
    changed = old[:position] + new + old[position + len(new) :]
    found = compare(tmp_path, SAMPLE, {**SAMPLE, name: changed})
    assert bool(found) == (changed != old)
    assert all(each.member == name for each in found)


def test_documents_that_nest_too_deeply_are_compared_as_bytes(tmp_path: Path) -> None:
    one, other = "[" * 30_000 + "1" + "]" * 30_000, "[" * 30_000 + "2" + "]" * 30_000
    (found,) = compare(tmp_path, {DOCUMENT: one}, {DOCUMENT: other})
    assert (found.place, found.first) == ("", content(one.encode()))


@pytest.mark.parametrize("stored", [True, False])
def test_large_members_are_compared_in_pieces(stored: bool, tmp_path: Path) -> None:
    name = "tiny/_lowered/net/constants.safetensors" if stored else "tiny/w.safetensors"
    size = 16 << 20
    contents = tensors({"w": ("F32", [size // 4], bytes(size))})
    one = make_wheel(tmp_path / "one" / NAME, {name: contents}, level=1)
    changed = bytearray(contents)
    changed[-4:] = floats(7)
    other = make_wheel(tmp_path / "other" / NAME, {name: bytes(changed)}, level=1)
    del contents, changed
    tracemalloc.start()
    (found,) = compare_wheels(one, other)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.place == "tensor w"
    assert (found.first, found.second) == ("0", "7")
    assert peak < 8 << 20


def test_a_member_that_no_wheel_compresses_so_is_refused(tmp_path: Path) -> None:
    one = make_wheel(tmp_path / "one" / NAME, FILES)
    other = tmp_path / "other.whl"
    with zipfile.ZipFile(other, "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("tiny/a.py", "x")
    with pytest.raises(PackageError) as caught:
        compare_wheels(one, other)
    assert "compression method 12" in caught.value.found


def test_a_number_that_is_the_size_of_a_member_that_differs_is_left_out(tmp_path: Path) -> None:
    """As an SBOM has it, in a list that is sorted by digests; smaller numbers are what they are."""

    def files(contents: bytes, number: int) -> dict[str, str | bytes]:
        listed = [{"hash": sha256(data), "size": str(len(data))} for data in (contents, b"\0same")]
        document = {"list": sorted(listed, key=lambda each: each["hash"]), "shape": [number], "of": len(contents)}
        return {"t/x.bin": contents, "t/same.bin": b"\0same", "t/sbom.json": json.dumps(document)}

    found = compare(tmp_path, files(bytes(500), 4), files(bytes(501) + b"\1", 5))
    assert [(each.member, each.place) for each in found] == [
        ("t/sbom.json", "/shape/0"),
        ("t/x.bin", ""),
    ]


def test_the_directory_of_a_wheel_is_read_a_few_times_however_many_members_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = []

    class Counting(zipfile.ZipFile):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            opened.append(arguments)
            super().__init__(*arguments, **options)

    paths = []
    for side in ("first", "second"):
        paths.append(tmp_path / side / "net-1.0-py3-none-any.whl")
        paths[-1].parent.mkdir()
        with zipfile.ZipFile(paths[-1], "w", zipfile.ZIP_DEFLATED) as archive:
            for number in range(50):
                archive.writestr(f"net/{number}.txt", f"{side}\n" * (1 if number else 400_000))
    monkeypatch.setattr(zipfile, "ZipFile", Counting)
    found = compare_wheels(*paths)
    assert {each.member for each in found if each.member} == {f"net/{number}.txt" for number in range(50)}
    assert len(opened) <= 4
