"""`serving.py SITE [REQUESTS]`: the server of `examples/serving` under 16 clients, beside a plain loop of calls.

SITE is the folder of the unpacked wheel `scorer`. The server is a process of its own; the clients are threads of this
process with httpx. Prints JSON: requests a second of the server and calls a second of the loop, their ratio over the
number of cores, the 50th and 99th percentile of a request in milliseconds, the rows of a call, and the CPU time of a
request in the server and in the clients, and of a call in the loop. On a busy machine only CPU times count.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import numpy as np

CLIENTS = 16


def timed_loop(model, images) -> float:
    """Return calls a second, one row each."""
    for image in images[:20]:
        model(image[None])
    begin = time.perf_counter()
    for image in images:
        model(image[None])
    return len(images) / (time.perf_counter() - begin)


async def ask(address: str, bodies: list[bytes]) -> tuple[float, list[float]]:
    """Return requests a second, and the seconds of each request."""
    seconds, waiting = [], iter(bodies)

    async def client() -> None:
        async with httpx.AsyncClient(base_url=address, timeout=60) as session:
            for body in waiting:
                begin = time.perf_counter()
                answer = await session.post("/score", content=body)
                seconds.append(time.perf_counter() - begin)
                answer.raise_for_status()

    begin = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    return len(bodies) / (time.perf_counter() - begin), seconds


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process has used, by all of its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def wait_for(address: str) -> None:
    for _ in range(600):
        try:
            if httpx.get(f"{address}/health").status_code == 200:
                return
        except httpx.TransportError:
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
        asyncio.run(ask(address, bodies[:200]))
        used, server_used = time.process_time(), cpu_seconds(server.pid)
        rate, seconds = asyncio.run(ask(address, bodies))
        client_cpu, server_cpu = time.process_time() - used, cpu_seconds(server.pid) - server_used
        metrics = dict(line.split() for line in httpx.get(f"{address}/metrics").text.splitlines())
    finally:
        server.terminate()
        server.wait()
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
