"""One function for each way in which an export can read."""

from __future__ import annotations

import colorsys
import ctypes
import glob
import importlib.metadata
import importlib.resources
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

import fake_installed
import loose
import many_space.here
import many_space.there
import torch
import zipped
from safetensors import safe_open

try:
    import digits_extra
except ImportError:
    digits_extra = None

try:
    import numpy
except ImportError:
    numpy = None


def read_everything(data: Path) -> list[object]:
    return [read(data) for read in READERS]


def modules(data: Path) -> object:
    found = [each.NUMBER for each in (fake_installed, loose, many_space.here, many_space.there, zipped)]
    return found, colorsys.rgb_to_hls(0.1, 0.2, 0.3), digits_extra


def resource(data: Path) -> object:
    return importlib.resources.files("many_inputs").joinpath("data/resource.txt").read_text()


def opened(data: Path) -> object:
    with open(data / "opened.txt") as file:
        return file.read()


def path(data: Path) -> object:
    return (data / "path.txt").read_text()


def descriptor(data: Path) -> object:
    handle = os.open(data / "descriptor.txt", os.O_RDONLY)
    try:
        return os.read(handle, 100)
    finally:
        os.close(handle)


def linked(data: Path) -> object:
    return (data / "linked.txt").read_text()


def resolved(data: Path) -> object:
    return ((data / "current").resolve() / "resolved.txt").read_text()


def named(data: Path) -> object:
    return (data / "named.txt").read_text(), os.readlink(data / "named.txt")


def array(data: Path) -> object:
    return None if numpy is None else numpy.load(data / "array.npy", mmap_mode="r").sum()


def state(data: Path) -> object:
    return torch.load(data / "state.pt", weights_only=True, mmap=True)


def tensors(data: Path) -> object:
    with safe_open(data / "tensors.safetensors", framework="pt") as file:
        return file.get_tensor("bias")


def raw(data: Path) -> object:
    return torch.from_file(str(data / "raw.bin"), size=4).sum()


def table(data: Path) -> object:
    connection = sqlite3.connect(data / "table.sqlite")
    try:
        return connection.execute("select number from numbers").fetchall()
    finally:
        connection.close()


def native(data: Path) -> object:
    return ctypes.CDLL(str(data / "native.so")).number()


def listed(data: Path) -> object:
    return os.listdir(data / "listed")


def globbed(data: Path) -> object:
    return glob.glob(f"{data}/globbed/*.txt")


def scanned(data: Path) -> object:
    with os.scandir(data / "scanned") as entries:
        return [entry.name for entry in entries]


def missing(data: Path) -> object:
    return os.path.exists(data / "missing.txt")


def size(data: Path) -> object:
    return os.path.getsize(data / "sized.bin")


def variables(data: Path) -> object:
    return os.environ.get("MANY_SET"), os.environ.get("MANY_UNSET"), os.getenv("USER"), os.getenv("MANY_TOKEN")


def variables_in_c(data: Path) -> object:
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_char_p
    return getenv(b"MANY_C"), getenv(b"MANY_C_UNSET")


def versions(data: Path) -> object:
    try:
        absent = importlib.metadata.version("fake-absent")
    except importlib.metadata.PackageNotFoundError:
        absent = ""
    return importlib.metadata.version("fake-asked"), absent


READERS: tuple[Callable[[Path], object], ...] = (
    *(modules, resource, opened, path, descriptor, linked, resolved, named, array, state, tensors, raw, table, native),
    *(listed, globbed, scanned, missing, size, variables, variables_in_c, versions),
)
