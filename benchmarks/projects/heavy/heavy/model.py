"""1 GiB of weights in sixteen tables; the benchmark makes their file."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file

from hatch_lower import Method, Model

WEIGHTS = Path(__file__).with_name("weights.safetensors")
TABLES, ROWS, COLUMNS = 16, 16384, 1024


class Tables(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tables = torch.nn.ModuleList(torch.nn.Embedding(ROWS, COLUMNS) for _ in range(TABLES))

    def forward(self, row: torch.Tensor) -> torch.Tensor:
        return torch.stack([table(row) for table in self.tables]).sum(0)


def export() -> Model:
    with torch.device("meta"):
        tables = Tables()
    tables.load_state_dict(load_file(WEIGHTS), assign=True)
    return Model(tables.eval(), methods={"forward": Method(args=(torch.tensor([1, 2]),))})
