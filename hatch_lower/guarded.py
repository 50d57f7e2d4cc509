"""A backend's own code at work in the build's process: what it raises becomes one paragraph, and what it changed of the
process is put back, so that neither the next backend nor the comparison with eager works under other conditions.
"""

from __future__ import annotations

import locale
import os
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from hatch_lower.errors import BackendError, LowerError
from hatch_lower.export.source import describe_exception, is_out_of_memory

__all__ = ["backend_at_work", "process_restored"]


@contextmanager
def backend_at_work(backend: str, where: str) -> Iterator[None]:
    """Run a backend's code.

    Args:
        backend: its id.
        where: the model and recipe that it works for, for errors.

    Raises:
        BackendError: for whatever it raises that is no error of ours, an attempt to end the process included.
        MemoryError: if memory ran out.
    """
    try:
        with process_restored():
            yield
    except LowerError as error:
        if not error.where or "model `" in error.where:
            raise
        raise type(error)(error.what, where=f"{where}, {error.where}", found=error.found, hint=error.hint) from error
    except BaseException as error:
        if is_out_of_memory(error):
            raise MemoryError(str(error)) from error
        raise BackendError(
            f"the backend `{backend}` failed",
            where=where,
            found=describe_exception(error),
            hint="leave the backend out of the recipe, or report this to its authors",
        ) from error


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
