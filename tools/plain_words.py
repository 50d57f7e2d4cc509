"""Count words that stand in place of a noun in docstrings, comments and pages.

    python tools/plain_words.py FOLDER_OR_FILE...
    python tools/plain_words.py --worst 30 FOLDER_OR_FILE...    also print the sentences with the largest share

Python files are read for docstrings and comments, Markdown files for all text outside of code blocks. Words inside of
backticks do not count. `tests/core/test_language.py` holds the limits.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

PLACEHOLDERS = frozenset(
    ["it", "none", "nothing", "one", "others", "such", "them", "these", "those", "what", "whatever", "whoever"]
)
PRAGMA = re.compile(r"#\s*(noqa|type:|pragma|!)")
BREAK = re.compile(r"(?<=[.;:])\s+|\n\n")
CODE_BLOCK = re.compile(r"```.*?```", re.DOTALL)
RELATIVE_START = re.compile(r"(Return |Yield |Give |Say )?(what|those|that which)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Sentence:
    path: Path
    text: str

    @property
    def words(self) -> list[str]:
        return re.findall(r"[a-z']+", re.sub(r"`[^`]*`", " ", self.text).lower())

    @property
    def placeholders(self) -> int:
        return sum(word in PLACEHOLDERS for word in self.words)

    @property
    def share(self) -> float:
        """The share of placeholders, damped for short sentences."""
        return self.placeholders / (len(self.words) + 4)


@dataclass(frozen=True, slots=True)
class Rates:
    """Words per 1,000, and sentences."""

    words: int
    what: float
    placeholders: float
    relative_starts: int


def sentences_in(paths: Sequence[Path]) -> Iterator[Sentence]:
    for root in paths:
        files = [root] if root.is_file() else sorted(root.rglob("*"))
        for path in files:
            if "vendor" in path.parts:
                continue
            if path.suffix == ".py":
                texts = texts_of_code(path.read_text(encoding="utf-8"))
            elif path.suffix == ".md":
                texts = iter([CODE_BLOCK.sub(" ", path.read_text(encoding="utf-8"))])
            else:
                continue
            for text in texts:
                yield from (Sentence(path, part.strip()) for part in BREAK.split(text) if part.strip())


def texts_of_code(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
            yield ast.get_docstring(node) or ""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not PRAGMA.match(token.string):
            yield token.string.lstrip("# ")


def rates_of(sentences: Sequence[Sentence]) -> Rates:
    words = sum(len(sentence.words) for sentence in sentences)
    scale = 1000 / max(words, 1)
    return Rates(
        words=words,
        what=scale * sum(sentence.words.count("what") for sentence in sentences),
        placeholders=scale * sum(sentence.placeholders for sentence in sentences),
        relative_starts=sum(RELATIVE_START.match(sentence.text) is not None for sentence in sentences),
    )


def main(arguments: Sequence[str]) -> None:
    shown = 0
    if arguments[:1] == ["--worst"]:
        shown, arguments = int(arguments[1]), arguments[2:]
    for argument in arguments:
        sentences = list(sentences_in([Path(argument)]))
        rates = rates_of(sentences)
        print(
            f"{argument}: {rates.words} words; per 1,000: what {rates.what:.1f}, all {rates.placeholders:.1f}; "
            f"sentences that begin with what or those: {rates.relative_starts}"
        )
        for sentence in sorted(sentences, key=lambda sentence: -sentence.share)[:shown]:
            print(f"  {sentence.path}: {' '.join(sentence.text.split())[:200]}")


if __name__ == "__main__":
    main(sys.argv[1:])
