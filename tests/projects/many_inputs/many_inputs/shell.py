"""A model whose export starts a program, which reads what the import system alone would not tell of."""

from __future__ import annotations

import subprocess
from pathlib import Path

import torch

from hatch_lower import Method, Model

SCRIPT = 'cat "$1"; printenv MANY_SHELL; ls "$2"'
DATA = Path(__file__).parent / "data"


class Shell(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x)


def make() -> Model:
    command = ["sh", "-c", SCRIPT, "sh", DATA / "shown.txt", DATA / "shown"]
    subprocess.run(command, check=True, capture_output=True)
    return Model(Shell().eval(), methods={"forward": Method(args=(torch.zeros(2),))})
