"""The tables of the `lower` hook as they stand in TOML.

The dataclasses are the one description of the settings: the reader, the JSON schema and `docs/configuration.md` are
made from their fields, types, limits and the docstring under each field.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import field
from typing import Any, Literal

from hatch_lower.config.bench_tables import BenchTable
from hatch_lower.frozen import Frozen

REMOTE = {
    # a scheme and a place without `::`; an `@` only where it names a container (`abfs://container@account`), no user
    "pattern": r"(?!https?://[^/]*@)(?![^/]*//[^/]*:[^/]*@)(https?|file|s3|gs|az|abfss?)://"
    r"(\[[0-9A-Fa-f:.]+\])?((?!::)[^\s?#])+",
    "words": "a URL such as `https://cache.example.org` or `s3://bucket/folder`, without a user name or password",
}
MODULE = {"pattern": r"[^\W\d]\w*(\.[^\W\d]\w*)*", "words": "the dotted name of a module"}
PUBLIC_KEY = {
    "pattern": "[A-Za-z0-9+/]{42}[AEIMQUYcgkosw048]=",
    "words": "an ed25519 public key: the base64 of its 32 bytes",
}
IN_A_FILE = "file"  # what `weights` says where the build is to write a file beside the wheel
WEIGHTS = {"single": True, "weights": True}
CARD = {
    # relative, and not out of the project
    "pattern": r"(?!/|([^/]*/)*\.\./)[^\\:]+\.json",
    "words": "a JSON file of the project, such as `card.json`",
}
VERIFY_INPUTS = {
    # relative, and not out of the project
    "pattern": r"((?!/|([^/]*/)*\.\./)[^\\:]+\.safetensors|[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*)",
    "words": "a safetensors file of the project, such as `samples.safetensors`, or a function, as `module:function`",
}
LEAST = {"minimum": 0}
EXECUTOR = {
    "pattern": r"(local|(dask|ray)(:\S+)?|[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*)",
    "words": '"local", "dask", "dask:ADDRESS", "ray", "ray:ADDRESS" or "module:factory"',
}
RTOL, ATOL = 1e-4, 1e-5
RESERVED_KEYS = {
    "dependencies": "Read by hatchling: more build dependencies of the hook.",
    "enable-by-default": "Read by hatchling: whether the hook runs unless it is enabled by environment variable.",
    "require-runtime-dependencies": "Read by hatchling: install the project's dependencies for the build as well.",
    "require-runtime-features": "Read by hatchling: install these extras of the project for the build as well.",
}


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
    rtol: float | None = field(default=None, metadata=LEAST)
    """Relative tolerance of the comparison. Default: the `rtol` at the top."""
    atol: float | None = field(default=None, metadata=LEAST)
    """Absolute tolerance of the comparison. Default: the `atol` at the top."""
    on_mismatch: Literal["leave-out", "fail"] | None = None
    """What a wrong operation of a backend leads to. Default: the `on-mismatch` at the top."""
    torch_free: bool | None = None
    """Whether it must run without torch. Default: the `torch-free` at the top."""
    extra: str | None = None
    """The extra of the project (`[project.optional-dependencies]`) that brings what this recipe requires beyond
    `[project] dependencies`: torch, for a portable one beside one of an engine. `load` takes a recipe whose
    requirements are installed."""


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
    weights: tuple[str, ...] | None = field(default=None, metadata=WEIGHTS)
    """Where this model's weights are, if the wheel is not to hold them; `[]` packages them. Default: the `weights` at
    the top."""
    verify_inputs: str | None = field(default=None, metadata=VERIFY_INPUTS)
    """Real inputs on which every recipe is compared with eager, too: a safetensors file of the project
    (`samples.safetensors`), or a function of a module (`digits.data:samples`) that is called with the name of each
    method and returns its inputs. Eager must run on all of them."""
    card: str | None = field(default=None, metadata=CARD)
    """JSON file of the project with the model's card: the object `modelCard` of CycloneDX, with the training data, the
    limits and more. The card goes into the wheel's SBOM. A change of the file exports and lowers nothing."""


