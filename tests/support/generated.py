"""Random programs: modules made of random steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from hypothesis import reject, settings
from hypothesis import strategies as st
from torch._higher_order_ops.map import map as torch_map
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.export import Dim, ExportedProgram

from hatch_lower.exir.lowering.convert import to_edge

Tensor = torch.Tensor
COLUMNS = 4


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a module computes: steps (name, two operands, a small number), results, and whether its batch is dynamic."""

    steps: tuple[tuple[str, int, int, int], ...]
    results: tuple[int, ...]
    dynamic: bool


class Drawn(torch.nn.Module):
    """A module made from a recipe; all its values are float32 [batch, 4]."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(7)
        self.recipe = recipe
        self.weight = torch.nn.Parameter(torch.randn(COLUMNS, COLUMNS, generator=generator) / 2)
        self.tied = self.weight
        self.linear = torch.nn.Linear(COLUMNS, COLUMNS)
        with torch.no_grad():
            self.linear.weight.copy_(torch.randn(COLUMNS, COLUMNS, generator=generator) / 2)
            self.linear.bias.copy_(torch.randn(COLUMNS, generator=generator))
        self.register_buffer("shift", torch.randn(COLUMNS, generator=generator))
        self.register_buffer("state", torch.zeros(COLUMNS))
        self.register_buffer("other", torch.ones(COLUMNS), persistent=False)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.requires_grad_(False)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        """Return the chosen results, and the state where it is among them."""
        values = [x, y]
        for name, first, second, number in self.recipe.steps:
            values += STEPS[name](self, values[first % len(values)], values[second % len(values)], number)
        choices = [*values[2:], self.state, self.shift + 1]
        return tuple(choices[index % len(choices)] for index in self.recipe.results)


Step = Callable[[Drawn, Tensor, Tensor, int], list[Tensor]]


def cat_constant(m: Drawn, x: Tensor, y: Tensor, n: int) -> list[Tensor]:
    return [torch.cat([x, m.weight, y, m.weight])[n % 2 : x.shape[0] + n % 2] + torch.cat([m.weight, x])[-1]]


def split(m: Drawn, x: Tensor, y: Tensor, n: int) -> list[Tensor]:
    left, right = x.split(2, 1)
    return [torch.cat([right, left], 1), torch.cat([left, left * y[:, :2]], 1)]


def largest(m: Drawn, x: Tensor, y: Tensor, n: int) -> list[Tensor]:
    values, indices = torch.max(x, 1, keepdim=True)
    return [y - values, y * (indices == n)]


def variance(m: Drawn, x: Tensor, y: Tensor, n: int) -> list[Tensor]:
    variance, mean = torch.var_mean(x, 1, keepdim=True, correction=0)
    return [(x - mean) * torch.rsqrt(variance + 1)]


def change_state(m: Drawn, x: Tensor, y: Tensor, n: int) -> list[Tensor]:
    m.state.mul_(0.5).add_(x.mean(0))
    return []


def change_slice(m: Drawn, x: Tensor, y: Tensor, n: int) -> list[Tensor]:
    m.state[:2].add_(n)
    return [x + m.state]


def replace_other(m: Drawn, x: Tensor, y: Tensor, n: int) -> list[Tensor]:
    m.other.copy_(x.amax(0))
    return []


def in_place(m: Drawn, x: Tensor, y: Tensor, n: int) -> list[Tensor]:
    x.mul_(0.5).add_(y, alpha=n)
    return []


def count_calls(m: Drawn, x: Tensor, y: Tensor, n: int) -> list[Tensor]:
    before = x * m.count
    m.count.add_(1)
    return [before]


def branch(m: Drawn, x: Tensor, y: Tensor, n: int) -> list[Tensor]:
    def when_true(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return torch.sin(a * 2 + b) + c

    def when_false(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return a - torch.cos(b) * n

    return [torch.cond(x.sum() > 0, when_true, when_false, (x, y, m.shift))]


def nested_branch(m: Drawn, x: Tensor, y: Tensor, n: int) -> list[Tensor]:
    def inner(a: Tensor, b: Tensor) -> Tensor:
        return torch.cond(b.sum() > n, lambda c: torch.tanh(c) * 3, lambda c: c + 0.5, (a,)) - b

    return [torch.cond(x.sum() > 0, inner, lambda a, b: torch.sin(a) * b, (x, y))]


# torch.export cannot always loop over an input itself: what is looped over is computed before


def loop(m: Drawn, x: Tensor, y: Tensor, n: int) -> list[Tensor]:
    def body(i: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        return i + 1, torch.sin(t) * 2 + torch.cos(t)

    return [while_loop(lambda i, t: i < n, body, (torch.zeros((), dtype=torch.int64), x * 1.5))[1]]


def over_rows(m: Drawn, x: Tensor, y: Tensor, n: int) -> list[Tensor]:
    return [torch_map(lambda row, w: torch.sin(row) * 2 + w, x * 2, m.shift)]


def along_rows(m: Drawn, x: Tensor, y: Tensor, n: int) -> list[Tensor]:
    return [scan(lambda carry, row: (carry * 0.5 + row, carry + torch.sin(row)), torch.zeros(COLUMNS), x * 0.5)[1]]


STEPS: Mapping[str, Step] = {
    "sin": lambda m, x, y, n: [torch.sin(x)],
    "tanh": lambda m, x, y, n: [torch.tanh(x)],
    "relu": lambda m, x, y, n: [torch.relu(x)],
    "softmax": lambda m, x, y, n: [torch.softmax(x, 1)],
    "gelu": lambda m, x, y, n: [torch.nn.functional.gelu(x)],
    "add": lambda m, x, y, n: [x + y],
    "sub": lambda m, x, y, n: [torch.sub(x, y, alpha=n)],
    "mul": lambda m, x, y, n: [torch.tanh(x) * y],
    "scale": lambda m, x, y, n: [x * (n + 0.5)],
    "clamp": lambda m, x, y, n: [torch.clamp(x, -n, n)],
    "matmul": lambda m, x, y, n: [x @ m.weight],
    "linear": lambda m, x, y, n: [m.linear(x)],
    "tied": lambda m, x, y, n: [x @ m.tied.t()],
    "layer norm": lambda m, x, y, n: [torch.nn.functional.layer_norm(x, (COLUMNS,), m.shift)],
    "fold": lambda m, x, y, n: [x.reshape(-1, 2, 2).transpose(1, 2).reshape(-1, COLUMNS)],
    "roll": lambda m, x, y, n: [torch.cat([x[:, 1:], x[:, :1]], 1)],
    "turn": lambda m, x, y, n: [torch.sin(x.t()).t()],
    "expand": lambda m, x, y, n: [x + y[:, n % COLUMNS : n % COLUMNS + 1].expand(-1, COLUMNS)],
    "select": lambda m, x, y, n: [x + y.select(1, n % COLUMNS).unsqueeze(1)],
    "split": split,
    "largest": largest,
    "topk": lambda m, x, y, n: [torch.topk(x, COLUMNS, 1).values],
    "variance": variance,
    "cat constant": cat_constant,
    "stack": lambda m, x, y, n: [torch.stack([x, m.shift.expand_as(x), y]).sum(0)],
    "index": lambda m, x, y, n: [x[:, torch.tensor([3, 1, 0, 2])]],
    "lifted": lambda m, x, y, n: [x + torch.tensor([1.0, 2.0, 3.0, 4.0])],
    "where": lambda m, x, y, n: [torch.where(x > 0, y, m.shift)],
    "cast": lambda m, x, y, n: [x.to(torch.float64).mul(3).to(torch.float32)],
    "size": lambda m, x, y, n: [x / x.shape[0]],
    "full": lambda m, x, y, n: [x + torch.full((y.shape[0], COLUMNS), n + 0.25)],
    "flatten": lambda m, x, y, n: [torch.sin(x.reshape(x.shape[0] * COLUMNS)).reshape(-1, COLUMNS)],
    "arange": lambda m, x, y, n: [x + torch.arange(x.shape[0]).unsqueeze(1)],
    "read state": lambda m, x, y, n: [x + m.state],
    "read other": lambda m, x, y, n: [x * m.other],
    "change state": change_state,
    "change slice": change_slice,
    "replace other": replace_other,
    "in place": in_place,
    "count": count_calls,
    "branch": branch,
    "nested branch": nested_branch,
    "loop": loop,
    "map": over_rows,
    "scan": along_rows,
}
CONTROL_FLOW = ("branch", "nested branch", "loop", "map", "scan")
PLAIN = [name for name in STEPS if name not in CONTROL_FLOW]


def examples(share: float) -> int:
    """Return a share of the number of examples that the profile says."""
    return max(5, int(share * settings().max_examples))


def recipes(most: int = 8, control_flow: bool = True) -> st.SearchStrategy[Recipe]:
    """Return a strategy for recipes of up to `most` steps; control flow is slow to export, so it is rare."""
    numbers = st.integers(0, 9)
    plain = st.lists(st.tuples(st.sampled_from(PLAIN), numbers, numbers, st.integers(0, 3)), min_size=2, max_size=most)
    control = st.tuples(st.sampled_from(CONTROL_FLOW), numbers, numbers, st.integers(0, 3))
    steps = plain
    if control_flow:
        mixed = st.tuples(plain, control, numbers).map(lambda t: [*t[0][: t[2]], t[1], *t[0][t[2] :]])
        steps = st.one_of(plain, plain, mixed)
    results = st.lists(numbers, min_size=1, max_size=3).map(tuple)
    return st.builds(Recipe, steps.map(tuple), results, st.booleans())


def inputs(recipe: Recipe, call: int) -> tuple[Tensor, Tensor]:
    """Return the inputs of a call; the batch of a dynamic program changes from call to call."""
    generator = torch.Generator().manual_seed(call)
    batch = (3, 5, 2)[call % 3] if recipe.dynamic else 3
    x, y = torch.randn(2, batch, COLUMNS, generator=generator)
    return x - call % 2, y


def exported(recipe: Recipe) -> ExportedProgram:
    """Return a recipe's exported program; one that torch.export itself stumbles over is none to test with."""
    batch = Dim("batch", min=2, max=64)
    shapes = {"x": {0: batch}, "y": {0: batch}} if recipe.dynamic else None
    try:
        return torch.export.export(Drawn(recipe), inputs(recipe, 0), dynamic_shapes=shapes, strict=False)
    except IndexError:  # in torch's solver of size constraints, now and then, with loops
        reject()


def export(recipe: Recipe) -> ExportedProgram:
    """Return a recipe's edge program."""
    return to_edge(exported(recipe))
