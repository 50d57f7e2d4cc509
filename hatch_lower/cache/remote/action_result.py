"""A `build.bazel.remote.execution.v2.ActionResult`, the message that servers of the Bazel protocol keep under `/ac/`.

A format of our own would be simpler, but servers parse the entries: bazel-remote refuses any other format, reports an
entry as missing when a blob of the entry is missing, and keeps the blobs as long as the entry. The schema here has only
the fields that bazel-remote needs; a reader of protobuf skips unknown fields, some of which servers add.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hatch_lower.cache.entry import DIGEST

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
