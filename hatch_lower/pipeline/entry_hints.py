"""Hints for the most frequent errors of entry points: no GPU, no connection, weights of another model."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from hatch_lower.pipeline.exceptions import message_of

NO_CUDA = (
    *("not compiled with CUDA", "No CUDA GPUs", "NVIDIA driver", "no NVIDIA GPU", "CUDA-capable device"),
    *("deserialize object on a CUDA device", "CUDA driver"),
)
NO_CONNECTION = frozenset({"ConnectError", "ConnectTimeout", "LocalEntryNotFoundError", "OfflineModeIsEnabled"})
OFFLINE = "HF_HUB_OFFLINE"  # of `huggingface_hub.constants`
CONNECTIONS = (ConnectionError, socket.gaierror, TimeoutError)


def hint_for(error: BaseException) -> str:
    """Return a hint for an error of an entry point; empty if the error is not a known kind."""
    for each in chain_of(error):
        text = message_of(each)
        if any(words in text for words in NO_CUDA):
            return (
                "models are lowered on the CPU, and the build machine may have no GPU: create the module and its"
                ' examples on the CPU (no `.cuda()`, no `device="cuda"`), and load weights with `map_location="cpu"`'
            )
        if "loading state_dict for" in text:
            return (
                "the file has weights of another module than the entry point makes: compare the names and shapes above;"
                " names that begin with `module.` were saved from `DataParallel`, names with `_orig_mod.` from"
                " `torch.compile`"
            )
        if type(each).__name__ in NO_CONNECTION or isinstance(each, CONNECTIONS):
            return (
                "the entry point could not reach a server: download the files before the build, into a folder that"
                " `inputs` of the model names, and load from that folder (`from_pretrained(folder)`)"
            )
    return ""


def chain_of(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    each: BaseException | None = error
    while each is not None and id(each) not in seen:
        seen.add(id(each))
        yield each
        each = each.__cause__ or each.__context__


@contextmanager
def without_connection() -> Iterator[None]:
    """Put an imported Hugging Face library into offline mode if the address of its server cannot be resolved."""
    # the library would try each file for half a minute; offline, files in its cache are still found
    constants = sys.modules.get("huggingface_hub.constants")
    if constants is None or has_connection(getattr(constants, "ENDPOINT", "")):
        yield
        return
    before = getattr(constants, OFFLINE, False)
    setattr(constants, OFFLINE, True)
    try:
        yield
    finally:
        setattr(constants, OFFLINE, before)


def has_connection(url: str) -> bool:
    """Return whether the address of a URL's server can be resolved, without contact; true behind a proxy."""
    host = urlsplit(url).hostname
    if not host or any(name.lower() in ("https_proxy", "http_proxy", "all_proxy") for name in os.environ):
        return True
    try:
        socket.getaddrinfo(host, 443)
    except OSError:
        return False
    return True
