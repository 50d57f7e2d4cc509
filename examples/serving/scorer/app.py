"""The model behind HTTP: `uvicorn scorer.app:app`."""

import asyncio
import json

import numpy as np

from scorer.batches import Batches, load


class App:
    def __init__(self, load):
        self.batches = Batches(load)

    async def answer(self, request, body):
        batches = self.batches
        match request:
            case "POST", "/score":
                batches.counts["requests"] += 1
                try:
                    image = np.asarray_chkfinite(json.loads(body), np.float32).reshape(256)
                except (TypeError, ValueError, OverflowError, RecursionError) as error:
                    batches.counts["refused"] += 1
                    return 400, {"error": f"send a list of 256 numbers: {error}"}
                return await batches.answer(image)
            case "POST", "/reload":
                await batches.reload()
                return 200, {"loads": batches.loads}
            case "GET", "/health":
                return (200, {"status": "ok"}) if batches.model else (503, {"status": "loading"})
            case "GET", "/metrics":
                lines = [f"scorer_{name}_total {count}" for name, count in batches.counts.items()]
                return 200, "\n".join([*lines, f"scorer_waiting {batches.waiting.qsize()}", ""])
        return 404, {"error": "unknown path"}

    async def __call__(self, scope, receive, send):
        if scope["type"] == "lifespan":
            await receive()
            try:
                await self.batches.reload()
            except Exception as error:  # otherwise uvicorn would serve without a model
                return await send({"type": "lifespan.startup.failed", "message": str(error)})
            worker = asyncio.create_task(self.batches.work())
            await send({"type": "lifespan.startup.complete"})
            await receive()
            worker.cancel()
            return await send({"type": "lifespan.shutdown.complete"})
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        status, value = await self.answer((scope["method"], scope["path"]), body)
        text = (value if isinstance(value, str) else json.dumps(value)).encode()
        kind = b"text/plain; version=0.0.4" if isinstance(value, str) else b"application/json"  # for Prometheus 3
        headers = [(b"content-type", kind), (b"content-length", b"%d" % len(text))]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": text})


app = App(load)
