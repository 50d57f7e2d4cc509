"""The build's own side of parts: units that may ask for some, and the requests for what they ask for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from hatch_lower.build.spread.parts import ASKED, PART
from hatch_lower.build.spread.protocol import Need, attach, new_secret
from hatch_lower.build.spread.requests import Asked


def may_ask(asked: Asked, before: Iterable[str] = ()) -> Asked:
    """Return a request whose unit may ask for parts, but for those of some keys, for which it has asked before."""
    return carrying(asked, {**given(asked), ASKED: b"".join(map(bytes.fromhex, before))})


def may_not_ask(asked: Asked) -> Asked:
    """Return a request whose unit makes all that is missing itself."""
    return carrying(asked, {role: data for role, data in given(asked).items() if role != ASKED})


def can_ask(asked: Asked) -> bool:
    return ASKED in given(asked)


def request_part(asked: Asked, need: Need, blob: bytes) -> Asked:
    """Return the request for a part that the unit of another request needs; `blob` came with its answer."""
    request = replace(
        asked.request, name=need.name, kind="part", key=need.key, secret=new_secret(), body=need.body, bring_all=True
    )
    return carrying(replace(asked, request=request), {PART: blob})


def given(asked: Asked) -> dict[str, bytes]:
    roles = [attachment.role for attachment in asked.request.attachments]
    return dict(zip(roles, asked.attachments, strict=True))


def carrying(asked: Asked, attachments: Mapping[str, bytes]) -> Asked:
    attached = tuple(attach(role, data) for role, data in attachments.items())
    return replace(asked, request=replace(asked.request, attachments=attached), attachments=tuple(attachments.values()))
