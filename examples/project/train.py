"""Train the network on the 8x8 digits that ship with scikit-learn; write the weights and the held-out test split.

    pip install scikit-learn torch safetensors hatch-lower
    python train.py

The split, the seed and the number of threads are fixed: the same torch on the same machine writes the same bytes.
"""

from __future__ import annotations

from pathlib import Path

import torch
from digits.data import BRIGHTEST, read_split
from digits.model import WEIGHTS, DigitNet
from safetensors.torch import save_file
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

TEST_SPLIT = Path(__file__).parent / "data" / "test.safetensors"
SEED = 0
EPOCHS = 60
BATCH = 64


def main() -> None:
    """Split, train, measure, write."""
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)

    digits = load_digits()
    images, held_out, labels, held_out_labels = train_test_split(
        digits.images, digits.target, test_size=360, random_state=SEED, stratify=digits.target
    )
    TEST_SPLIT.parent.mkdir(exist_ok=True)
    save_file({"images": torch.tensor(held_out).byte(), "labels": torch.tensor(held_out_labels).byte()}, TEST_SPLIT)

    net = train(torch.tensor(images).float().unsqueeze(1) / BRIGHTEST, torch.tensor(labels))
    save_file({name: value.contiguous() for name, value in net.state_dict().items()}, WEIGHTS)
    print(f"accuracy on the held-out split: {accuracy(net, *read_split(TEST_SPLIT)):.2%}")


def train(images: Tensor, labels: Tensor) -> DigitNet:
    """Return the network after `EPOCHS` passes over randomly shifted images."""
    net = DigitNet()
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=1e-2)
    steps = EPOCHS * -(-len(images) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=4e-3, total_steps=steps)
    loss_of = nn.CrossEntropyLoss(label_smoothing=0.05)
    for epoch in range(EPOCHS):
        total = 0.0
        for chosen in torch.randperm(len(images)).split(BATCH):
            loss = loss_of(net(shifted(images[chosen])), labels[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.item() * len(chosen)
        if epoch % 10 == 9:
            print(f"epoch {epoch + 1:>3}: loss {total / len(images):.4f}")
    return net.eval()


def shifted(images: Tensor) -> Tensor:
    """Return each image moved by up to one pixel in each direction."""
    padded = nn.functional.pad(images, (1, 1, 1, 1))
    down, right = torch.randint(0, 3, (2,)).tolist()
    return padded[:, :, down : down + 8, right : right + 8]


@torch.no_grad()
def accuracy(net: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Return the fraction of images that the network classifies right."""
    return (net(images).argmax(1) == labels).double().mean().item()


if __name__ == "__main__":
    main()
