"""An ASGI application that answers the open inference protocol for the methods of a folder.

```text
GET  /v2   /v2/health/live   /v2/health/ready   /v2/models/NAME   /v2/models/NAME/ready
POST /v2/models/NAME/infer
```

`/versions/1` may follow a name. Models are loaded before the server is ready. A call runs in a thread.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from functools import cache
from pathlib import Path
from typing import Any

from hatch_lower.errors import InputError, LowerError, ProgramError
from hatch_lower.format.served import FACTS
from hatch_lower.runtime.serving.binary import HEADER
from hatch_lower.runtime.serving.method import MethodCaller, load_served, open_served
from hatch_lower.runtime.serving.protocol import (
    VERSION,
    Answer,
    Headers,
    InferRequest,
    infer_answer,
    model_metadata,
    server_metadata,
)

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
MOST_BYTES = 1 << 26  # of a request


class StatusError(Exception):
    """An answer of another status than 200."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class InferenceApp:
    """An ASGI application over the folders in a folder, of which each has a file `method.json`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._models: Mapping[str, MethodCaller] | None = None  # `None` until the server is ready

    def load(self) -> None:
        """Load all models; raise `ProgramError` if one cannot run here."""
        loader = cache(load_served)  # the methods of a model share its weights
        folders = sorted(path.parent for path in self._folder.glob(f"*/{FACTS}"))
        if not folders:
            raise ProgramError("the server has no models", where=str(self._folder), found=f"no `*/{FACTS}`")
        callers = [open_served(folder, loader) for folder in folders]
        self._models = {caller.served.name: caller for caller in callers}

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            await self._answer(scope, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        while (await receive())["type"] != "lifespan.shutdown":
            try:
                await asyncio.to_thread(self.load)
            except Exception as error:
                await send({"type": "lifespan.startup.failed", "message": str(error)})
                return
            await send({"type": "lifespan.startup.complete"})
        await send({"type": "lifespan.shutdown.complete"})

    async def _answer(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        value: dict[str, object]
        behind: bytes | None = None
        try:
            status, (value, behind) = 200, await self._value(scope, receive)
        except StatusError as error:
            status, value = error.status, {"error": str(error)}
        except InputError as error:
            status, value = 400, {"error": str(error)}
        except LowerError as error:
            status, value = 500, {"error": str(error)}
        except Exception as error:  # an operator of torch may raise anything
            status, value = 500, {"error": f"the call failed: {type(error).__name__}: {error}"}
        text = json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
        body = text + (behind or b"")
        headers = [(b"content-length", str(len(body)).encode())]
        if behind is None:
            headers += [(b"content-type", b"application/json")]
        else:
            headers += [(b"content-type", b"application/octet-stream"), (HEADER, str(len(text)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _value(self, scope: Mapping[str, Any], receive: Receive) -> Answer:
        method, path = scope["method"], scope["path"]
        parts = path.strip("/").split("/")
        if parts[:2] == ["v2", "models"] and len(parts) > 2:
            rest = parts[3:]
            match rest[2:] if rest[:2] == ["versions", VERSION] else rest:
                case ["infer"]:
                    check_verb(method, "POST")
                    return await self._infer(self._model(parts[2]), scope.get("headers", ()), receive)
                case ["ready"]:
                    check_verb(method, "GET")
                    return {"name": self._model(parts[2]).served.name, "ready": True}, None
                case []:
                    check_verb(method, "GET")
                    return model_metadata(self._model(parts[2]).served), None
        elif parts in (["v2"], ["v2", "health", "live"], ["v2", "health", "ready"]):
            check_verb(method, "GET")
            if parts[-1] == "ready":
                return {"ready": bool(self._ready())}, None
            return (server_metadata() if len(parts) == 1 else {"live": True}), None
        raise StatusError(404, f"there is no `{path:.200}`")

    async def _infer(self, caller: MethodCaller, headers: Headers, receive: Receive) -> Answer:
        body = await read_body(receive)
        return await asyncio.to_thread(infer, caller, body, headers)

    def _ready(self) -> Mapping[str, MethodCaller]:
        if self._models is None:
            raise StatusError(503, "the models are not loaded yet")
        return self._models

    def _model(self, name: str) -> MethodCaller:
        models = self._ready()
        if name not in models:
            raise StatusError(404, f"there is no model `{name:.80}`; there is {', '.join(sorted(models))}")
        return models[name]


def infer(caller: MethodCaller, body: bytes, headers: Headers) -> Answer:
    request = InferRequest(body, headers, caller.served)
    return infer_answer(request, caller.served, caller.call(request.inputs))


def check_verb(method: str, only: str) -> None:
    if method != only:
        raise StatusError(405, f"the method is {only} here, not {method:.20}")


async def read_body(receive: Receive) -> bytes:
    parts: list[bytes] = []
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise StatusError(400, "the client has closed the connection")
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > MOST_BYTES:
            raise StatusError(413, f"a request has at most {MOST_BYTES} bytes")
        more = message.get("more_body", False)
    return b"".join(parts)
