"""The file of a model's constants: first what every load compares with a digest, then the weights."""

from __future__ import annotations

from xml.etree.ElementTree import Element

ALIGNMENT = 64
WEIGHT_BYTES = 1 << 14
"""Axes, shapes and numbers to compute with are smaller; much of a model's smallest weights are compared with them."""
FLOATING = frozenset({"f16", "bf16", "f32", "f64"})


def arrange(root: Element, constants: bytes) -> tuple[bytes, int]:
    """Return the constants in their order, and how many bytes come before the weights.

    Weights are large and floating: another one gives another result, but of the same shape and from the same places in
    memory. Loading reads no more of them than the engine does, where shapes, axes and indices have to be those that
    were built.

    Args:
        root: the model; its constants get their new places.
        constants: as its constants lie now.
    """
    users: dict[tuple[int, int], list[Element]] = {}
    for data in root.iterfind(".//layer[@type='Const']/data"):
        users.setdefault((int(data.attrib["offset"]), int(data.attrib["size"])), []).append(data)

    def is_weight(place: tuple[int, int]) -> bool:
        return place[1] >= WEIGHT_BYTES and all(user.get("element_type") in FLOATING for user in users[place])

    pieces: list[bytes] = []
    length = compared = 0
    for place in sorted(users, key=lambda each: (is_weight(each), each)):
        offset, size = place
        pieces += [bytes(-length % ALIGNMENT), constants[offset : offset + size]]
        length += len(pieces[-2])
        for user in users[place]:
            user.set("offset", str(length))
        length += size
        if not is_weight(place):
            compared = length
    return b"".join(pieces), compared
