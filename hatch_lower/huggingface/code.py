"""Code in checkpoints: refused without the setting `trust-remote-code`, and run from copies that end with the process.

transformers imports copies of such code, by default from a folder in the user's cache.
"""

from __future__ import annotations

import atexit
import importlib
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hatch_lower.errors import EntryPointError

CODE = "**/*.py"
OWN_MODULES = "sentence_transformers."  # prefix of the classes that the library brings
COPIES = "hatch-lower-code-"  # prefix of folders with copies
PACKAGE = "transformers_modules"  # the package of the copies, named by transformers
ANOTHER_REPOSITORY = "--"  # in `org/name--modeling.Net`


def code_of(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the classes of a checkpoint's own code, by the class of transformers that loads each."""
    listed = config.get("auto_map")
    if not isinstance(listed, dict):
        return {}
    return {name: value for name, value in listed.items() if isinstance(value, str)}


def own_class(config: Mapping[str, Any]) -> list[str]:
    """Return the names of transformers' classes that load the architecture of a configuration from its own code."""
    architecture = next(iter(config.get("architectures") or []), None)
    return [
        name
        for name, value in code_of(config).items()
        if name.startswith("AutoModel") and value.rpartition(".")[2] == architecture
    ]


def refuse_code(config: Mapping[str, Any], path: Path, where: str, *, trusted: bool) -> None:
    """Refuse code in a checkpoint that is not trusted, and trusted code in another repository."""
    if not (listed := config.get("auto_map")):
        return
    if not trusted:
        raise untrusted_code(f"`auto_map` in {path}: {', '.join(map(str, listed))}", where)
    elsewhere = sorted(value for value in code_of(config).values() if ANOTHER_REPOSITORY in value)
    if elsewhere:
        raise EntryPointError(
            "the code of the checkpoint is in another repository, of which no commit is known",
            where=where,
            found=f"`auto_map` in {path}: {', '.join(elsewhere)}",
            hint="copy the checkpoint and its code into a folder of the project, and name the classes without"
            f" `org/name{ANOTHER_REPOSITORY}`",
        )


def refuse_module_code(modules: Path, where: str) -> None:
    """Refuse modules of an encoder whose classes are not those of sentence-transformers."""
    listed = json.loads(modules.read_text(encoding="utf-8"))
    kinds = [str(part.get("type")) for part in listed]
    if other := [kind for kind in kinds if not kind.startswith(OWN_MODULES)]:
        raise untrusted_code(f"classes in {modules}: {', '.join(other)}", where)


def untrusted_code(found: str, where: str) -> EntryPointError:
    return EntryPointError(
        "the checkpoint brings code of its own, which a build does not run",
        where=where,
        found=found,
        hint="read the code; if you trust the code, set `trust-remote-code = true`, or import the code in an entry"
        " point and return `hatch_lower.huggingface.model(module)`",
    )


@contextmanager
def private_copies() -> Iterator[None]:
    """Let transformers keep its copies of code in a temporary folder: the user's cache stays as it is."""
    from transformers import dynamic_module_utils

    owner: Any = dynamic_module_utils
    # transformers registers an imported model for its class of configurations, and prefers the model from then on, also
    # to changed code: a load imports all classes anew
    for name in [name for name in sys.modules if name.startswith(f"{PACKAGE}.")]:
        del sys.modules[name]
    before, path = owner.HF_MODULES_CACHE, list(sys.path)
    owner.HF_MODULES_CACHE = str(copies_folder())
    try:
        yield
    finally:
        owner.HF_MODULES_CACHE = before
        sys.path[:] = path  # source lines are relative to the entries, and the folder of copies is named by chance


def copies_folder() -> Path:
    """Return the folder for copies; the same for all models of a process, because their package has one place."""
    package = sys.modules.get(PACKAGE)
    if package is None:
        folder = tempfile.mkdtemp(prefix=COPIES)
        atexit.register(shutil.rmtree, folder, ignore_errors=True)  # the code may import more of the copies in a call
        Path(folder, PACKAGE).mkdir()
        Path(folder, PACKAGE, "__init__.py").touch()
        sys.path.insert(0, folder)
        try:
            package = importlib.import_module("transformers_modules")  # `PACKAGE`
        finally:
            sys.path.remove(folder)
    return Path(package.__path__[0]).parent
