"""The tables of the `lower` hook as they stand in TOML, and the reader that checks them.

The dataclasses are the one description of the settings: the reader, the JSON schema and `docs/configuration.md` are
made from their fields, types, limits and the docstring under each field.
"""

from __future__ import annotations

import datetime
import json
import math
import re
import types
from collections.abc import Mapping
from dataclasses import field, fields, is_dataclass
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from hatch_lower.config.card import Author, Card, Dataset
from hatch_lower.errors import nearest
from hatch_lower.frozen import Frozen

REMOTE = {
    # a scheme and a place; an `@` only where it names a container (`abfs://container@account`), never a user
    "pattern": r"(?!https?://[^/]*@)(?![^/]*//[^/]*:[^/]*@)[a-z][a-z0-9+.-]*://\S+",
    "words": "a URL such as `https://cache.example.org` or `s3://bucket/folder`, without a user name or password",
}
MODULE = {"pattern": r"[^\W\d]\w*(\.[^\W\d]\w*)*", "words": "the dotted name of a module"}
PUBLIC_KEY = {
    "pattern": "[A-Za-z0-9+/]{42}[AEIMQUYcgkosw048]=",
    "words": "an ed25519 public key: the base64 of its 32 bytes",
}
RESERVED_KEYS = {
    "dependencies": "Read by hatchling: more build dependencies of the hook.",
    "enable-by-default": "Read by hatchling: whether the hook runs unless it is enabled by environment variable.",
    "require-runtime-dependencies": "Read by hatchling: install the project's dependencies for the build as well.",
    "require-runtime-features": "Read by hatchling: install these extras of the project for the build as well.",
}

Table = TypeVar("Table")


class BackendChoice(Frozen):
    """A backend in a recipe: its name, or a table of the name and the backend's own options."""

    name: str
    """Name of an installed entry point of the group `hatch_lower.backends`."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Every other key of the table; the backend checks them."""


class RecipeTable(Frozen):
    """One more lowered variant of the models. A recipe's name becomes a file name: letters, digits, `_` and `-`."""

    backends: tuple[BackendChoice, ...] | None = None
    """Backends in the order in which they are asked; the first to claim a node gets it. Without
    any it is a portable program."""
    verify: bool | None = None
    """Compare with eager before packaging. Default: the `verify` at the top."""
    rtol: float | None = field(default=None, metadata={"minimum": 0})
    """Relative tolerance of the comparison. Default: the `rtol` at the top."""
    atol: float | None = field(default=None, metadata={"minimum": 0})
    """Absolute tolerance of the comparison. Default: the `atol` at the top."""
    imports: tuple[str, ...] | None = field(default=None, metadata=MODULE)
    """Modules that `load` imports first. Default: the `imports` at the top."""


class ModelTable(Frozen):
    """One model: what differs from the defaults, or a model that is not an entry point of the package."""

    export: str | None = None
    """Where the export callable is, as `module:attribute`. For a model that is not listed under
    `[project.entry-points."hatch_lower.models"]`, so that its export code need not be in the wheel."""
    package: str | None = None
    """Import package that gets this model's files. Default: the `package` at the top."""
    recipes: tuple[str, ...] | None = None
    """The recipes to lower this model for. Default: all."""
    assets: tuple[str, ...] = ()
    """Globs, relative to the project, of files that belong to the model: a tokenizer, labels. They are packaged beside
    it, and a loaded model has their paths: `model.assets["vocab.json"]` is that of `tokenizer/vocab.json` for
    `assets = ["tokenizer/*"]`. A change of one lowers nothing."""
    card: Card = field(default_factory=Card)
    """What is known of the model beside its code, described below: licence, training data, limits."""


class CacheSettings(Frozen):
    """The cache of earlier results, and the one that a team shares."""

    max_gigabytes: float = field(default=10.0, metadata={"minimum": 0})
    """Size, in units of 10⁹ bytes, down to which the cache of this machine is trimmed; what was used least recently
    goes first. What was used in the last hour stays."""
    max_days: int = field(default=60, metadata={"minimum": 1})
    """Days after which a result that no build has used is removed."""
    remote: str | None = field(default=None, metadata=REMOTE)
    """URL of a cache that is shared by a team and its CI: `http://` or `https://` for a server that speaks Bazel's
    HTTP cache protocol, or any other scheme that fsspec knows (`s3://`, `gs://`, `az://`, `file://`). The environment
    variable `HATCH_LOWER_REMOTE_CACHE` comes first. Credentials are never in it: they come from the environment."""
    public_keys: tuple[str, ...] = field(default=(), metadata=PUBLIC_KEY)
    """Base64 of the ed25519 public keys whose signatures are accepted on results from the shared cache."""
    shareable_env: tuple[str, ...] = ()
    """Globs of environment variables whose recorded values may go into the shared cache, as digests: `["MODEL_SIZE"]`.
    Of others only those that are unset can be shared."""


