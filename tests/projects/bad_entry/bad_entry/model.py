"""Entry points that cannot be lowered, one for each way in which they cannot."""

from __future__ import annotations

import torch

from hatch_lower import Method, Model

not_callable = 42


class Square(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * x


class Branching(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            return x + 1
        return x - 1


class FixedRows(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.reshape(3, 4)


class Taken(torch.nn.Module):
    def recipe(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


class Counting(torch.nn.Module):
    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x * self.calls


def raising() -> Model:
    raise RuntimeError("the weights are not here")


def wrong_type() -> int:
    return 42


def printing() -> Model:
    print("loading the weights")
    return Model(Square().eval(), methods={"forward": Method(args=(torch.zeros(2, 3),))})


def misfit() -> Model:
    example = (torch.zeros(2, 3), torch.zeros(2, 3))
    return Model(Square().eval(), methods={"forward": Method(args=example)})


def branching() -> Model:
    return Model(Branching().eval(), methods={"forward": Method(args=(torch.zeros(2, 3),))})


def constraint() -> Model:
    rows = torch.export.Dim("rows", max=64)
    method = Method(args=(torch.zeros(3, 4),), dynamic_shapes={"x": {0: rows}})
    return Model(FixedRows().eval(), methods={"forward": method})


def missing_method() -> Model:
    return Model(Square().eval(), methods={"embed": Method(args=(torch.zeros(2, 3),))})


def taken() -> Model:
    return Model(Taken().eval(), methods={"recipe": Method(args=(torch.zeros(2, 3),))})


def crashing() -> Model:
    import os
    import signal

    os.kill(os.getpid(), signal.SIGSEGV)
    raise AssertionError("unreachable")


def killed() -> Model:
    import os
    import signal

    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")


def counting() -> Model:
    return Model(Counting().eval(), methods={"forward": Method(args=(torch.ones(2, 3),))})