class CacheSettings(Frozen):
    """The cache that a team shares."""

    remote: str | None = field(default=None, metadata=REMOTE)
    """URL of a cache that is shared by a team and its CI: `http://` or `https://` for a server that speaks Bazel's
    HTTP cache protocol, or `s3://`, `gs://`, `az://`, `abfs://`, `abfss://` or `file://`. The environment
    variable `HATCH_LOWER_REMOTE_CACHE` comes first. Credentials are never in it: they come from the environment."""
    public_keys: tuple[str, ...] = field(default=(), metadata=PUBLIC_KEY)
    """Base64 of the ed25519 public keys whose signatures are accepted on results from the shared cache."""


class HookTable(Frozen):
    """The settings of the hook, under `[tool.hatch.build.hooks.lower]`."""

    backends: tuple[BackendChoice, ...] = ()
    """Backends of the recipe `default`, in the order in which they are asked; the first to claim a node gets it. A
    backend is a name, or a table of the name and the backend's own options: `{ name = "aoti", isa = "x86-64-v4" }`.
    Without any it is a portable program of ATen operators, which runs wherever torch does."""
    recipes: Mapping[str, RecipeTable] = field(default_factory=dict)
    """More lowered variants: each model is lowered once for each recipe. `load` tries the recipes in the order in which
    their tables are written, and `default` first unless a table `recipes.default` has another place. All recipes of a
    model share one file of weights."""
    models: Mapping[str, ModelTable] = field(default_factory=dict)
    """Settings for single models, by entry-point name; also declares models that are not entry points."""
    package: str | None = None
    """Dotted name of the import package that gets the folder `_lowered`. Default: the innermost package with an
    `__init__.py` that holds the entry point's module, or else the only package of the wheel: a namespace package may be
    another distribution's as well."""
    verify: bool = True
    """Compare each lowered method with eager before packaging: on its example inputs, on random ones of a second, the
    smallest (0, too) and a large size of every dynamic dimension, on equal numbers and zeros, on integers at their
    limits, and on the model's `verify-inputs`. A large size is the largest for which the method takes and computes at
    most 16,384 elements, or half as many as for the example. `on-mismatch` says
    what a mismatch leads to."""
    rtol: float = field(default=RTOL, metadata=LEAST)
    """Relative tolerance of the comparison in float32, for recipes that set none. For an output that is computed from
    numbers in half precision, the tolerance is 100 (float16) or 400 (bfloat16) times as wide."""
    atol: float = field(default=ATOL, metadata=LEAST)
    """Absolute tolerance of the comparison in float32, for recipes that set none; widened as `rtol` is."""
    on_mismatch: Literal["leave-out", "fail"] = "leave-out"
    """What a backend leads to that computes an operation wrongly, refuses an operation that its partitioner took, or
    fails when it runs. `leave-out`: the operation is left out of that backend's partitions, torch computes the
    operation, and the build says so; at most 8 times for a recipe. `fail`: the build fails. Whatever no single
    operation leads to, and a mismatch of a recipe without backends, fails the build in any case."""
    imports: tuple[str, ...] = field(default=(), metadata=MODULE)
    """Modules that `load` imports first, because they register operators that the programs call: `["torchao"]`. The
    wheel then requires their distributions. torch's own modules need not be named. From a folder, which may come from
    anywhere, `load` imports nothing: whoever loads one imports them."""
    weights: tuple[str, ...] = field(default=(), metadata=WEIGHTS)
    """URLs of published safetensors files whose bytes the wheel need not hold: `https://…`, `s3://…`, `gs://…`,
    `az://…`, `abfs://…`, or `hf://org/name@<commit>/model.safetensors` with the 40 digits of a commit; a wheel has of a
    `file://…` the name alone. A tensor of a program
    whose bytes stand in one of them is mapped from there, whatever its name; what they lack stays in the wheel, and the
    build says how much and why. `"file"` alone: what the wheel does not hold is written into a file beside it, to be
    uploaded. No URL holds credentials: those come from the environment of whoever downloads."""
    keep_weights: bool = False
    """Package weights that the lowered programs hold as well. By default the wheel leaves out a safetensors file whose
    tensors are all in the programs; whoever runs the module itself from the installed package keeps them."""
    torch_free: bool = False
    """Promise that programs run where torch is not installed, on NumPy's arrays: the build fails if an operation is
    left that needs torch, and names it. Without this setting, too, a recipe requires no torch if its engine takes all
    but views and sizes."""
    check_megabytes: float = field(default=1.0, metadata=LEAST)
    """Megabytes that the check data of a model may take: example inputs and eager's outputs, with which
    `hatch-lower check` checks an installed program. Of larger example inputs the first rows are packaged, if the first
    dimension is dynamic. With 0 the wheel has no check data."""
    runtime_requirements: Literal["check", "add", "off"] = "check"
    """Packages that the programs need at run time, and `[project] dependencies`. `check`: a package that is missing
    there, or of which no needed version is allowed, fails the build, and the error has the lines to paste; a bound that
    is missing is appended to the wheel's metadata, with a note. `add`: missing packages are appended as well. `off`:
    neither. Requirements that are appended are not in the source distribution."""
    editable: Literal["lower", "known", "eager", "skip"] = "lower"
    """What an editable install gets. `lower`: lowered programs, in the minutes that lowering takes; most frontends show
    no progress then. `eager`: `load` imports the entry point and runs the module. `known`: lowered programs if the
    cache has these for all models as they are now, else as `eager`, in seconds; `load` warns of it. `skip`: nothing."""
    inputs: tuple[str, ...] = ()
    """Globs, relative to the project, of files that exports read and that are to be in the source distribution even
    if version control ignores them: weights, most often."""
    pass_env: tuple[str, ...] = ()
    """Globs of environment variables that exports may see: `["HF_*"]`. Without it they see where things are (`PATH`,
    `HOME`, cache folders), what Python and compilers read, and `HATCH_LOWER_*`; locale, time zone, hash seed and the
    number of threads are always the same, and the temporary folder is the build's own. An export fails that asks for a
    variable which is set where the build was started, and which is not named here: if the project's own code asks for
    the variable, or a library that is not known to ask for settings of its own only, as torch is. Results in a shared
    cache hold plain sha256 digests of the variables named here that an export read, but for names such as `*TOKEN*`,
    `*SECRET*`, `*PASSWORD*` and `*KEY*`."""
    jobs: int = field(default=1, metadata={"minimum": 1})
    """Models that are exported at the same time, each in a process of its own."""
    executor: str = field(default="local", metadata=EXECUTOR)
    """What lowers the models: `local`, this machine; `dask` or `dask:ADDRESS`, a scheduler of Dask; `ray` or
    `ray:ADDRESS`, a cluster of Ray; or `module:factory`, a function that returns a `concurrent.futures.Executor`, or
    an executor of submitit. Their workers make recipes, and the build here puts them together: the wheel is the same.
    Without an address a cluster of `jobs` workers is started for the build. The variable `HATCH_LOWER_EXECUTOR` is
    stronger than the setting."""
    timeout: int = field(default=3600, metadata={"minimum": 1})
    """Seconds after which the export and lowering of one model is given up."""
    strict: bool = False
    """Exports may read what belongs to the project, to installed distributions and to the system, and what `inputs`
    declares; reading any other file is an error that names it. Needs Landlock: Linux 5.13 or newer."""
    cache: CacheSettings = field(default_factory=CacheSettings)
    """The cache that a team shares, described below."""
    bench: BenchTable = field(default_factory=BenchTable)
    """What `hatch-lower bench` measures, and how much worse a model may become, described below."""


def toml_key(name: str) -> str:
    return name.replace("_", "-")


def quote_key(key: str) -> str:
    """Return a key as TOML writes it in a dotted path: bare, or quoted where it must be."""
    plain = key.isascii() and key.replace("-", "").replace("_", "").isalnum()
    return key if plain else json.dumps(key, ensure_ascii=False)
