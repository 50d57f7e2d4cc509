"""What a process has one of: put back after other people's code was at work, or refused if it was changed."""

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

# what this package itself computes keys and writes files with
LIBRARY = (
    *(builtins, hashlib, io, os, os.path),
    *(json, json.decoder, json.encoder, json.JSONDecoder, json.JSONEncoder),
)


def flushes_denormals() -> bool:
    # torch has no way to ask; of this thread, for the processor has the setting
    return sys.float_info.min / 2 == 0


# how torch tells each of its settings, and how it takes it
SETTINGS: tuple[tuple[Callable[[], Any], Callable[[Any], object]], ...] = (
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.get_default_device, torch.set_default_device),
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
    """Put back at the end what a process has one of, after a backend's own code was at work."""
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
    """Put back at the end what was exchanged of `json`, `open` and the like: keys and files depend on it."""
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
    """Put back at the end what torch has one of, but its random numbers."""
    before = [read() for read, _ in SETTINGS]
    try:
        yield
    finally:
        for (read, put_back), value in zip(SETTINGS, before, strict=True):
            if read() != value:
                put_back(value)


def arithmetic() -> dict[str, str]:
    """Return the settings of torch that decide what the same code computes, by the function that changes them."""
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
    # there is no way to ask for it that does not set it
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
