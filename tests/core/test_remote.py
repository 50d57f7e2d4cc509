"""The remote cache against real servers in loopback, honest and broken: what is wrong is a miss, in bounded time."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.cache_server import FAULTS, CacheServer, cache_server
from support.dav import dav_server

from hatch_lower.cache.partition import FIELDS
from hatch_lower.cache.remote.client import OutputFile, RemoteClient, decode_action_result, encode_action_result
from hatch_lower.cache.remote.envelope import reason_to_refuse_unsigned
from hatch_lower.cache.remote.policy import RemotePolicy
from hatch_lower.cache.remote.signing import SigningKey, VerifyingKeys, new_key_pair, read_key
from hatch_lower.cache.remote.transport import TransferLimits
from hatch_lower.cache.store import Store
from hatch_lower.canonical import sha256_bytes

pytestmark = pytest.mark.processes

KEY, OTHER_KEY = "ab" * 32, "cd" * 32
BLOBS = (b"first blob" * 500, b"", b"second blob")
PORTABLE = {
    "blob": sha256_bytes(BLOBS[0]),
    "data": {"buffers": [sha256_bytes(each) for each in BLOBS[1:]], "program": [], "external": []},
    "debug_handle_map": None,
    "delegate_info_meta": None,
    "suffix": "bin",
    "requirements": [],
    "target": None,
    "info": {},
}
NATIVE = {"target": {"system": "linux"}, "suffix": "so"}
LIMITS = TransferLimits(connect=1.0, silence=0.5, object=1.0, rate=1e6, build=6.0, failures=2)


def keys() -> tuple[SigningKey, VerifyingKeys]:
    pair = new_key_pair()
    return SigningKey(read_key(pair.private, "")), VerifyingKeys((read_key(pair.public, ""),))


def store_at(
    folder: Path, policy: RemotePolicy, mode: str = "on", limits: TransferLimits = LIMITS
) -> tuple[Store, list[str]]:
    warnings: list[str] = []
    return Store(folder, mode, warnings.append, RemoteClient(policy, warnings.append, limits)), warnings


def put(store: Store, value: object = PORTABLE, key: str = KEY, blobs: tuple[bytes, ...] = BLOBS) -> None:
    store.put(key, {"kind": "other"}, value, blobs)


def unfinished(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.name.startswith(".") or path.suffix == ".part"]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[CacheServer]:
    with cache_server(tmp_path / "served") as running:
        yield running


def test_what_one_store_pushes_another_pulls_once(tmp_path: Path, server: CacheServer) -> None:
    first, warnings = store_at(tmp_path / "a", RemotePolicy(server.url, push=True))
    put(first)
    second, more = store_at(tmp_path / "b", RemotePolicy(server.url))
    assert second.get(KEY, "x") == PORTABLE
    assert [second.read_blob(sha256_bytes(blob)) for blob in BLOBS] == list(BLOBS)
    asked = len(server.requests())
    assert second.get(KEY, "x") == PORTABLE
    assert len(server.requests()) == asked, "it is in the local store now"
    assert warnings + more == []
    assert unfinished(tmp_path / "b") == []


def test_an_entry_is_sent_last_and_blobs_that_are_there_are_not_sent_again(tmp_path: Path, server: CacheServer) -> None:
    put(store_at(tmp_path / "a", RemotePolicy(server.url, push=True))[0])
    sent = [each["path"] for each in server.requests() if each["method"] == "PUT"]
    assert sent[-1] == f"/ac/{KEY}"
    assert len(sent) == 4, "two blobs, the envelope and the action result: an empty blob needs no server"
    put(store_at(tmp_path / "b", RemotePolicy(server.url, push=True))[0])
    again = [each["path"] for each in server.requests() if each["method"] == "PUT"][len(sent) :]
    assert again == [f"/ac/{KEY}"]


def test_nothing_is_sent_unless_the_policy_says_so(tmp_path: Path, server: CacheServer) -> None:
    put(store_at(tmp_path / "a", RemotePolicy(server.url))[0])
    assert server.requests() == []


def test_a_frozen_store_takes_from_the_remote(tmp_path: Path, server: CacheServer) -> None:
    put(store_at(tmp_path / "a", RemotePolicy(server.url, push=True))[0])
    assert store_at(tmp_path / "b", RemotePolicy(server.url), "frozen")[0].get(KEY, "x") == PORTABLE


def test_what_the_remote_does_not_have_is_a_quiet_miss(tmp_path: Path, server: CacheServer) -> None:
    store, warnings = store_at(tmp_path / "b", RemotePolicy(server.url))
    for number in range(5):
        assert store.get(f"{number:064x}", "x") is None
    assert warnings == []
    assert len(server.requests()) == 5


def test_a_blob_that_the_remote_has_forgotten_is_a_quiet_miss(tmp_path: Path, server: CacheServer) -> None:
    put(store_at(tmp_path / "a", RemotePolicy(server.url, push=True))[0])
    server.object("cas", sha256_bytes(BLOBS[0])).unlink()
    store, warnings = store_at(tmp_path / "b", RemotePolicy(server.url))
    assert store.get(KEY, "x") is None
    assert warnings == []


@pytest.mark.parametrize("where", ["", "-cas"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_broken_server_costs_a_miss_and_bounded_time(tmp_path: Path, fault: str, where: str) -> None:
    with cache_server(tmp_path / "served") as server:
        put(store_at(tmp_path / "a", RemotePolicy(server.url, push=True))[0])
    with cache_server(tmp_path / "served", fault + where) as server:
        store, warnings = store_at(tmp_path / "b", RemotePolicy(server.url))
        # who waits for the whole of a drip gets the entry in the end, after minutes
        for _ in range(4):
            assert store.get(KEY, "x") is None
        asked = [each for each in server.requests() if each["method"] == "GET"]
    assert not store.record_path(KEY).exists()
    assert unfinished(tmp_path / "b") == []
    if fault == "huge-404":
        assert warnings == []
        return
    assert len(warnings) == 1, warnings
    assert "is not used any more in this build" in warnings[0]
    assert len(asked) <= LIMITS.failures * 3


def test_many_slow_answers_end_with_the_time_for_a_build(tmp_path: Path) -> None:
    with cache_server(tmp_path / "served", "drip") as server:
        limits = replace(LIMITS, failures=1000, build=2.0, object=0.5)
        store, warnings = store_at(tmp_path / "b", RemotePolicy(server.url), limits=limits)
        for number in range(50):
            assert store.get(f"{number:064x}", "x") is None
        assert len(server.requests()) < 10
    assert warnings == [
        f"the remote cache {server.url} is not used any more in this build: transfers took more than 2 s of this build"
    ]


def test_a_server_that_is_not_there_is_asked_once(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    store, warnings = store_at(tmp_path / "b", RemotePolicy(url, push=True))
    assert store.get(KEY, "x") is None
    put(store)
    assert store.get(KEY, "x") == PORTABLE, "the local store is as it was"
    assert len(warnings) == 1
    assert warnings[0].startswith(f"the remote cache {url} is not used any more in this build: no connection: ")


def test_a_redirect_is_not_followed_and_the_token_stays(tmp_path: Path, server: CacheServer) -> None:
    fault = f"redirect={server.url}"
    with cache_server(tmp_path / "redirecting", fault) as redirecting:
        policy = RemotePolicy(redirecting.url, authorization="Bearer token")
        store, warnings = store_at(tmp_path / "b", policy)
        for _ in range(3):
            assert store.get(KEY, "x") is None
        assert {each["authorization"] for each in redirecting.requests()} == {"Bearer token"}
    assert server.requests() == []
    elsewhere = server.url.removeprefix("http://")
    assert warnings == [
        f"the remote cache {redirecting.url} is not used any more in this build: the answer was 302 Found"
        f" (a redirect to `{elsewhere}`, which is not followed)"
    ]


def test_a_server_that_takes_nothing_ends_the_pushing(tmp_path: Path) -> None:
    with cache_server(tmp_path / "served", "no-put") as server:
        store, warnings = store_at(tmp_path / "a", RemotePolicy(server.url, push=True))
        for number in range(5):
            put(store, key=f"{number:064x}")
    assert len(warnings) == 1
    assert warnings[0].endswith("the answer was 403 Forbidden")


def test_a_server_that_closes_kept_connections_is_asked_again(tmp_path: Path) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    script = (
        "import socket, sys\n"
        "listener = socket.socket(fileno=int(sys.argv[1]))\n"
        "for _ in range(3):\n"
        "    peer, _ = listener.accept()\n"
        "    peer.recv(65536)\n"
        "    peer.sendall(b'HTTP/1.1 404 Not Found\\r\\nContent-Length: 0\\r\\n\\r\\n')\n"
        "    peer.close()\n"
    )
    command = [sys.executable, "-c", script, str(listener.fileno())]
    with listener, subprocess.Popen(command, pass_fds=[listener.fileno()]) as process:
        store, warnings = store_at(tmp_path / "b", RemotePolicy(f"http://127.0.0.1:{listener.getsockname()[1]}"))
        for number in range(3):
            assert store.get(f"{number:064x}", "x") is None
        assert process.wait(10) == 0
    assert warnings == []


def test_a_disk_that_is_full_is_not_the_remotes_fault(tmp_path: Path, server: CacheServer) -> None:
    put(store_at(tmp_path / "a", RemotePolicy(server.url, push=True))[0])
    store, warnings = store_at(tmp_path / "b", RemotePolicy(server.url))
    assert store.remote is not None

    def keep(digest: str, write: object) -> bool:
        assert callable(write)
        return bool(write(Path("/dev/full")))

    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    with pytest.raises(OSError, match="No space left"):
        store.remote.fetch(KEY, keep)
    assert warnings == []


# signatures


def test_native_code_without_a_signature_is_refused_and_reported_once(tmp_path: Path, server: CacheServer) -> None:
    first, _ = store_at(tmp_path / "a", RemotePolicy(server.url, push=True))
    put(first, NATIVE)
    put(first, NATIVE, OTHER_KEY)
    store, warnings = store_at(tmp_path / "b", RemotePolicy(server.url))
    assert [store.get(KEY, "x"), store.get(OTHER_KEY, "x")] == [None, None]
    assert warnings == [
        f"an entry of the remote cache {server.url} is not used: the entry holds native code, and is not signed"
    ]
    trusting, warnings = store_at(tmp_path / "b", RemotePolicy(server.url, unsigned=True))
    assert trusting.get(KEY, "x") == NATIVE
    assert warnings == []


@pytest.mark.parametrize("head", [b"\x7fELF\x02\x01\x01\x00", b"MZ\x90\x00", b"PK\x03\x04", bytes.fromhex("cffaedfe")])
def test_a_library_that_calls_itself_portable_is_refused(tmp_path: Path, server: CacheServer, head: bytes) -> None:
    put(store_at(tmp_path / "a", RemotePolicy(server.url, push=True))[0], PORTABLE, blobs=(head + b"code",))
    store, warnings = store_at(tmp_path / "b", RemotePolicy(server.url))
    assert store.get(KEY, "x") is None
    assert len(warnings) == 1
    assert "the entry holds native code, and is not signed" in warnings[0]
    assert not store.holds(sha256_bytes(head + b"code"))


WHOLE = {"report": {"model": "digits"}, "entry": {"order": ["default"]}}


@pytest.mark.parametrize(
    "value",
    [
        WHOLE,
        {"report": {}, "anchors": {}, "used": []},
        {"entries": [{"inputs": {}, "report": KEY}]},
        {"needs": None},
        {**PORTABLE, "report": {}},
        {name: each for name, each in PORTABLE.items() if name != "info"},
        {"plan": "0" * 64, "files": [], "requirements": [], "partitions": [], "used": [], "verified": []},
        [PORTABLE],
        1,
    ],
)
def test_what_nothing_verifies_is_not_believed_without_a_signature(
    tmp_path: Path, server: CacheServer, value: object
) -> None:
    """Reports of whole models, what exports read, and what libraries need: no build compares them with anything."""
    signing_key, trusted = keys()
    put(store_at(tmp_path / "a", RemotePolicy(server.url, push=True, signing_key=signing_key))[0], value)
    store, warnings = store_at(tmp_path / "b", RemotePolicy(server.url, trusted=trusted))
    assert (store.get(KEY, "x"), warnings) == (value, [])
    put(store_at(tmp_path / "c", RemotePolicy(server.url, push=True))[0], value)
    store, warnings = store_at(tmp_path / "d", RemotePolicy(server.url))
    assert store.get(KEY, "x") is None
    assert warnings == [
        f"an entry of the remote cache {server.url} is not used: the entry is not the result of a partition alone,"
        " and is not signed"
    ]
    store, warnings = store_at(tmp_path / "e", RemotePolicy(server.url, unsigned=True))
    assert (store.get(KEY, "x"), warnings) == (value, [])


ENTRY = {"buffer": 0, "alignment": 16, "layout": {"scalar_type": "float32", "sizes": [4], "dim_order": [0]}}
BUFFERS = [sha256_bytes(each) for each in BLOBS[1:]]


@pytest.mark.parametrize(
    "changes",
    [
        {"blob": "../../x"},
        {"blob": 1},
        {"suffix": "../x"},
        {"suffix": ""},
        {"requirements": "torch"},
        {"requirements": [1]},
        {"info": []},
        {"debug_handle_map": {}},
        {"debug_handle_map": [["a", [0]]]},
        {"debug_handle_map": [[None, [1]]]},
        {"data": []},
        {"data": {"buffers": ["x"], "program": [], "external": []}},
        {"data": {"buffers": BUFFERS, "program": [["a", {**ENTRY, "buffer": 2}]], "external": []}},
        {"data": {"buffers": BUFFERS, "program": [["a", {**ENTRY, "alignment": 0}]], "external": []}},
        {"data": {"buffers": BUFFERS, "program": [["a", {**ENTRY, "layout": {"sizes": [4]}}]], "external": []}},
        {"data": {"buffers": BUFFERS, "program": [], "external": [["a", [["b", {}]]]]}},
        {"data": {"buffers": BUFFERS, "program": [], "external": [], "more": 1}},
    ],
    ids=str,
)
def test_a_partition_that_cannot_be_read_as_one_is_refused(
    tmp_path: Path, server: CacheServer, changes: dict[str, object]
) -> None:
    put(store_at(tmp_path / "a", RemotePolicy(server.url, push=True))[0], {**PORTABLE, **changes})
    store, warnings = store_at(tmp_path / "b", RemotePolicy(server.url))
    assert store.get(KEY, "x") is None
    said = [line.partition(": ")[2] for line in warnings]
    assert said == ["the entry is not a valid result of a partition, and is not signed"]


def test_a_partition_with_everything_in_it_is_taken(tmp_path: Path, server: CacheServer) -> None:
    version = importlib.metadata.version("torch")
    value = {
        **PORTABLE,
        "debug_handle_map": [[0, [1, 2]], ["b", []]],
        "data": {
            "buffers": BUFFERS,
            "program": [["a", ENTRY]],
            "external": [["t", [["b", {**ENTRY, "layout": None}]]]],
        },
        "requirements": [f"torch=={version.partition('+')[0]}", "hatch_lower>=0.0.1", "packaging"],
        "info": {"a": [1]},
    }
    put(store_at(tmp_path / "a", RemotePolicy(server.url, push=True))[0], value)
    store, warnings = store_at(tmp_path / "b", RemotePolicy(server.url))
    assert (store.get(KEY, "x"), warnings) == (value, [])


@pytest.mark.parametrize(
    "requirement",
    [
        "evil",
        "torch<1",
        "torch==0.1; python_version < '3'",
        "torch @ https://example.org/torch.whl",
        "torch[evil]",
        "pytest",
        "hatch-lower>=99",
        "no requirement",
        "",
    ],
)
def test_a_partition_that_requires_what_no_backend_here_does_is_refused(
    tmp_path: Path, server: CacheServer, requirement: str
) -> None:
    value = {**PORTABLE, "requirements": ["torch", requirement]}
    put(store_at(tmp_path / "a", RemotePolicy(server.url, push=True))[0], value)
    store, warnings = store_at(tmp_path / "b", RemotePolicy(server.url))
    assert store.get(KEY, "x") is None
    assert warnings == [
        f"an entry of the remote cache {server.url} is not used: the entry requires `{requirement}`, which no backend"
        " of this environment requires, and is not signed"
    ]


@pytest.mark.torch
def test_the_fields_of_a_partition_are_those_that_a_build_stores() -> None:
    from hatch_lower.exir.backend.backend_details import PreprocessResult
    from hatch_lower.exir.lowering.stored_results import result_value

    value = result_value(PreprocessResult(b"blob"))
    assert value.keys() == FIELDS
    assert reason_to_refuse_unsigned(value) == ""


def test_partitions_that_were_lowered_together_are_believed_as_each_of_them_is() -> None:
    assert reason_to_refuse_unsigned({"results": [PORTABLE, PORTABLE]}) == ""
    assert (
        reason_to_refuse_unsigned({"results": [PORTABLE, {**PORTABLE, "suffix": ""}]})
        == "is not a valid result of a partition"
    )
    assert reason_to_refuse_unsigned({"results": [{"results": []}]}) == "is not the result of a partition alone"


def test_a_signature_by_a_known_key_is_taken(tmp_path: Path, server: CacheServer) -> None:
    signing_key, trusted = keys()
    put(store_at(tmp_path / "a", RemotePolicy(server.url, push=True, signing_key=signing_key))[0], NATIVE)
    store, warnings = store_at(tmp_path / "b", RemotePolicy(server.url, trusted=trusted))
    assert store.get(KEY, "x") == NATIVE
    assert warnings == []


def test_who_signs_believes_what_it_signed_itself_and_no_more_than_others(tmp_path: Path, server: CacheServer) -> None:
    signing_key, other_key = keys()[0], keys()[0]
    policy = RemotePolicy(server.url, push=True, signing_key=signing_key)
    put(store_at(tmp_path / "a", policy)[0], NATIVE)
    put(store_at(tmp_path / "b", replace(policy, signing_key=other_key))[0], NATIVE, OTHER_KEY)
    store, warnings = store_at(tmp_path / "c", policy)
    assert [store.get(KEY, "x"), store.get(OTHER_KEY, "x")] == [NATIVE, None]
    assert len(warnings) == 1
    assert f"signed by the key {other_key.key_id()}, which is not among the public keys" in warnings[0]


@pytest.mark.parametrize("value", [PORTABLE, NATIVE])
def test_a_signature_by_another_key_is_reported_with_its_name(
    tmp_path: Path, server: CacheServer, value: dict[str, object]
) -> None:
    signing_key, _ = keys()
    put(store_at(tmp_path / "a", RemotePolicy(server.url, push=True, signing_key=signing_key))[0], value)
    store, warnings = store_at(tmp_path / "b", RemotePolicy(server.url, trusted=keys()[1]))
    assert store.get(KEY, "x") is None
    assert len(warnings) == 1
    assert warnings[0].endswith(f"is signed by the key {signing_key.key_id()}, which is not among the public keys")


def test_with_public_keys_every_entry_must_be_signed(tmp_path: Path, server: CacheServer) -> None:
    put(store_at(tmp_path / "a", RemotePolicy(server.url, push=True))[0])
    store, warnings = store_at(tmp_path / "b", RemotePolicy(server.url, trusted=keys()[1]))
    assert store.get(KEY, "x") is None
    assert warnings[0].endswith("the entry is not trusted, and is not signed")


def envelope_of(server: CacheServer, key: str) -> Path:
    (named, *_) = decode_action_result(server.object("ac", key).read_bytes())
    assert named.path == "entry.json"
    return server.object("cas", named.sha256)


def replace_envelope(server: CacheServer, key: str, data: bytes) -> None:
    """Do what someone can who may write to the server: everything is consistent but the signature."""
    server.object("cas", sha256_bytes(data)).write_bytes(data)
    named = OutputFile("entry.json", sha256_bytes(data), len(data))
    server.object("ac", key).write_bytes(encode_action_result([named]))


@pytest.mark.parametrize("unsigned", [False, True])
@pytest.mark.parametrize("field", ["value", "components", "blobs", "native", "key"])
def test_a_signed_entry_that_was_changed_is_refused_always(
    tmp_path: Path, server: CacheServer, field: str, unsigned: bool
) -> None:
    signing_key, trusted = keys()
    put(store_at(tmp_path / "a", RemotePolicy(server.url, push=True, signing_key=signing_key))[0], NATIVE, OTHER_KEY)
    changed = {
        "value": {"target": None},
        "components": {"kind": "another"},
        "blobs": [],
        "native": False,
        "key": KEY,
    }
    envelope = json.loads(envelope_of(server, OTHER_KEY).read_bytes())
    assert envelope["entry"][field] != changed[field]
    envelope["entry"][field] = changed[field]
    key = KEY if field == "key" else OTHER_KEY
    replace_envelope(server, key, json.dumps(envelope).encode())
    store, warnings = store_at(tmp_path / "b", RemotePolicy(server.url, trusted=trusted, unsigned=unsigned))
    assert store.get(key, "x") is None
    assert len(warnings) == 1
    assert warnings[0].endswith(f"the signature by the key {signing_key.key_id()} is wrong")


def test_a_signed_entry_under_another_key_is_refused(tmp_path: Path, server: CacheServer) -> None:
    signing_key, trusted = keys()
    put(store_at(tmp_path / "a", RemotePolicy(server.url, push=True, signing_key=signing_key))[0], NATIVE)
    shutil.copy(server.object("ac", KEY), server.object("ac", OTHER_KEY))
    store, warnings = store_at(tmp_path / "b", RemotePolicy(server.url, trusted=trusted))
    assert store.get(OTHER_KEY, "x") is None
    assert warnings[0].endswith("is not used: the entry belongs to another key")


def test_an_entry_with_the_components_of_another_key_is_refused(tmp_path: Path, server: CacheServer) -> None:
    store = store_at(tmp_path / "a", RemotePolicy(server.url, push=True, unsigned=True))[0]
    store.put(KEY, {"kind": "partition", "graph": "another one"}, PORTABLE)
    store, warnings = store_at(tmp_path / "b", RemotePolicy(server.url, unsigned=True))
    assert store.get(KEY, "x") is None
    assert warnings[0].endswith("is not used: the entry has the components of another key")


def test_a_blob_in_the_place_of_another_is_refused(tmp_path: Path, server: CacheServer) -> None:
    signing_key, trusted = keys()
    put(store_at(tmp_path / "a", RemotePolicy(server.url, push=True, signing_key=signing_key))[0], NATIVE)
    server.object("cas", sha256_bytes(BLOBS[0])).write_bytes(b"other blob" * 500)
    store, _ = store_at(tmp_path / "b", RemotePolicy(server.url, trusted=trusted))
    assert store.get(KEY, "x") is None
    assert not store.holds(sha256_bytes(BLOBS[0]))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"null",
        b"{",
        b"\xff",
        b'{"entry": {"schema": 2}, "signature": null}',
        b"[" * 100_000,
        b'{"entry": {"schema": 1, "key": 1, "value": 1, "components": {}, "blobs": [], "native": false}}',
        b'{"entry": {"schema": 1, "key": "%s", "value": NaN, "components": {}, "blobs": [], "native": false}}'
        % KEY.encode(),
        b'{"entry": {"schema": 1, "key": "%s", "value": 1, "components": {}, "blobs": [["../../x", 1]],'
        b' "native": false}}' % KEY.encode(),
        b'{"entry": {"schema": 1, "key": "%s", "value": %s1%s, "components": {}, "blobs": [], "native": false}}'
        % (KEY.encode(), b"[" * 900, b"]" * 900),
        b'{"entry": {"schema": 1, "key": "%s", "value": 1, "components": {}, "blobs": [["%s", -1]], "native": false}}'
        % (KEY.encode(), KEY.encode()),
    ],
)
def test_an_envelope_that_is_none_is_a_miss(tmp_path: Path, server: CacheServer, data: bytes) -> None:
    put(store_at(tmp_path / "a", RemotePolicy(server.url, push=True))[0])
    replace_envelope(server, KEY, data)
    store, _ = store_at(tmp_path / "b", RemotePolicy(server.url, trusted=keys()[1]))
    assert store.get(KEY, "x") is None
    assert not store.record_path(KEY).exists()


@pytest.mark.parametrize("name", ["../../etc/passwd", "a" * 63, "A" * 64, "a" * 64 + "\n", "..%2f", "", "é" * 64])
def test_an_object_is_asked_for_by_a_digest_alone(name: str) -> None:
    with pytest.raises(ValueError, match="without a path, a sha256 or a size"):
        decode_action_result(encode_action_result([OutputFile("x", name, 1)]))


# what fsspec reaches


def test_a_folder_has_the_layout_of_the_protocol(tmp_path: Path, server: CacheServer) -> None:
    signing_key, trusted = keys()
    put(store_at(tmp_path / "a", RemotePolicy(server.url, push=True, signing_key=signing_key))[0], NATIVE)
    url = (tmp_path / "shared").as_uri()
    policy = RemotePolicy(url, push=True, options={}, signing_key=signing_key)
    put(store_at(tmp_path / "b", policy)[0], NATIVE)
    served = {path.relative_to(server.folder): path.read_bytes() for path in server.folder.glob("*c*/*")}
    shared = {
        path.relative_to(tmp_path / "shared"): path.read_bytes()
        for path in (tmp_path / "shared").rglob("*")
        if path.is_file()
    }
    assert shared == served
    store, warnings = store_at(tmp_path / "c", RemotePolicy(url, options={}, trusted=trusted))
    assert store.get(KEY, "x") == NATIVE
    assert store.get(OTHER_KEY, "x") is None
    assert warnings == []


def test_a_damaged_folder_is_a_miss(tmp_path: Path) -> None:
    policy = RemotePolicy((tmp_path / "shared").as_uri(), push=True, options={})
    put(store_at(tmp_path / "a", policy)[0])
    blob = tmp_path / "shared" / "cas" / sha256_bytes(BLOBS[0])
    blob.write_bytes(blob.read_bytes()[:-1] + b"?")
    store, _ = store_at(tmp_path / "b", policy)
    assert store.get(KEY, "x") is None


def test_a_file_system_that_is_not_installed_is_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    store, warnings = store_at(tmp_path / "a", RemotePolicy("gs://bucket", push=True, options={}))
    put(store)
    put(store, key=OTHER_KEY)
    assert len(warnings) == 1
    assert "gcsfs" in warnings[0]
    assert "hatch-lower[remote]" in warnings[0]


def test_an_object_store_that_speaks_s3(tmp_path: Path) -> None:
    pytest.importorskip("s3fs", reason="needs s3fs")
    pytest.importorskip("moto.server", reason="needs moto and flask")
    boto = pytest.importorskip("botocore.session", reason="needs botocore")
    script = (
        "import time\n"
        "from moto.server import ThreadedMotoServer\n"
        "server = ThreadedMotoServer('127.0.0.1', 0, verbose=False)\n"
        "server.start()\n"
        "print(server.get_host_and_port()[1], flush=True)\n"
        "time.sleep(300)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            endpoint = f"http://127.0.0.1:{process.stdout.readline().strip()}"
            login = {"aws_access_key_id": "key", "aws_secret_access_key": "secret", "region_name": "us-east-1"}
            client = boto.get_session().create_client("s3", endpoint_url=endpoint, **login)
            client.create_bucket(Bucket="team")
            options = {"key": "key", "secret": "secret", "endpoint_url": endpoint}
            limits = replace(LIMITS, object=20.0, build=60.0, silence=10.0, connect=10.0)
            policy = RemotePolicy("s3://team/cache", push=True, options=options)
            put(store_at(tmp_path / "a", policy, limits=limits)[0])
            store, warnings = store_at(tmp_path / "b", replace(policy, push=False), limits=limits)
            assert store.get(KEY, "x") == PORTABLE
            assert store.get(OTHER_KEY, "x") is None
            assert warnings == []
            listed = [each["Key"] for each in client.list_objects_v2(Bucket="team")["Contents"]]
            assert f"cache/ac/{KEY}" in listed
            client.put_object(Bucket="team", Key=f"cache/cas/{sha256_bytes(BLOBS[0])}", Body=b"other" * 1000)
            assert store_at(tmp_path / "c", policy, limits=limits)[0].get(KEY, "x") is None
        finally:
            process.kill()


def test_a_webdav_server_serves_it_as_it_is(tmp_path: Path) -> None:
    with dav_server(tmp_path / "served") as address:
        give_and_take(address, tmp_path)


def give_and_take(address: str, folder: Path) -> None:
    """Put an entry into a shared cache and read it again, by two stores."""
    signing_key, trusted = keys()
    policy = RemotePolicy(address, push=True, signing_key=signing_key, trusted=trusted)
    big = os.urandom(3 << 20)
    first, warnings = store_at(folder / "a", policy)
    put(first, NATIVE, blobs=(*BLOBS, big))
    store, more = store_at(folder / "b", policy)
    assert store.get(KEY, "x") == NATIVE
    assert store.read_blob(sha256_bytes(big)) == big
    assert store.get(OTHER_KEY, "x") is None
    assert warnings + more == []


def test_nginx_with_webdav_serves_it_as_it_is(tmp_path: Path) -> None:
    nginx = shutil.which("nginx", path=os.defpath + os.pathsep + "/usr/sbin" + os.pathsep + os.environ.get("PATH", ""))
    if nginx is None:
        pytest.skip("nginx is not installed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    temporary = "".join(
        f"{kind}_temp_path {tmp_path}/{kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (tmp_path / "served").mkdir()
    (tmp_path / "nginx.conf").write_text(
        f"daemon off; pid {tmp_path}/pid; error_log {tmp_path}/errors; worker_processes 1;\n"
        + ("user root;\n" if os.getuid() == 0 else "")
        + "events {}\n"
        f"http {{ access_log off; client_max_body_size 0; {temporary}\n"
        f"server {{ listen 127.0.0.1:{port}; root {tmp_path}/served;\n"
        "location / { dav_methods PUT; create_full_put_path on; } } }\n"
    )
    with subprocess.Popen([nginx, "-c", tmp_path / "nginx.conf", "-e", tmp_path / "errors"]) as process:
        try:
            deadline = time.monotonic() + 20
            while time.monotonic() < deadline and process.poll() is None:
                try:
                    socket.create_connection(("127.0.0.1", port), 1).close()
                    break
                except OSError:
                    time.sleep(0.05)
            give_and_take(f"http://127.0.0.1:{port}/team", tmp_path)
        finally:
            process.terminate()
            process.wait(20)
