"""`serving.py SITE [REQUESTS]`: the server of `examples/serving` under 16 clients, beside a plain loop of calls.

SITE is the folder of the unpacked wheel `scorer`, perhaps of a copy of the example with a wider network. The server is
a process of its own. The clients are connections of this process, which send requests that were written before: a
client such as httpx takes more time than the model. Each answer is compared with the model's scores. Prints JSON:
requests a second of the server and calls a second of the loop, their ratio over the number of cores, the 50th and 99th
percentile of a request in milliseconds, the rows of a call, and the CPU time of a request in the server and in the
clients, and of a call in the loop. On a busy machine only CPU times count.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import numpy as np

CLIENTS = 16
HEAD = b"POST /score HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"


class Client(asyncio.Protocol):
    """A connection that sends the next request when an answer is complete.

    Args:
        waiting: requests with their positions, shared by all clients.
        answers: the seconds and the body of each answer, by the request's position.
    """

    def __init__(self, waiting: Iterator[tuple[int, bytes]], answers: dict[int, tuple[float, bytes]]) -> None:
        self._waiting, self._answers = waiting, answers
        self._received = b""
        self.ended = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._send()

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, found, body = self._received.partition(b"\r\n\r\n")
        if not found or len(body) < int(head.lower().partition(b"content-length:")[2].split()[0]):
            return
        if not head.startswith(b"HTTP/1.1 200"):
            self.ended.set_exception(ValueError(self._received))
            return
        self._answers[self._position] = time.perf_counter() - self._begin, body
        self._send()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_exception(error or ConnectionError("the server closed a connection"))

    def _send(self) -> None:
        self._received = b""
        self._position, request = next(self._waiting, (-1, b""))
        if not request:
            self.ended.set_result(None)
            self._transport.close()
            return
        self._begin = time.perf_counter()
        self._transport.write(request)


def timed_loop(model: Any, images: Any) -> float:
    """Return calls a second, one row each."""
    for image in images[:20]:
        model(image[None])
    begin = time.perf_counter()
    for image in images:
        model(image[None])
    return len(images) / (time.perf_counter() - begin)


async def ask(port: int, bodies: list[bytes]) -> tuple[float, list[tuple[float, bytes]]]:
    """Return requests a second, and the seconds and the body of each answer."""
    requests = [HEAD % len(body) + body for body in bodies]
    waiting = iter(enumerate(requests))
    answers: dict[int, tuple[float, bytes]] = {}
    loop = asyncio.get_running_loop()
    begin = time.perf_counter()
    connections = (loop.create_connection(lambda: Client(waiting, answers), "127.0.0.1", port) for _ in range(CLIENTS))
    for _, client in await asyncio.gather(*connections):
        await client.ended
    return len(bodies) / (time.perf_counter() - begin), [answers[position] for position in range(len(bodies))]


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process has used, by all of its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def wait_for(address: str) -> None:
    for _ in range(600):
        try:
            with urlopen(f"{address}/health"):
                return
        except URLError:
            pass
        time.sleep(0.1)
    raise TimeoutError("the server does not answer")


def main() -> None:
    site, count = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 1000
    sys.path.insert(0, site)
    import hatch_lower

    images = np.random.default_rng(0).random((count, 256), np.float32)
    model = hatch_lower.load("scorer", arrays="numpy")
    used = time.process_time()
    loop = timed_loop(model, images)
    loop_cpu = time.process_time() - used
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "uvicorn", "scorer.app:app", "--port", str(port), "--no-access-log"]
    server = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": site}, stderr=subprocess.DEVNULL)
    try:
        wait_for(address)
        bodies = [json.dumps(image.tolist()).encode() for image in images]
        asyncio.run(ask(port, bodies[:200]))
        used, server_used = time.process_time(), cpu_seconds(server.pid)
        rate, answers = asyncio.run(ask(port, bodies))
        client_cpu, server_cpu = time.process_time() - used, cpu_seconds(server.pid) - server_used
        with urlopen(f"{address}/metrics") as found:
            metrics = dict(line.split() for line in found.read().decode().splitlines())
    finally:
        server.terminate()
        server.wait()
    scores = np.array([json.loads(body)["scores"] for _, body in answers])
    np.testing.assert_allclose(scores, np.concatenate([model(image[None]) for image in images]), 1e-4, 1e-5)
    seconds = [each for each, _ in answers]
    cores = len(os.sched_getaffinity(0))
    calls = int(metrics["scorer_calls_total"])
    print(
        json.dumps(
            {
                "requests_a_second": round(rate, 1),
                "loop_calls_a_second": round(loop, 1),
                "cores": cores,
                "ratio_over_cores": round(rate / loop / cores, 2),
                "p50_ms": round(1e3 * float(np.percentile(seconds, 50)), 1),
                "p99_ms": round(1e3 * float(np.percentile(seconds, 99)), 1),
                "rows_of_a_call": round(int(metrics["scorer_requests_total"]) / calls, 1),
                "cpu_ms_server": round(1e3 * server_cpu / count, 2),
                "cpu_ms_client": round(1e3 * client_cpu / count, 2),
                "cpu_ms_loop": round(1e3 * loop_cpu / count, 2),
            }
        )
    )


main()
