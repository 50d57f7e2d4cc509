"""The client of the remote cache: the store receives whole entries, signed where a signature is required, or a miss.

An entry is an action result of Bazel's protocol (`ac/<key>`) that names the envelope and the blobs
(`cas/<sha256>`). The client checks size, digest, key and signature before any use; a failed check is a miss.

A format of our own would be simpler, but servers parse the entries: bazel-remote refuses any other format, reports an
entry as missing when a blob of the entry is missing, and keeps the blobs as long as the entry. The schema here has
only the fields that bazel-remote needs; a reader of protobuf skips unknown fields, some of which servers add.
"""

from __future__ import annotations

import functools
import hashlib
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from hatch_lower.cache.entry import DIGEST, Keep, Record, is_own_key, make_record
from hatch_lower.cache.remote.envelope import (
    OTHER_COMPONENTS,
    RefusedEntryError,
    SharedEntry,
    Signature,
    is_native,
    is_native_file,
    is_signed_entry,
    read_envelope,
    reason_to_refuse_unsigned,
    shared_entry,
    unsigned_text,
    write_envelope,
)
from hatch_lower.cache.remote.policy import RemotePolicy
from hatch_lower.cache.remote.transport import (
    FilesTransport,
    HttpTransport,
    TransferError,
    TransferLimits,
    Transport,
    UnreachableError,
)
from hatch_lower.canonical import sha256_bytes
from hatch_lower.timeouts import call_within

WORKER = "hatch-lower"  # bazel-remote writes the client's address into an empty field
MOST_FILES = 100_000
SCHEMA = """
name: "hatch_lower/action_result.proto" package: "build.bazel.remote.execution.v2" syntax: "proto3"
message_type {
  name: "Digest"
  field { name: "hash" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
  field { name: "size_bytes" number: 2 type: TYPE_INT64 label: LABEL_OPTIONAL }
}
message_type {
  name: "OutputFile"
  field { name: "path" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
  field { name: "digest" number: 2 type: TYPE_MESSAGE type_name: "Digest" label: LABEL_OPTIONAL }
}
message_type {
  name: "ExecutedActionMetadata"
  field { name: "worker" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
}
message_type {
  name: "ActionResult"
  field { name: "output_files" number: 2 type: TYPE_MESSAGE type_name: "OutputFile" label: LABEL_REPEATED }
  field { name: "execution_metadata" number: 9 type: TYPE_MESSAGE label: LABEL_OPTIONAL
          type_name: "ExecutedActionMetadata" }
}
"""


@dataclass(frozen=True, slots=True)
class OutputFile:
    path: str  # relative and never empty
    sha256: str
    size: int


@functools.cache
def message_class() -> Any:
    # a separate pool: other libraries may have a message of the same name
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(text_format.Parse(SCHEMA, descriptor_pb2.FileDescriptorProto()).SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("build.bazel.remote.execution.v2.ActionResult"))


def encode_action_result(files: Sequence[OutputFile]) -> bytes:
    message = message_class()()
    for file in files:
        message.output_files.add(path=file.path, digest={"hash": file.sha256, "size_bytes": file.size})
    message.execution_metadata.worker = WORKER
    encoded: bytes = message.SerializeToString(deterministic=True)
    return encoded


def decode_action_result(data: bytes) -> tuple[OutputFile, ...]:
    from google.protobuf.message import DecodeError

    try:
        message = message_class().FromString(data)
    except DecodeError as error:
        raise ValueError(f"no protobuf message: {error}") from error
    if len(message.output_files) > MOST_FILES:
        raise ValueError(f"an action result names {len(message.output_files)} files")
    files = tuple(OutputFile(file.path, file.digest.hash, file.digest.size_bytes) for file in message.output_files)
    if not all(file.path and DIGEST.fullmatch(file.sha256) and file.size >= 0 for file in files):
        raise ValueError("an action result names a file without a path, a sha256 or a size")
    return files


Result = TypeVar("Result")
ENVELOPE = "entry.json"
EMPTY = sha256_bytes(b"")
WRONG_CONTENTS = "the server sent an object whose contents do not match the name"