class HookTable(Frozen):
    """The settings of the hook, under `[tool.hatch.build.hooks.lower]`."""

    backends: tuple[BackendChoice, ...] = ()
    """Backends of the recipe `default`, in the order in which they are asked; the first to claim a node gets it. A
    backend is a name, or a table of the name and the backend's own options: `{ name = "aoti", isa = "x86-64-v4" }`.
    Without any it is a portable program of ATen operators, which runs wherever torch does."""
    recipes: Mapping[str, RecipeTable] = field(default_factory=dict)
    """More lowered variants: each model is lowered once for each recipe. All recipes of a model share one file of
    weights."""
    recipe_order: tuple[str, ...] | None = None
    """The order in which `load` tries the recipes; those that are left out come last, by name. Default: `default`,
    then the others by name."""
    models: Mapping[str, ModelTable] = field(default_factory=dict)
    """Settings for single models, by entry-point name; also declares models that are not entry points."""
    package: str | None = None
    """Dotted name of the import package that gets the folder `_lowered`. Default: the top-level package of the entry
    point, or the only package of the wheel."""
    verify: bool = True
    """Compare each lowered method with eager before packaging, on its example inputs, on random inputs and on a second
    size of every dynamic dimension. A mismatch fails the build."""
    rtol: float = field(default=1e-4, metadata={"minimum": 0})
    """Relative tolerance of the comparison, for recipes that set none."""
    atol: float = field(default=1e-5, metadata={"minimum": 0})
    """Absolute tolerance of the comparison, for recipes that set none."""
    imports: tuple[str, ...] = field(default=(), metadata=MODULE)
    """Modules that `load` imports first, because they register operators that the programs call: `["torchao"]`. The
    wheel then requires their distributions. torch's own modules need not be named. From a folder, which may come from
    anywhere, `load` imports nothing: whoever loads one imports them."""
    check: bool = True
    """Package example inputs and eager's outputs (at most 1 MiB for a model), so that an installed program can be
    checked."""
    runtime_requirements: Literal["check", "add", "off"] = "check"
    """What to do about packages that the programs need at run time. `check`: fail unless `[project] dependencies`
    implies them, and print the lines to paste. `add`: append them to the wheel's metadata; the source distribution then
    says something else than the wheel. `off`: nothing."""
    editable: Literal["lower", "eager", "skip"] = "lower"
    """What an editable install gets. `lower`: lowered programs. `eager`: `load` imports the entry point and runs the
    module. `skip`: nothing."""
    inputs: tuple[str, ...] = ()
    """Globs, relative to the project, of files that exports read and that are to be in the source distribution even
    if version control ignores them: weights, most often."""
    pass_env: tuple[str, ...] = ()
    """Globs of environment variables that exports may see: `["HF_*"]`. Without it they see where things are (`PATH`,
    `HOME`, cache folders), what Python and compilers read, and `HATCH_LOWER_*`; locale, time zone, hash seed and the
    number of threads are always the same, and the temporary folder is the build's own."""
    jobs: int = field(default=1, metadata={"minimum": 1})
    """Models that are exported at the same time, each in a process of its own."""
    timeout: int = field(default=3600, metadata={"minimum": 1})
    """Seconds after which the export and lowering of one model is given up."""
    seed: int = field(default=0, metadata={"minimum": 0, "maximum": 2**63 - 1})
    """Seed of Python, NumPy and torch in the exporting process, and of the random inputs of the comparison."""
    strict: bool = False
    """Exports may read what belongs to the project, to installed distributions and to the system, and what `inputs`
    declares; reading any other file is an error that names it. Needs Landlock: Linux 5.13 or newer."""
    cache: CacheSettings = field(default_factory=CacheSettings)
    """Limits of the cache, and the cache that a team shares, described below."""


def toml_key(name: str) -> str:
    """Return the TOML key of a field."""
    return name.replace("_", "-")


def quote_key(key: str) -> str:
    """Return a key as TOML writes it in a dotted path: bare, or quoted where it must be."""
    plain = key.isascii() and key.replace("-", "").replace("_", "").isalnum()
    return key if plain else json.dumps(key, ensure_ascii=False)


def read_table(kind: type[Table], table: object, path: str, problems: list[str]) -> Table:
    """Return `table` as the dataclass `kind`; append a sentence to `problems` for each wrong key or value.

    A wrong value is replaced by the field's default, so that all problems are found in one go.
    """
    if not isinstance(table, Mapping):
        problems.append(f"`{path}` must be a table, found {describe(table)}")
        return kind()
    known = {toml_key(each.name): each for each in fields(kind)}  # type: ignore[arg-type]
    hints = get_type_hints(kind)
    reserved = RESERVED_KEYS if kind is HookTable else {}
    values: dict[str, Any] = {}
    for key, value in table.items():
        here = f"{path}.{quote_key(key)}"
        if key in known:
            name = known[key].name
            parsed = read_value(hints[name], value, here, problems, known[key].metadata)
            if parsed is not None:
                values[name] = parsed
        elif key not in reserved:
            problems.append(f"`{here}` is not a setting, found {describe(value)}; {nearest(key, known)}")
    return kind(**values)


