"""Import the project's module, call the entry point, and check the returned model; hints for the most frequent
errors of entry points.
"""

from __future__ import annotations

import importlib
import inspect
import keyword
import os
import pkgutil
import socket
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from urllib.parse import urlsplit

import torch
from torch.export import ExportedProgram

from hatch_lower.canonical import is_lfs_pointer
from hatch_lower.config.checkpoint import checkpoint_of
from hatch_lower.config.settings import HOOK_PATH
from hatch_lower.errors import EntryPointError, LowerError, nearest
from hatch_lower.frozen import Frozen
from hatch_lower.model import Method, Model
from hatch_lower.pipeline.exceptions import (
    chain_of,
    describe_exception,
    message_of,
    refuse_out_of_memory,
    relative_to_roots,
    user_line,
)
from hatch_lower.runtime.eager import programs_of_exporter

NO_CUDA = (
    *("not compiled with CUDA", "No CUDA GPUs", "NVIDIA driver", "no NVIDIA GPU", "CUDA-capable device"),
    *("deserialize object on a CUDA device", "CUDA driver"),
)
NO_CONNECTION = frozenset({"ConnectError", "ConnectTimeout", "LocalEntryNotFoundError", "OfflineModeIsEnabled"})
OFFLINE = "HF_HUB_OFFLINE"  # of `huggingface_hub.constants`
CONNECTIONS = (ConnectionError, socket.gaierror, TimeoutError)


def hint_for(error: BaseException, setting: str) -> str:
    """Return a hint for an error of an entry point; empty if the error is not a known kind.

    `setting` is the setting that names the entry point, or empty for a model's.
    """
    for each in chain_of(error):
        text = message_of(each)
        if any(words in text for words in NO_CUDA):
            return (
                "models are lowered on the CPU, and the build machine may have no GPU: create the module and its"
                ' examples on the CPU (no `.cuda()`, no `device="cuda"`), and load weights with `map_location="cpu"`'
            )
        if "loading state_dict for" in text:
            return (
                "the file has weights of another module than the entry point makes: compare the names and shapes above;"
                " names that begin with `module.` were saved from `DataParallel`, names with `_orig_mod.` from"
                " `torch.compile`"
            )
        if type(each).__name__ in NO_CONNECTION or isinstance(each, CONNECTIONS):
            return (
                f"{f'the function of `{setting}`' if setting else 'the entry point'} could not reach a server: download"
                " the files before the build, into a folder that `inputs` names, and load from that folder"
                + ("" if setting else " (`from_pretrained(folder)`)")
            )
    return ""


@contextmanager
def without_connection() -> Iterator[None]:
    """Put an imported Hugging Face library into offline mode if the address of its server cannot be resolved."""
    # the library would try each file for half a minute; offline, files in its cache are still found
    constants = sys.modules.get("huggingface_hub.constants")
    if constants is None or has_connection(getattr(constants, "ENDPOINT", "")):
        yield
        return
    before = getattr(constants, OFFLINE, False)
    setattr(constants, OFFLINE, True)
    try:
        yield
    finally:
        setattr(constants, OFFLINE, before)


def has_connection(url: str) -> bool:
    """Return whether the address of a URL's server can be resolved, without contact; true behind a proxy."""
    host = urlsplit(url).hostname
    if not host or any(name.lower() in ("https_proxy", "http_proxy", "all_proxy") for name in os.environ):
        return True
    try:
        socket.getaddrinfo(host, 443)
    except OSError:
        return False
    return True


Exports = Model | dict[str, ExportedProgram]

ACCEPTED = (
    "return a `hatch_lower.Model`, a tuple `(module, example_args)`, a `torch.export.ExportedProgram`,"
    " a dict of method name to `ExportedProgram`, or an `ExportedModel` of transformers' `DynamoExporter`"
)


class EntryPoint(Frozen):
    model: str
    export: str  # `module:attribute`, where the attribute may be dotted
    root: Path  # the project's root; source lines are relative to the root
    import_roots: tuple[Path, ...] = ()  # the directories on `sys.path` that hold the project's modules
    # names of build hooks that run after `lower`, whose files do not exist yet
    later_hooks: tuple[str, ...] = ()
    setting: str = ""  # the setting with this entry point, if the entry point is not a model's
    checkpoint: Path | None = None  # on this machine, for a checkpoint of the hub

    def roots(self) -> tuple[Path, ...]:
        return (self.root, *self.import_roots)

    def where(self, line: str = "") -> str:
        subject = f"`{self.setting} = {self.export}`" if self.setting else f"entry point `{self.model} = {self.export}`"
        if (checkpoint := checkpoint_of(self.export)) is not None:
            subject = checkpoint.where(self.model)
        return f"{subject}, {line}" if line else subject


