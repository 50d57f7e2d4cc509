"""What to do about the errors that entry points meet most often: no GPU, no connection, weights of another model."""

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
    """Return what to do about an error of an entry point; empty where no more is known than what it says."""
    for each in chain_of(error):
        text = message_of(each)
        if any(words in text for words in NO_CUDA):
            return (
                "models are lowered on the CPU, and the machine that builds may have no GPU: make the module and its"
                ' examples there (no `.cuda()`, no `device="cuda"`), and load weights with `map_location="cpu"`'
            )
        if "loading state_dict for" in text:
            return (
                "the file has weights of another module than the entry point makes: compare the names and shapes above;"
                " names that begin with `module.` were saved from `DataParallel`, those with `_orig_mod.` from"
                " `torch.compile`"
            )
        if type(each).__name__ in NO_CONNECTION or isinstance(each, CONNECTIONS):
            return (
                "the entry point could not reach a server: download what it loads before the build, into a folder that"
                " `inputs` of the model names, and load it from there (`from_pretrained(folder)`)"
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
    """Tell Hugging Face's library, where it is imported and its server has no address here, to try no connection."""
    # it would try each file for half a minute; files that it has in its cache are found all the same
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
    """Return whether the server of a URL has an address here, as far as can be told without asking it."""
    host = urlsplit(url).hostname
    if not host or any(name.lower() in ("https_proxy", "http_proxy", "all_proxy") for name in os.environ):
        return True
    try:
        socket.getaddrinfo(host, 443)
    except OSError:
        return False
    return True
