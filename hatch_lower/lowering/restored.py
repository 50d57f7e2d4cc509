"""What a process has one of, put back after a backend's own code was at work: the next step works as the one before."""

from __future__ import annotations

import locale
import os
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["process_restored"]


@contextmanager
def process_restored() -> Iterator[None]:
    """Put back at the end what a process has one of."""
    folder, path = os.getcwd(), list(sys.path)
    streams = sys.stdout, sys.stderr
    environment = dict(os.environ)
    language = locale.setlocale(locale.LC_ALL)
    depth, mask = sys.getrecursionlimit(), read_umask()
    chance = random.getstate(), torch.get_rng_state()
    dtype, device = torch.get_default_dtype(), torch.get_default_device()
    threads, gradients = torch.get_num_threads(), torch.is_grad_enabled()
    strictness = torch.get_deterministic_debug_mode()

    try:
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
        torch.set_default_dtype(dtype)
        torch.set_grad_enabled(gradients)
        if threads != torch.get_num_threads():
            torch.set_num_threads(threads)
        if device != torch.get_default_device():
            torch.set_default_device(device)
        if strictness != torch.get_deterministic_debug_mode():
            torch.set_deterministic_debug_mode(strictness)


def put_back_environment(variables: dict[str, str]) -> None:
    """Give the environment the variables that it had."""
    now = dict(os.environ)
    for name in now.keys() - variables.keys():
        del os.environ[name]
    for name, value in variables.items():
        if now.get(name) != value:
            os.environ[name] = value


def read_umask() -> int:
    """Return the mask of new files' permissions; there is no way to ask for it that does not set it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