class RemoteClient:
    """A client of a remote cache that fetches and sends entries; a failure is a miss. Threads take turns."""

    # `warn` is called once for each kind of refused entry, and once when the remote is given up

    def __init__(self, policy: RemotePolicy, warn: Callable[[str], None], limits: TransferLimits | None = None) -> None:
        self._policy = policy
        self._warn = warn
        self._limits = limits or TransferLimits()
        self._transport = self._new_transport()
        self._lock = threading.RLock()
        self._failures = 0
        self._spent = 0.0
        self._off = False
        self._said: set[str] = set()

    def fetch(self, key: str, keep: Keep) -> Record | None:
        with self._lock:
            return None if self._off else self._guarded(lambda: self._fetch(key, keep))

    def offer(self, key: str, record: Record, blobs: Mapping[str, Path]) -> bool:
        with self._lock:
            if not self._policy.push or self._off:
                return False
            return self._guarded(lambda: self._offer(key, record, blobs)) is True

    def _fetch(self, key: str, keep: Keep) -> Record | None:
        result = self._bytes(f"ac/{key}", self._limits.result_bytes)
        if result is None:
            return None
        named = [file for file in decode_action_result(result) if file.path == ENVELOPE]
        if len(named) != 1 or named[0].size > self._limits.entry_bytes:
            raise TransferError("the server sent an entry that hatch-lower did not write")
        data = self._bytes(f"cas/{named[0].sha256}", named[0].size)
        if data is None:
            return None
        if sha256_bytes(data) != named[0].sha256:
            raise TransferError(WRONG_CONTENTS)
        entry, signature = read_envelope(data)
        signed = self._check(key, entry, signature)
        for name, size in entry.blobs:

            def write(file: Path, name: str = name, size: int = size) -> bool:
                if size > shutil.disk_usage(file.parent).free:
                    raise RefusedEntryError("a blob of the entry is larger than the free space of the disk")
                if not self._blob(name, size, file):
                    return False
                if not signed and not self._policy.unsigned and is_native_file(file):
                    raise RefusedEntryError(unsigned_text(signature, "holds native code"))
                return True

            if not keep(name, write):
                return None
        return make_record(key, entry.components, entry.value, [name for name, _ in entry.blobs])

    def _check(self, key: str, entry: SharedEntry, signature: Signature | None) -> bool:
        """Return whether a trusted key signed an entry; refuse an entry of another key, or without a due signature."""
        if entry.key != key:
            raise RefusedEntryError("the entry belongs to another key")
        if not is_own_key(key, entry.components):
            raise RefusedEntryError(OTHER_COMPONENTS)
        if is_signed_entry(entry, signature, self._policy.known_keys()):
            return True
        if self._policy.unsigned:
            return False
        if self._policy.trusted.keys:
            raise RefusedEntryError(unsigned_text(signature, "is not trusted"))
        if entry.native or is_native(entry.value):
            raise RefusedEntryError(unsigned_text(signature, "holds native code"))
        if reason := reason_to_refuse_unsigned(entry.value):
            raise RefusedEntryError(unsigned_text(signature, reason))
        return False

    def _blob(self, name: str, size: int, file: Path) -> bool:
        digest = hashlib.sha256()
        # an abandoned transfer may still go on in its thread, and fails as soon as the file is closed
        with file.open("wb") as stream:

            def write(piece: bytes) -> None:
                digest.update(piece)
                stream.write(piece)

            if name != EMPTY and not self._read(f"cas/{name}", write, size):
                return False
            written = stream.tell()
        if (written, digest.hexdigest()) != (size, name):
            raise TransferError(WRONG_CONTENTS)
        return True

    def _bytes(self, name: str, limit: int) -> bytes | None:
        data = bytearray()
        return bytes(data) if self._read(name, data.extend, limit) else None

    def _read(self, name: str, write: Callable[[bytes], object], limit: int) -> bool:
        """Pass an object's pieces to `write`; return whether the remote has the object."""

        def read() -> bool:
            pieces = self._transport.read(name)
            if pieces is None:
                return False
            total = 0
            with closing(pieces):
                for piece in pieces:
                    total += len(piece)
                    if total > limit:
                        raise TransferError(f"the server sent an object of more than {limit} bytes")
                    write(piece)
            return True

        return self._timed(limit, read)

    def _offer(self, key: str, record: Record, blobs: Mapping[str, Path]) -> bool:
        entry = shared_entry(key, record, blobs)
        sizes = dict(entry.blobs)
        data = write_envelope(entry, self._policy.signing_key)
        envelope = OutputFile(ENVELOPE, sha256_bytes(data), len(data))
        result = encode_action_result([envelope, *(OutputFile(f"blobs/{name}", name, sizes[name]) for name in sizes)])
        if len(data) > self._limits.entry_bytes or len(result) > self._limits.result_bytes:
            return False
        for name, size in sizes.items():
            self._send(f"cas/{name}", blobs[name], size)
        self._send(f"cas/{envelope.sha256}", data, len(data))
        # last, so that a reader of the entry finds the blobs
        self._timed(len(result), lambda: self._transport.write(f"ac/{key}", result))
        return True

    def _send(self, name: str, source: bytes | Path, size: int) -> None:
        if name != f"cas/{EMPTY}" and not self._timed(0, lambda: self._transport.holds(name, size)):
            self._timed(size, lambda: self._transport.write(name, source))

    def _timed(self, size: int, work: Callable[[], Result]) -> Result:
        # the time is limited for an object of this size, and for the whole build
        left = self._limits.build - self._spent
        if left <= 0:
            raise UnreachableError(f"transfers took more than {self._limits.build:g} s of this build")
        begin = time.monotonic()
        seconds = min(self._limits.seconds(size), left)
        try:
            return call_within(seconds, work, TransferError("the transfer took too long"))
        finally:
            taken = time.monotonic() - begin
            self._spent += taken
            if taken >= seconds:  # the abandoned thread may still use the old transport
                self._transport = self._new_transport()

    def _guarded(self, work: Callable[[], Result]) -> Result | None:
        try:
            return work()
        # the build goes on without the remote, for any failure of the remote
        except RefusedEntryError as error:
            self._say(f"an entry of the remote cache {self._policy.place()} is not used: {error}")
        except UnreachableError as error:
            self._give_up(str(error))
        except ImportError as error:
            self._give_up(f"{error} (its packages are in the extra `hatch-lower[remote]`)")
        except (TransferError, ValueError, RecursionError) as error:
            self._failures += 1
            if self._failures >= self._limits.failures:
                self._give_up(str(error) or type(error).__name__)
        return None

    def _give_up(self, reason: str) -> None:
        self._off = True
        self._say(f"the remote cache {self._policy.place()} is not used any more in this build: {reason}")

    def _say(self, line: str) -> None:
        if line not in self._said:
            self._said.add(line)
            self._warn(line)

    def _new_transport(self) -> Transport:
        if self._policy.is_http:
            return HttpTransport(self._policy.url, self._policy.authorization, self._limits)
        return FilesTransport(self._policy.url, self._policy.options or {}, self._limits)