def read_value(hint: Any, value: object, path: str, problems: list[str], limits: Mapping[str, Any]) -> Any:
    """Return one value as its field's type, or `None` (which TOML cannot write) after appending to `problems`."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):  # `T | None`: only T can be written
        return read_value(arguments[0], value, path, problems, limits)
    if origin is tuple:
        if not isinstance(value, list):
            return refuse(f"`{path}` must be an array", value, problems)
        read = (read_value(arguments[0], each, f"{path}[{i}]", problems, limits) for i, each in enumerate(value))
        return tuple(arguments[0]("") if each is None else each for each in read)  # later indices stay right
    if origin is Mapping:
        if not isinstance(value, Mapping):
            return refuse(f"`{path}` must be a table of tables", value, problems)
        kind = arguments[1]
        return {key: read_table(kind, each, f"{path}.{quote_key(key)}", problems) for key, each in value.items()}
    if hint is BackendChoice:
        return read_backend(value, path, problems)
    if hint in (Author, Dataset):
        return read_named(hint, value, path, problems)
    if is_dataclass(hint):
        return read_table(hint, value, path, problems)  # type: ignore[arg-type]
    if origin is Literal:
        if value in arguments:
            return value
        return refuse(f"`{path}` must be one of {', '.join(json.dumps(each) for each in arguments)}", value, problems)
    return read_scalar(hint, value, path, problems, limits)


def read_backend(value: object, path: str, problems: list[str]) -> BackendChoice | None:
    """Return a backend's name, or table of name and options, as a `BackendChoice`."""
    if isinstance(value, str) and value:
        return BackendChoice(value)
    if not isinstance(value, Mapping):
        refuse(f"`{path}` must be a backend's name, or a table with its `name` and options", value, problems)
        return None
    name = value.get("name")
    if not isinstance(name, str) or not name:
        problems.append(f"`{path}.name` must be a backend's name, found {describe(name)}")
        return None
    return BackendChoice(name, {key: each for key, each in value.items() if key != "name"})


def read_named(kind: type[Table], value: object, path: str, problems: list[str]) -> Table | None:
    """Return a table for which its name alone may stand."""
    if not isinstance(value, Mapping):
        value = {"name": value} if isinstance(value, str) and value else value
    if not isinstance(value, Mapping):
        refuse(f"`{path}` must be a name, or a table with a `name`", value, problems)
        return None
    if not isinstance(value.get("name"), str) or not value["name"]:
        refuse(f"`{path}.name` must be a string that is not empty", value.get("name"), problems)
        return None
    return read_table(kind, value, path, problems)


def read_scalar(hint: Any, value: object, path: str, problems: list[str], limits: Mapping[str, Any]) -> Any:
    """Return a string, number or boolean that has the right type and is within its limits."""
    words = {bool: "true or false", int: "an integer", float: "a number", str: "a string that is not empty"}[hint]
    words = limits.get("words", words)
    if hint is float and type(value) is int:
        value = float(value)
    minimum, maximum = limits.get("minimum"), limits.get("maximum")
    if minimum is not None:
        words += f" of at least {minimum}"
    if maximum is not None:
        words += f" and at most {maximum}"
    good = type(value) is hint and value != ""
    if good and isinstance(value, int | float):
        good = math.isfinite(value) and (minimum is None or value >= minimum) and (maximum is None or value <= maximum)
    if good and isinstance(value, str) and "pattern" in limits:
        good = re.fullmatch(limits["pattern"], value) is not None
    if good and isinstance(value, str) and "spdx" in limits:
        value, good = canonical_license(value)
    return value if good else refuse(f"`{path}` must be {words}", value, problems)


def canonical_license(text: str) -> tuple[str, bool]:
    """Return an SPDX expression as SPDX spells it, and whether it is one."""
    from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression  # few tables have any

    try:
        return str(canonicalize_license_expression(text)), True
    except InvalidLicenseExpression:
        return text, False


def refuse(sentence: str, value: object, problems: list[str]) -> Any:
    """Append what was expected and what was found to `problems`; return `None`, which stands for no value."""
    problems.append(f"{sentence}, found {describe(value)}")
    return None


def describe(value: object) -> str:
    """Return a TOML value in a few words."""
    match value:
        case None:
            return "nothing"
        case bool():
            return f"the boolean {str(value).lower()}"
        case int() | float():
            return f"the number {value}"
        case str():
            return f"the string {json.dumps(value if len(value) <= 60 else value[:60] + '…', ensure_ascii=False)}"
        case list():
            return "an array"
        case Mapping():
            return "a table"
        case datetime.date() | datetime.time():
            return "a date or time"
    return f"a value of type {type(value).__name__}"