def discover(entry: EntryPoint) -> Exports:
    """Import the entry point's module, call the entry point, and return a `Model`, or a dict of programs by method."""
    export = checked_callable(find_value(entry), entry)
    try:
        with without_connection():
            value = export()
    except (LowerError, KeyboardInterrupt):
        raise
    except BaseException as error:
        is_checkpoint = checkpoint_of(entry.export) is not None
        what = "the checkpoint could not be loaded" if is_checkpoint else "the entry point failed"
        raise raised_error(error, entry, what) from error
    return checked_exports(value, entry)


def find_value(entry: EntryPoint) -> object:
    if (checkpoint := checkpoint_of(entry.export)) is not None:
        from hatch_lower.huggingface.checkpoint import checkpoint_model

        if entry.checkpoint is not None:
            checkpoint = replace(checkpoint, folder=str(entry.checkpoint))
        return partial(checkpoint_model, checkpoint, entry.root, entry.where())
    module_name, colon, attributes = (part.strip() for part in entry.export.partition(":"))
    attributes = attributes.partition("[")[0].strip()  # extras have no meaning for an export
    names = [*module_name.split("."), *attributes.split(".")]
    if not colon or not all(name.isidentifier() and not keyword.iskeyword(name) for name in names):
        raise EntryPointError(
            "an entry point is written `module:attribute`", where=entry.where(), found=f"`{entry.export}`"
        )
    value: object = import_module(module_name, entry)
    owner = module_name
    for name in attributes.split("."):
        try:
            value = getattr(value, name)
        except AttributeError:
            raise EntryPointError(
                f"`{owner}` has no attribute `{name}`", where=entry.where(), hint=suggestion(name, public_names(value))
            ) from None
        owner = f"{owner}.{name}"
    return value


def import_module(name: str, entry: EntryPoint) -> ModuleType:
    try:
        return importlib.import_module(name)
    except (LowerError, KeyboardInterrupt):
        raise
    except ModuleNotFoundError as error:
        if not error.name:  # raised by a library, with its own message
            raise raised_error(error, entry, f"importing `{name}` failed") from error
        missing = error.name
        if name == missing or name.startswith(f"{missing}."):
            raise EntryPointError(
                f"there is no module `{missing}`",
                where=entry.where(),
                found=searched(entry),
                hint=joined(suggestion(missing, sibling_modules(missing, entry)), later_hooks_hint(entry)),
            ) from error
        own = missing.partition(".")[0] == name.partition(".")[0]
        requires = f"if `{missing}` is a library, add the library to `[build-system] requires`"
        raise EntryPointError(
            f"importing `{name}` failed: there is no module `{missing}`",
            where=entry.where(user_line(error, entry.roots())),
            hint=joined("" if own else requires, later_hooks_hint(entry)) or "check the name that is imported",
        ) from error
    except BaseException as error:
        raise raised_error(error, entry, f"importing `{name}` failed") from error


def raised_error(error: BaseException, entry: EntryPoint, what: str) -> EntryPointError:
    refuse_out_of_memory(error)
    files = named_files(error)
    pointer = next((path for path in files if is_lfs_pointer(path)), None)
    missing = next((path for path in files if not path.exists()), None)
    hint = ""
    if pointer is not None:
        hint = (
            f"`{relative_to_roots(pointer, entry.roots())}` is a Git LFS pointer, not the file itself;"
            " run `git lfs pull`"
        )
    elif isinstance(error, FileNotFoundError) and missing is not None and is_inside(missing, entry):
        name = relative_to_roots(missing, entry.roots())
        hint = joined(
            f"`{name}` is missing; an sdist leaves out the files that git ignores: if the wheel is built from an sdist,"
            f' name the hook\'s table `[{HOOK_PATH}]`, which sdists read too, and write `inputs = ["{name}"]` there',
            later_hooks_hint(entry),
        )
    elif isinstance(error, ImportError):
        hint = later_hooks_hint(entry)
    hint = hint or hint_for(error, entry.setting)
    return EntryPointError(
        what, where=entry.where(user_line(error, entry.roots())), found=describe_exception(error), hint=hint
    )


def checked_callable(value: object, entry: EntryPoint) -> Callable[[], object]:
    if isinstance(value, (torch.nn.Module, Model, ExportedProgram)) or not callable(value):
        raise EntryPointError(
            "an entry point must be a function without arguments",
            where=entry.where(),
            found=f"`{entry.export}` is {describe_returned(value)}",
            hint=f"define a function that builds the model; {ACCEPTED}",
        )
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return value
    try:
        signature.bind()
    except TypeError as error:
        raise EntryPointError(
            "an entry point must be callable without arguments",
            where=entry.where(),
            found=f"`{entry.export}{signature}`: {error}",
            hint="give the parameters defaults, or wrap the function in a function without arguments",
        ) from None
    return value


