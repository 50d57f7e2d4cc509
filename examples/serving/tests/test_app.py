"""The server under load: uvicorn in a thread, and clients of httpx. Needs the installed wheel of this project."""

import asyncio
import threading
import time
from contextlib import contextmanager

import numpy as np
import pytest

httpx = pytest.importorskip("httpx")
uvicorn = pytest.importorskip("uvicorn")

from scorer.app import App  # noqa: E402
from scorer.batches import load  # noqa: E402

REQUESTS, CLIENTS = 1000, 16


@contextmanager
def running(application):
    """Serve an application in a thread; give its address."""
    server = uvicorn.Server(uvicorn.Config(application, port=0, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive(), "the server has not started"
            time.sleep(0.01)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


async def ask(address, images, between=None):
    """Send each image once, from all clients together; return the answers in the order of the images."""
    answers, numbers = [None] * len(images), iter(range(len(images)))

    async def client():
        async with httpx.AsyncClient(base_url=address, timeout=60) as session:
            for number in numbers:
                answers[number] = await session.post("/score", json=images[number].tolist())
                if between is not None:
                    await between(session, number)

    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    return answers


def some_images(count):
    return np.random.default_rng(0).random((count, 256), np.float32)


@pytest.fixture(scope="module")
def model():
    return load()


def scores_of(model, images):
    return np.concatenate([model(image[None]) for image in images])


def check(answers, expected, added=0):
    assert [answer.status_code for answer in answers] == [200] * len(expected)
    for answer, scores in zip(answers, expected, strict=True):
        found = answer.json()
        np.testing.assert_allclose(found["scores"], scores + added * (found["loads"] - 1), rtol=1e-4, atol=1e-5)


def test_no_request_is_lost_or_mixed_up(model):
    images = some_images(REQUESTS)
    with running(App(load)) as address:
        answers = asyncio.run(ask(address, images))
        page = httpx.get(f"{address}/metrics")
    metrics = dict(line.split() for line in page.text.splitlines())
    check(answers, scores_of(model, images))
    assert page.headers["content-type"].startswith("text/plain")  # Prometheus 3 demands a type
    assert answers[0].headers["content-type"] == "application/json"
    assert metrics["scorer_requests_total"] == str(REQUESTS)
    assert int(metrics["scorer_calls_total"]) < REQUESTS  # requests were joined
    assert metrics["scorer_waiting"] == "0"


def test_a_model_is_reloaded_while_requests_run(model):
    images, loads = some_images(300), []

    def load_another():
        loads.append(None)
        added = len(loads) - 1
        return lambda batch: model(batch) + added  # the model of each load returns other scores

    async def reload_sometimes(session, number):
        if number % 50 == 0:
            assert (await session.post("/reload")).status_code == 200

    with running(App(load_another)) as address:
        answers = asyncio.run(ask(address, images, reload_sometimes))
    check(answers, scores_of(model, images), added=1)
    assert len({answer.json()["loads"] for answer in answers}) > 1
    assert len(loads) == 7


def test_a_bad_request_is_an_error_of_that_request(model):
    images = list(some_images(40))
    images[7] = np.zeros(3, np.float32)
    with running(App(load)) as address:
        answers = asyncio.run(ask(address, images))
        for body in (b"[" * 100_000, b"[" + b"1" * 400 + b"]", b"[1e39]", b"[NaN]"):
            assert httpx.post(f"{address}/score", content=body).status_code == 400
    bad = answers.pop(7)
    assert bad.status_code == 400
    assert bad.json()["error"].startswith("send a list of 256 numbers")
    check(answers, scores_of(model, images[:7] + images[8:]))


def test_a_failing_call_is_an_error_and_the_next_call_runs(model):
    images, calls = some_images(2), []

    def sometimes(batch):
        calls.append(None)
        if len(calls) == 1:
            raise RuntimeError("the engine fails")
        return model(batch)

    with running(App(lambda: sometimes)) as address:
        first, second = (httpx.post(f"{address}/score", json=image.tolist()) for image in images)
    assert (first.status_code, first.json()) == (500, {"error": "the engine fails"})
    check([second], model(images[1:]))


def test_a_server_without_a_model_does_not_start():
    def fail():
        raise RuntimeError("no such model")

    async def receive():
        return {"type": "lifespan.startup"}

    async def send(message):
        sent.append(message)

    sent = []
    asyncio.run(App(fail)({"type": "lifespan"}, receive, send))
    assert sent == [{"type": "lifespan.startup.failed", "message": "no such model"}]


def test_the_server_says_that_it_is_well():
    with running(App(load)) as address:
        assert httpx.get(f"{address}/health").json() == {"status": "ok"}
        assert httpx.get(f"{address}/other").status_code == 404
