"""Six layers whose calls take about a millisecond, nearly all of it in the delegate."""

from __future__ import annotations

import torch

from hatch_lower import Method, Model


def export() -> Model:
    torch.manual_seed(0)
    layers = [module for _ in range(6) for module in (torch.nn.Linear(512, 512), torch.nn.ReLU())]
    return Model(torch.nn.Sequential(*layers).eval(), methods={"forward": Method(args=(torch.randn(32, 512),))})