def checked_exports(value: object, entry: EntryPoint) -> Exports:
    value = programs_of_exporter(value)
    if isinstance(value, ExportedProgram):
        return {"forward": value}
    if isinstance(value, Mapping) and value and all(isinstance(program, ExportedProgram) for program in value.values()):
        return dict(value)
    if isinstance(value, (tuple, list)) and len(value) == 2 and isinstance(value[0], torch.nn.Module):
        module, args = value
        if not isinstance(args, (tuple, list)):
            raise refused_value(entry, value, "`example_args` must be a tuple: `(module, (tensor,))`")
        return Model(module, {"forward": Method(args=tuple(args))})
    if isinstance(value, Model):
        check_declared_model(value, entry)
        return value
    hint = ACCEPTED
    if isinstance(value, torch.nn.Module):
        hint = f"a module alone lacks example inputs; {ACCEPTED}"
    raise refused_value(entry, value, hint)


def check_declared_model(model: Model, entry: EntryPoint) -> None:
    if not isinstance(model.module, torch.nn.Module):
        raise refused_value(entry, model.module, "give `Model` a `torch.nn.Module`", "`Model.module`")
    if not isinstance(model.methods, Mapping) or not model.methods:
        raise refused_value(entry, model.methods, "give `Model` a dict of method name to `Method`", "`Model.methods`")
    for name, method in model.methods.items():
        where = f"method `{name}`"
        if not isinstance(method, Method):
            raise refused_value(entry, method, "give `Model` a dict of method name to `Method`", where)
        if not isinstance(method.args, (tuple, list)):
            raise refused_value(entry, method.args, "write a tuple: `Method(args=(tensor,))`", f"{where}, `args`")
        if not isinstance(method.kwargs, Mapping):
            raise refused_value(entry, method.kwargs, "write a dict: `Method(kwargs={...})`", f"{where}, `kwargs`")


def refused_value(entry: EntryPoint, value: object, hint: str, part: str = "") -> EntryPointError:
    where = entry.where(part)
    return EntryPointError(
        "the entry point returned a value that cannot be exported",
        where=where,
        found=describe_returned(value),
        hint=hint,
    )


def describe_returned(value: object) -> str:
    name = f"`{type(value).__name__}`"
    if value is None or isinstance(value, (bool, int, float, str)):
        return f"{value!r}"[:80]
    if not isinstance(value, (tuple, list, Mapping)):
        return f"a value of type {name}"
    kinds = [f"`{type(member).__name__}`" for member in (value.values() if isinstance(value, Mapping) else value)]
    return f"a {name} of {', '.join(kinds[:5])}{', …' if len(kinds) > 5 else ''}" if kinds else f"an empty {name}"


def named_files(error: BaseException) -> list[Path]:
    """Return the files that an exception names, then the files among the local variables of its frames."""
    # loaders of weights raise errors without the file's name ("header too large"), so the frames are searched
    files: list[Path] = []
    filename = getattr(error, "filename", None)
    if isinstance(filename, (str, Path)) and not isinstance(error, SyntaxError):
        files.append(Path(filename))
    message = message_of(error)
    for frame, _ in reversed(list(traceback.walk_tb(error.__traceback__))):
        for value in frame.f_locals.values():
            if isinstance(value, Path) or (isinstance(value, str) and 0 < len(value) < 1024 and "\n" not in value):
                path = Path(value)
                if str(value) in message or is_lfs_pointer(path):
                    files.append(path)
    return files


def is_inside(path: Path, entry: EntryPoint) -> bool:
    try:
        return any(path.absolute().is_relative_to(root.absolute()) for root in entry.roots())
    except OSError:  # the working directory was removed
        return False


def sibling_modules(name: str, entry: EntryPoint) -> list[str]:
    parent, dot, _ = name.rpartition(".")
    if not dot:
        return [info.name for info in pkgutil.iter_modules([str(root) for root in entry.import_roots])]
    try:
        package = importlib.import_module(parent)
    except ImportError:
        return []
    return [f"{parent}.{info.name}" for info in pkgutil.iter_modules(getattr(package, "__path__", []))]


def public_names(value: object) -> list[str]:
    # for a module, only its own definitions: an imported name is not an entry point
    names = [name for name in dir(value) if not name.startswith("_")]
    if not isinstance(value, ModuleType):
        return names
    return [name for name in names if getattr(getattr(value, name, None), "__module__", "") == value.__name__]


def suggestion(name: str, known: list[str]) -> str:
    return nearest(name, known) if known else "there is no other name: define this name, or correct the spelling"


def searched(entry: EntryPoint) -> str:
    roots = [relative_to_roots(root, (entry.root,)) for root in entry.import_roots]
    return "looked in " + ", ".join(f"`{root}`" for root in roots) if roots else ""


def later_hooks_hint(entry: EntryPoint) -> str:
    # a later hook may write the missing file
    if not entry.later_hooks:
        return ""
    names = ", ".join(f"`{name}`" for name in entry.later_hooks)
    plural = len(entry.later_hooks) > 1
    return (
        f"build hook{'s' if plural else ''} {names} run{'' if plural else 's'} after `lower` and may write the missing"
        f" file; list {'these hooks' if plural else 'the hook'} before `lower` in pyproject.toml"
    )


def joined(*hints: str) -> str:
    return "; ".join(hint for hint in hints if hint)
