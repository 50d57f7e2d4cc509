"""Ray: a cluster at an address, or a cluster for this build alone."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import socket
import threading
import urllib.parse
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import ray
import ray.exceptions
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from hatch_lower.driver.spread.pool import (
    LostConnectionError,
    LostWorkerError,
    NoWorkerError,
    Reply,
    RunUnit,
    UnreadableError,
    reply_future,
)
from hatch_lower.errors import ExecutorError

CONNECT_SECONDS = 10.0
LEFT_BEHIND = "PYTHONBREAKPOINT"  # Ray sets the variable in the process that starts a cluster
UNREADABLE = (ray.exceptions.UnserializableException, ray.exceptions.RaySystemError)


def open_pool(address: str, jobs: int, where: str, run_unit: RunUnit) -> RayPool:
    """Connect to a cluster: at the address, or at the address in Ray's configuration, or start a cluster."""
    others = ray.is_initialized()  # the caller of this build has a connection, which stays
    if others and not address:
        return RayPool(run_unit, lambda: None)
    address = address or os.environ.get("RAY_ADDRESS", "")
    restore = remember_process()

    def leave() -> None:
        with contextlib.suppress(Exception):
            ray.shutdown()
        restore()

    try:
        await_port(address)
        options: dict[str, object] = {} if address else {"num_cpus": jobs, "include_dashboard": False}
        ray.init(address or "local", log_to_driver=False, configure_logging=False, **options)
    except Exception as error:  # of any class, if a node does not start in time
        if not others:
            leave()
        raise ExecutorError(
            "the cluster of Ray cannot be reached" if address else "a cluster of Ray cannot be started",
            where=where,
            found=f"{address}: {error}" if address else f"{type(error).__name__}: {error}",
            hint='name the address that `ray start --head` prints: "ray:host:6379"; "ray:auto" is the one of this'
            " machine",
        ) from error
    return RayPool(run_unit, leave)


def remember_process() -> Callable[[], None]:
    """Return a function that undoes Ray's changes of this process: later builds have the variable in their keys."""
    value = os.environ.get(LEFT_BEHIND)
    handler = signal.getsignal(signal.SIGTERM)

    def restore() -> None:
        os.environ.pop(LEFT_BEHIND, None)
        if value is not None:
            os.environ[LEFT_BEHIND] = value
        if handler is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)

    return restore


def await_port(address: str) -> None:
    """Raise an `OSError` if nobody listens at an address: Ray itself would wait for minutes."""
    if not address or address in ("auto", "local"):
        return
    place = urllib.parse.urlsplit(address if "://" in address else f"//{address}")
    if place.hostname is None or place.port is None:
        raise ValueError("it is no address with a port")
    socket.create_connection((place.hostname, place.port), CONNECT_SECONDS).close()


class RayPool:
    def __init__(self, run_unit: RunUnit, leave: Callable[[], None]) -> None:
        self._run_unit = run_unit
        self._leave = leave  # closes the connection
        self._task = ray.remote(run_on_ray)
        self._share = functools.cache(ray.put)
        self._running: dict[Future[Any], Any] = {}

    def submit(self, request: bytes, snapshot: bytes, avoid: frozenset[str]) -> Future[Reply]:
        nodes = self._look()
        # Ray's own retries have no limit where the memory is too small, and avoid no node
        options: dict[str, object] = {"num_cpus": 1, "max_retries": 0}
        if avoid:
            allowed = [node for node in nodes if not any(node_mark(node) in name for name in avoid)]
            if not allowed:
                raise NoWorkerError
            # if the node is gone when the unit's turn comes, Ray takes any node
            node = min(allowed, key=lambda name: (-nodes[name], name))
            options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(node, soft=True)
        reference = self._task.options(**options).remote(self._run_unit, request, self._share(snapshot))
        future: Future[Any] = reference.future()
        self._running[future] = reference
        future.add_done_callback(self._running.pop)
        return reply_future(future, ray_error)

    def size(self) -> int:
        return sum(self._look().values())

    def close(self, *, cancel: bool) -> None:
        with contextlib.suppress(Exception):
            if cancel:
                for reference in list(self._running.values()):
                    ray.cancel(reference, force=False)
            self._share.cache_clear()
        self._leave()

    def _look(self) -> dict[str, int]:
        """Return the number of processors by node."""
        if not ray.is_initialized():
            raise LostConnectionError("this process is no driver of Ray any more")
        return {node["NodeID"]: int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]}


def ray_error(error: BaseException) -> BaseException:
    if isinstance(error, ray.exceptions.RayTaskError):
        cause = error.cause
        return cause if isinstance(cause, BaseException) else error
    if isinstance(error, UNREADABLE):
        return UnreadableError(str(error).strip().partition("\n")[0])
    if isinstance(error, ray.exceptions.RayError):
        return LostWorkerError(str(error).strip().partition("\n")[0])
    if isinstance(error, ConnectionError):
        return LostConnectionError(str(error))
    return error


def run_on_ray(run_unit: RunUnit, request: bytes, snapshot: bytes) -> tuple[str, bytes]:
    """Make a unit on a worker; Ray interrupts the unit when the build cancels."""
    name = f"{socket.gethostname()} {node_mark(ray.get_runtime_context().get_node_id())}"
    return name, run_unit(request, snapshot, worker=name)


def node_mark(node: str) -> str:
    return f"(node {node[:8]})"
