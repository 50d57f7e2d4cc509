"""The card of a model as it stands in TOML: what is known of it beside its code. The wheel's SBOM passes it on."""

from __future__ import annotations

from dataclasses import field
from typing import Literal

from hatch_lower.frozen import Frozen

LICENSE = {"spdx": True, "words": "an SPDX expression such as `Apache-2.0`, or `LicenseRef-…` for any other licence"}
SHA256 = {"pattern": "[0-9a-f]{64}", "words": "a sha256: 64 hexadecimal digits in lower case"}
LINK = {
    # as REMOTE, and without what no URL may hold
    "pattern": r"(?![^/]*//[^/]*@)[A-Za-z][A-Za-z0-9+.-]*:([^\s<>\"{}|\\^`\[\]%#]|%[0-9A-Fa-f]{2})+"
    r"(#([^\s<>\"{}|\\^`\[\]%#]|%[0-9A-Fa-f]{2})*)?",
    "words": "a URL such as `https://example.org/data`, without a user name or password",
}


class Author(Frozen):
    """Who made a model: a name, or a table of name and address."""

    name: str
    """A person or an organisation."""
    email: str | None = field(default=None, metadata={"pattern": r"[^\s@<>]+@[^\s@<>]+", "words": "an email address"})
    """Where they can be reached."""


class Dataset(Frozen):
    """What a model was trained on: a name, or a table of the name and what else is known of it."""

    name: str
    """The dataset's name, with its version where it has one."""
    description: str | None = None
    """What it holds, and which part of it was used."""
    license: str | None = field(default=None, metadata=LICENSE)
    """SPDX expression of its licence, as in `[project] license`."""
    url: str | None = field(default=None, metadata=LINK)
    """Where it is, or is described."""
    sha256: str | None = field(default=None, metadata=SHA256)
    """Of the file that was used."""


class Card(Frozen):
    """What is known of a model beside its code. It is passed through into the wheel's SBOM, and shapes no program: a
    change of it exports and lowers nothing."""

    description: str | None = None
    """What the model does, in a few sentences."""
    license: str | None = field(default=None, metadata=LICENSE)
    """SPDX expression of the licence of the weights, as in `[project] license`."""
    authors: tuple[Author, ...] = ()
    """Who made the model: names, or tables such as `{ name = "First team", email = "first@example.org" }`."""
    task: str | None = None
    """What the model is for: `image-classification`, say."""
    family: str | None = None
    """The family of its architecture: `convolutional neural network`, say. The class itself is recorded anyway."""
    approach: (
        Literal["supervised", "unsupervised", "reinforcement-learning", "semi-supervised", "self-supervised"] | None
    ) = None
    """How it was trained."""
    datasets: tuple[Dataset, ...] = ()
    """What it was trained on: names, or tables such as `{ name = "digits", license = "CC-BY-4.0" }`."""
    intended_uses: tuple[str, ...] = ()
    """What it is meant to be used for."""
    limitations: tuple[str, ...] = ()
    """Where it is known to fail."""
    ethical_considerations: tuple[str, ...] = ()
    """What its use puts at risk."""
    references: tuple[str, ...] = field(default=(), metadata=LINK)
    """URLs of papers, of a longer model card, of the code that trained it."""
