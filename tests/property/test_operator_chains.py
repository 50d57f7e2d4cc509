"""Random chains of operations, lowered for each engine, and their results beside eager's.

An engine computes several operations in one kernel, and the kernel may be wrong where each operation alone is right. A
long run tries more chains. No operation rounds to integers: a difference of rounding would then be 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from random import Random

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from support.effort import LONG
from torch import Tensor, nn

import hatch_lower
from hatch_lower.exir.backend.registry import find_backend
from hatch_lower.exir.capture._config import EdgeCompileConfig
from hatch_lower.exir.program._program import to_edge_transform_and_lower
from hatch_lower.pipeline.save import save_program

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

ENGINES: Mapping[str, dict[str, object]] = {
    "executorch": {"portable-operators": True},
    "onnxruntime": {},
    "openvino": {"threads": 1},
}
SEEDS = range(60) if LONG else range(1)
CHAINS = 8  # in a program
LARGEST = 4000  # elements of a value
SAME = 1e-4  # relative to the largest element
SHAKES = 4  # calls with inputs that differ by roundings

Step = Callable[[Tensor], Tensor]
ACTIVATIONS: tuple[Step, ...] = (
    *(torch.abs, torch.relu, torch.sigmoid, torch.tanh, torch.erf, torch.neg, torch.sin, torch.square),
    *(F.elu, F.gelu, F.hardsigmoid, F.hardswish, F.leaky_relu, F.mish, F.selu, F.silu, F.softplus, F.softsign),
    *(lambda x: torch.sqrt(x.abs() + 0.1), lambda x: torch.rsqrt(x.abs() + 0.1), lambda x: torch.log(x.abs() + 0.5)),
    *(lambda x: x.clamp(-0.5, 1), lambda x: torch.exp(x.clamp(max=3)), lambda x: torch.where(x > 0.1, x, x * 0.3)),
)
REDUCTIONS: tuple[Callable[..., Tensor], ...] = (
    *(torch.sum, torch.mean, torch.amax, torch.amin, torch.prod, torch.var, torch.std, torch.logsumexp),
    lambda x, dim, keepdim: x.norm(dim=dim, keepdim=keepdim),
)
NUMBERS: tuple[Callable[..., Tensor], ...] = (
    *(torch.add, torch.sub, torch.mul, torch.maximum, lambda x, y: y - x, lambda x, y: (x - y) ** 2),
    *(lambda x, y: x / (y.abs() + 0.5), lambda x, y: y / (x.abs() + 0.5), lambda x, y: torch.where(x <= y, x, y)),
)


def activation(random: Random, x: Tensor) -> Step:
    return random.choice(ACTIVATIONS)


def reduction(random: Random, x: Tensor) -> Step:
    kind, dim, keeps = random.choice(REDUCTIONS), random.randrange(x.dim()), random.random() < 0.5
    return lambda x: kind(x, dim=dim, keepdim=keeps)


def with_constant(random: Random, x: Tensor) -> Step:
    dim, kind = random.randrange(x.dim()), random.choice(NUMBERS)
    shape = random.choice(([], [1], x.shape[-1:], [*x.shape[dim : dim + 1], *[1] * (x.dim() - dim - 1)]))
    constant = torch.tensor([random.gauss(0, 1) for _ in range(torch.Size(shape).numel())]).reshape(shape)
    return lambda x: kind(x, constant)


def normalization(random: Random, x: Tensor) -> Step:
    dim = random.randrange(x.dim())
    kinds: list[Step] = [lambda x: x.softmax(dim), lambda x: F.normalize(x, dim=dim)]
    kinds += [lambda x: F.layer_norm(x, x.shape[-1:])] if x.shape[-1] > 2 else []
    kinds += [lambda x: F.group_norm(x, 1)] if x.dim() > 2 else []
    return random.choice(kinds)


def product(random: Random, x: Tensor) -> Step:
    weight = torch.tensor([random.gauss(0, 0.5) for _ in range(3 * x.shape[-1])]).reshape(3, -1)
    kinds: list[Step] = [lambda x: F.linear(x, weight)]
    kinds += [lambda x: x @ x.transpose(-1, -2)] if x.dim() > 1 else []
    return random.choice(kinds)


def movement(random: Random, x: Tensor) -> Step:
    dim = random.randrange(x.dim())
    kinds: list[Step] = [lambda x: torch.cat([x - 0.5, x, x * 2], dim), lambda x: x.flip(dim), lambda x: x.roll(1, dim)]
    kinds += [lambda x: x.transpose(0, dim), lambda x: x.flatten(), lambda x: x.unsqueeze(dim), lambda x: x.cumsum(dim)]
    return random.choice([*kinds, lambda x: x.narrow(dim, 0, (x.shape[dim] + 1) // 2)])


KINDS = (activation, activation, activation, reduction, reduction, with_constant, normalization, product, movement)


class Chain(nn.Module):
    """Operations that a seed draws, one behind another; the results are the last two values."""

    def __init__(self, seed: str) -> None:
        super().__init__()
        random = Random(seed)
        self.x = torch.randn([random.choice((2, 3, 4, 6, 8)) for _ in range(random.randint(1, 4))])
        self.steps: list[Step] = []
        value, count = self.x, random.randint(2, 6)
        while len(self.steps) < count:
            step = random.choice(KINDS)(random, value) if value.dim() else random.choice(ACTIVATIONS)
            try:
                found = step(value)
            except (IndexError, RuntimeError, ValueError):  # an operation for tensors of another shape
                continue
            if found.numel() <= LARGEST and found.isfinite().all() and found.abs().max() < 1000:
                self.steps.append(step)
                value = found

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        before = x
        for step in self.steps:
            before, x = x, step(x)
        return before, x

    def allowed(self) -> Iterator[Tensor]:
        """Give the difference that each element of each result may have: rounding moves some results far."""
        results = self(self.x)
        others = [self(self.x * (1 + 1e-6 * torch.randn(self.x.shape))) for _ in range(SHAKES)]
        for place, result in enumerate(results):
            moved = torch.stack([(other[place] - result).abs() for other in others]).amax(0)
            yield 50 * moved + SAME * (result.abs().max() + result.abs()) + SAME * SAME


class Chains(nn.Module):
    def __init__(self, chains: list[Chain]) -> None:
        super().__init__()
        self.chains = chains

    def forward(self, *inputs: Tensor) -> list[tuple[Tensor, Tensor]]:
        return [chain(x) for chain, x in zip(self.chains, inputs, strict=True)]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("engine", ENGINES)
def test_chains_of_operations_give_what_eager_gives(engine: str, seed: int, tmp_path: Path) -> None:
    pytest.importorskip(engine)
    torch.manual_seed(seed)
    chains = [Chain(f"{seed} {place}") for place in range(CHAINS)]
    inputs = tuple(chain.x for chain in chains)
    program = torch.export.export(Chains(chains), inputs)
    partitioner = find_backend(engine).partitioner(ENGINES[engine])
    wanted, _ = partitioner.ops_to_not_decompose(program)
    config = EdgeCompileConfig(_check_ir_validity=False, preserve_ops=list(wanted))
    lowered = to_edge_transform_and_lower(program, partitioner=[partitioner], compile_config=config).to_executorch()
    given = hatch_lower.load(save_program(lowered, tmp_path / "saved"))(*inputs)
    for chain, results in zip(chains, given, strict=True):
        for result, expected, allowed in zip(results, chain(chain.x), chain.allowed(), strict=True):
            assert result.shape == expected.shape
            assert ((result - expected).abs() <= allowed).all(), (chain.x.shape, result, expected)
