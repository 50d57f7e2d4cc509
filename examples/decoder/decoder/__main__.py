"""`python -m decoder TOKEN TOKEN ...`: continue a prompt with the installed, lowered model."""

from __future__ import annotations

import argparse

import torch

import hatch_lower
from hatch_lower.runtime.loaded import LoadedModel


def generate(model: LoadedModel, prompt: list[int], count: int) -> list[int]:
    """Return the `count` tokens with the highest scores, one after the other, that follow a prompt."""
    model.reset()
    scores = model.prefill(torch.tensor([prompt]))
    answer = [int(scores.argmax())]
    while len(answer) < count:
        scores = model.decode(torch.tensor([answer[-1:]]))
        answer.append(int(scores.argmax()))
    return answer


def main() -> None:
    """Print the answer to a prompt."""
    parser = argparse.ArgumentParser(prog="python -m decoder", description="Continue a prompt.")
    parser.add_argument("prompt", type=int, nargs="+", metavar="TOKEN", help="two tokens or more, each 0 to 255")
    parser.add_argument("--count", type=int, default=10, help="how many tokens to generate")
    parser.add_argument("--recipe", help="the lowered variant to run (default: the first that can run here)")
    arguments = parser.parse_args()
    model = hatch_lower.load("decoder", recipe=arguments.recipe)
    print(*generate(model, arguments.prompt, arguments.count))


if __name__ == "__main__":
    main()
