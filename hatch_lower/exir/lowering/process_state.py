"""Global state of the process: restored after other people's code ran, or refused if changed."""

from __future__ import annotations

import builtins
import hashlib
import io
import json
import locale
import os
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

# modules with which this package computes keys and writes files
LIBRARY = (
    *(builtins, hashlib, io, os, os.path),
    *(json, json.decoder, json.encoder, json.JSONDecoder, json.JSONEncoder),
)


def flushes_denormals() -> bool:
    # of this thread: the processor holds the setting, and torch cannot report the value
    return sys.float_info.min / 2 == 0


def put_back_device(device: torch.device) -> None:
    # `None` stands for torch's own default, without a mode for functions, which keeps eager from torch's fast paths
    torch.set_default_device(None if device == torch.device("cpu") else device)


# the function that reads each of torch's settings, and the function that sets the value
SETTINGS: tuple[tuple[Callable[[], Any], Callable[[Any], object]], ...] = (
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.get_default_device, put_back_device),
    (torch.get_num_threads, torch.set_num_threads),
    (torch.is_grad_enabled, torch.set_grad_enabled),
    (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    (partial(torch.is_autocast_enabled, "cpu"), partial(torch.set_autocast_enabled, "cpu")),
    (partial(torch.get_autocast_dtype, "cpu"), partial(torch.set_autocast_dtype, "cpu")),
    (flushes_denormals, torch.set_flush_denormal),
)


@contextmanager
def process_restored() -> Iterator[None]:
    """Restore the global state of the process at the end, after a backend's own code ran."""
    folder, path = os.getcwd(), list(sys.path)
    streams = sys.stdout, sys.stderr
    environment = dict(os.environ)
    language = locale.setlocale(locale.LC_ALL)
    depth, mask = sys.getrecursionlimit(), read_umask()
    chance = random.getstate(), torch.get_rng_state()
    try:
        with torch_restored(), library_restored():
            yield
    finally:
        sys.stdout, sys.stderr = streams
        sys.setrecursionlimit(depth)
        sys.path[:] = path
        os.chdir(folder)
        os.umask(mask)
        if language != locale.setlocale(locale.LC_ALL):
            locale.setlocale(locale.LC_ALL, language)
        put_back_environment(environment)
        random.setstate(chance[0])
        torch.set_rng_state(chance[1])


@contextmanager
def library_restored() -> Iterator[None]:
    """Restore replaced functions such as `json.dumps` and `open` at the end: keys and files depend on the originals."""
    before = [(owner, dict(vars(owner))) for owner in LIBRARY]
    try:
        yield
    finally:
        for owner, members in before:
            now = dict(vars(owner))
            for name, value in members.items():
                if name not in now or now[name] is not value:
                    setattr(owner, name, value)


@contextmanager
def torch_restored() -> Iterator[None]:
    """Restore torch's global settings at the end, except for the random state."""
    before = [read() for read, _ in SETTINGS]
    try:
        yield
    finally:
        for (read, put_back), value in zip(SETTINGS, before, strict=True):
            if read() != value:
                put_back(value)


def arithmetic_settings() -> dict[str, str]:
    """Return the settings of torch that change results, by the name of the function that sets each."""
    return {
        "torch.set_default_dtype": str(torch.get_default_dtype()),
        "torch.set_default_device": str(torch.get_default_device()),
        "torch.autocast": str(torch.get_autocast_dtype("cpu")) if torch.is_autocast_enabled("cpu") else "off",
        "torch.inference_mode": str(torch.is_inference_mode_enabled()),
        "torch.set_flush_denormal": str(flushes_denormals()),
    }


def put_back_environment(variables: dict[str, str]) -> None:
    now = dict(os.environ)
    for name in now.keys() - variables.keys():
        del os.environ[name]
    for name, value in variables.items():
        if now.get(name) != value:
            os.environ[name] = value


def read_umask() -> int:
    # the mask can only be read by setting a mask
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
