"""The tables of the hook `lower` in TOML, with the tables of `hatch-lower bench`. The dataclasses are the only
description of the settings: the reader, the JSON schema and `docs/configuration.md` are made from the fields,
their types, limits and docstrings. A field of a table of `bench` is `None` where the table lacks the setting:
then a less specific table decides, and at last the `default` in the field's metadata.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import field
from typing import Any, Literal

from hatch_lower.frozen import Frozen

SHARE = {"minimum": 0, "maximum": 1}
ANY_FINITE = 1e300
GROWTH = {
    "pattern": r"[0-9]+(\.[0-9]+)?(%| ?(B|kB|MB|GB|KiB|MiB|GiB))",
    "words": "a share such as `5%`, or a size such as `200 kB` or `1.5 MiB`",
}


class MethodLimits(Frozen):
    """Ways of calling methods, and limits of the calls. Of the tables for a method, the last in this order that sets a
    limit decides: `bench`, `bench.recipes.<name>`, `bench.models.<name>`, `bench.models.<name>.recipes.<name>`,
    `bench.models.<name>.methods.<name>`.

    A is the measured side, B the side to compare with. A limit against B judges only where B exists."""

    max_call_ratio: float | None = field(default=None, metadata={"minimum": 0, "default": 1.05})
    """Time of a call of A, divided by the time of B."""
    max_instructions_ratio: float | None = field(default=None, metadata={"minimum": 0, "default": 1.02})
    """Instructions of a call, and of a load, of A, divided by the number of B; where the machine can count
    instructions. In the table of a method the limit is for calls only."""
    max_delegated_loss: float | None = field(default=None, metadata={**SHARE, "default": 0.05})
    """Share of operations in delegates in B, less the share in A: 0.05 allows 90 % where B has 95 %."""
    min_delegated: float | None = field(default=None, metadata=SHARE)
    """Share of A's operations that are in delegates, from 0 to 1."""
    max_kernels: int | None = field(default=None, metadata={"minimum": 0})
    """Kernels in A's native code."""
    max_error: float | None = field(default=None, metadata={"minimum": 0, "default": ANY_FINITE})
    """Largest absolute difference between A's outputs and eager's. The default allows any finite difference. Outputs of
    another shape or dtype, or with NaN where eager has none, are beyond every limit."""
    sizes: tuple[Mapping[str, int], ...] | None = field(default=None, metadata={"minimum": 1})
    """Sizes for the calls, each a table of dynamic dimensions: `[{batch = 1}, {batch = 32}]`. A method takes the
    dimensions that it has, and the sizes of its example inputs for the rest; `{}` is the example inputs. Default: only
    the example inputs."""
    threads: tuple[int, ...] | None = field(default=None, metadata={"minimum": 1, "default": (1,)})
    """Numbers of threads with which each size is called."""


class RecipeLimits(MethodLimits):
    """Limits that do not depend on the method. The same tables can contain these limits, except
    `bench.models.<name>.methods.<name>`."""

    max_load_ratio: float | None = field(default=None, metadata={"minimum": 0, "default": 1.10})
    """Time of a load of A in a fresh process, divided by the time of B. Differences of up to 5 ms are ignored."""
    max_memory_ratio: float | None = field(default=None, metadata={"minimum": 0, "default": 1.10})
    """Memory that loading and calling A takes, divided by the memory of B. Differences of up to 4 MiB are ignored."""


class ModelLimits(RecipeLimits):
    """Settings of a single model. The table can also contain the settings of recipes and of methods."""

    recipes: Mapping[str, RecipeLimits] = field(default_factory=dict)
    """Settings of recipes and of methods, for the model lowered for a recipe."""
    methods: Mapping[str, MethodLimits] = field(default_factory=dict)
    """Settings of methods, for a method of the model in every recipe."""


class BenchTable(RecipeLimits):
    """Measurements of `hatch-lower bench`, and limits for the change of a model. The settings shape no program: a
    change exports and lowers nothing. The table can also contain the settings of recipes and of methods below."""

    max_wheel_growth: str | None = field(default=None, metadata={**GROWTH, "default": "5%"})
    """Growth of A's wheel over B's: a share (`"5%"`) or a size (`"200 kB"`, `"1.5 MiB"`). The units are `B`, `kB`, `MB`
    and `GB` in powers of 1000, `KiB`, `MiB` and `GiB` in powers of 1024."""
    budget: int = field(default=120, metadata={"minimum": 1, "maximum": 86_400})
    """Seconds for timing. A comparison that is open by then is "not decided"."""
    recipes: Mapping[str, RecipeLimits] = field(default_factory=dict)
    """Settings of recipes and of methods, for a recipe in all models."""
    models: Mapping[str, ModelLimits] = field(default_factory=dict)
    """Settings of single models, described below."""


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
IN_A_FILE = "file"  # as `weights`: the build writes a file beside the wheel
ON_THE_HUB = "hub"  # as `weights`: the files of the model's checkpoint
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
CHECKPOINT = {
    # relative, not out of the project, and no glob
    "pattern": r"(?!/|([^/]*/)*\.\.(/|$))[^\\:#*?\[\]]+",
    "words": "a folder of the project, such as `models/reviews`, or `org/name@<commit>` of the Hugging Face hub",
}
TASK = {"pattern": "[a-z0-9-]+", "words": "a task of transformers, such as `text-classification`"}
LEAST = {"minimum": 0}
FUNCTION = {
    "pattern": r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*",
    "words": "a function, as `module:function`",
}
MAX_DROP = 0.01
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
    """Every other key of the table; the backend checks them. `option_files` replaces files by their contents."""


Precision = Literal["float32", "bfloat16", "float16", "int8", "int8-weights", "int4-weights"]


class RecipeTable(Frozen):
    """Another lowered variant of the models. The name of a recipe becomes a file name: letters, digits, `_` and `-`."""

    backends: tuple[BackendChoice, ...] | None = None
    """Backends, asked in this order; the first backend that claims an operation gets the operation. Without backends
    the recipe is a portable program."""
    verify: Literal[True, False, "required", "interpret"] | None = None
    """Compare with eager before packaging. Default: the `verify` at the top."""
    rtol: float | None = field(default=None, metadata=LEAST)
    """Relative tolerance of the comparison. Default: the `rtol` at the top."""
    atol: float | None = field(default=None, metadata=LEAST)
    """Absolute tolerance of the comparison. Default: the `atol` at the top."""
    on_mismatch: Literal["leave-out", "fail"] | None = None
    """Reaction to a wrong operation of a backend. Default: the `on-mismatch` at the top."""
    torch_free: bool | None = None
    """Whether the recipe must run without torch. Default: the `torch-free` at the top."""
    precision: Precision | None = None
    """Precision in which the recipe computes. `"float32"`, the default, leaves the model's own dtypes. `"bfloat16"` and
    `"float16"`: the operations that PyTorch's autocast computes in this dtype, while norms and softmax stay in float32.
    `"int8"`: weights and activations, as the model's `calibrate` shows the activations' ranges, or from the ranges in
    each call without `calibrate`. `"int8-weights"`, `"int4-weights"`: the weights alone, which shrink the wheel.
    Modules that the file `precision.toml` lists stay in float32; `hatch-lower precision` finds and writes the list."""
    max_drop: float | None = field(default=None, metadata=LEAST)
    """Largest drop of the model's `metric` from eager to this recipe. Default: the `max-drop` of the model.
    Refused if no model of the recipe has a `metric`."""
    extra: str | None = None
    """Extra of the project (`[project.optional-dependencies]`) with the requirements of this recipe beyond
    `[project] dependencies`: torch, for a portable recipe beside a recipe of an engine. `load` takes a recipe whose
    requirements are installed."""


class ModelTable(Frozen):
    """Settings of a model that differ from the defaults; also declares a model that is not an entry point of the
    package."""

    export: str | None = None
    """The export callable, as `module:attribute`, of a model that is not listed under
    `[project.entry-points."hatch_lower.models"]`. Its export code need not be in the wheel."""
    transformers: str | None = field(default=None, metadata=CHECKPOINT)
    """Folder of the project with a checkpoint of transformers, as `save_pretrained` writes it, in place of `export`; or
    a checkpoint of the Hugging Face hub, as `org/name@<commit>` with the 40 digits of a commit. The model has the
    method `forward`, with batch and sequence of any size. Configuration, tokenizer and licence become assets. The build
    needs `hatch-lower[transformers]`, an installed wheel does not."""
    task: str | None = field(default=None, metadata=TASK)
    """Task of the checkpoint, by transformers' name: `text-classification`. Default: the class that wrote the
    checkpoint decides."""
    sentence_transformers: str | None = field(default=None, metadata=CHECKPOINT)
    """Folder of the project with an encoder of sentence-transformers, or `org/name@<commit>` of the Hugging Face hub,
    in place of `export`. The method `forward` takes tokens, and returns the embeddings of the sentences: pooling and
    normalization are part of the method. Otherwise as `transformers`; the build needs
    `hatch-lower[sentence-transformers]`."""
    trust_remote_code: bool = False
    """Run the Python code in the checkpoint, which `auto_map` in its `config.json` names, in the build. Default: such a
    checkpoint is refused. The code may do anything that the build's user may do: read the code first. The installed
    wheel does not contain the code."""
    timm: str | None = field(default=None, metadata=CHECKPOINT)
    """Folder of the project with a checkpoint of timm, as `save_for_hf(…, safe_serialization=True)` writes it, or
    `org/name@<commit>` of the Hugging Face hub, in place of `export`. The method `forward` takes `pixel_values`, images
    of the checkpoint's size in a batch of any size. Configuration and licence become assets. The build needs
    `hatch-lower[timm]`."""
    package: str | None = None
    """Import package that gets the model's files. Default: the `package` at the top."""
    recipes: tuple[str, ...] | None = None
    """Recipes for which the model is lowered. Default: all."""
    assets: tuple[str, ...] = ()
    """Globs, relative to the project, of files that belong to the model: a tokenizer, labels. The wheel has these
    files, and a loaded model has their paths: with `assets = ["tokenizer/*"]`, `model.assets["vocab.json"]` is the path
    of `tokenizer/vocab.json`. A change of an asset lowers nothing."""
    weights: tuple[str, ...] | None = field(default=None, metadata=WEIGHTS)
    """Files with weights that the wheel need not contain, for this model; `[]` packages all weights. Default: the
    `weights` at the top."""
    verify_inputs: str | None = field(default=None, metadata=VERIFY_INPUTS)
    """Real inputs on which every recipe is compared with eager, besides generated inputs: a safetensors file of the
    project (`samples.safetensors`), or a function (`digits.data:samples`) that is called with the name of each method
    and returns the inputs of that method. Eager must run on all real inputs."""
    calibrate: str | None = field(default=None, metadata=VERIFY_INPUTS)
    """Real inputs from which recipes with `precision = "int8"` take the ranges of activations: a safetensors file of
    the project, or a function, as for `verify-inputs`."""
    metric: str | None = field(default=None, metadata=FUNCTION)
    """Function (`digits.data:accuracy`) that is called with a model, whose methods are called as an installed model's,
    and returns a number: higher is better. The build calls the function with eager and with every packaged recipe, and
    fails where the number of a recipe is lower than eager's by more than `max-drop`."""
    max_drop: float | None = field(default=None, metadata=LEAST)
    """Largest drop of `metric` from eager to a recipe, in the unit of the metric. Default: 0.01. Refused without a
    `metric`."""
    card: str | None = field(default=None, metadata=CARD)
    """JSON file of the project with the model's card: the object `modelCard` of CycloneDX, with the training data, the
    limits and more. The card goes into the wheel's SBOM. A change of the file exports and lowers nothing."""


class CacheSettings(Frozen):
    """Cache that a team and its CI share."""

    remote: str | None = field(default=None, metadata=REMOTE)
    """URL of the shared cache: `http://` or `https://` for a server with Bazel's HTTP cache protocol, or `s3://`,
    `gs://`, `az://`, `abfs://`, `abfss://` or `file://`. The environment variable `HATCH_LOWER_REMOTE_CACHE` replaces
    the setting. The URL contains no credentials: they come from the environment."""
    public_keys: tuple[str, ...] = field(default=(), metadata=PUBLIC_KEY)
    """Base64 of the ed25519 public keys whose signatures are accepted on results from the shared cache."""


class HookTable(Frozen):
    """The settings of the hook, under `[tool.hatch.build.hooks.lower]`."""

    backends: tuple[BackendChoice, ...] = ()
    """Backends of the recipe `default`, asked in this order; the first backend that claims an operation gets the
    operation. A backend is a name, or a table of the name and the backend's own options: `{ name = "aoti", isa =
    "x86-64-v4" }`. An option `{ file = "kernels.json" }` has the contents of this JSON file of the project, which a
    source distribution contains. Without backends the recipe is a portable program of ATen operators, which runs
    wherever torch does."""
    recipes: Mapping[str, RecipeTable] = field(default_factory=dict)
    """More lowered variants: each model is lowered for each recipe. `load` tries the recipes in the order in which
    their tables are written, and `default` first unless a table `recipes.default` has another place. All recipes of a
    model share a file of weights."""
    order: Literal["written", "measured"] = "written"
    """Order in which `load` tries the recipes. `"written"`: the order of their tables. `"measured"`: the fastest recipe
    first, by the measurements for the instruction set level of the processor where `load` runs; recipes without
    measurements for the processor come last, as written. The build reads the measurements from `lowering-times.json`
    beside pyproject.toml, which `hatch-lower tune --write` writes, and fails if a recipe was not measured with its
    present settings. A source distribution contains the file. A change of the file lowers nothing."""
    models: Mapping[str, ModelTable] = field(default_factory=dict)
    """Settings of single models, by entry-point name; also declares models that are not entry points."""
    package: str | None = None
    """Dotted name of the import package that gets the folder `_lowered`. Default: the innermost package with an
    `__init__.py` that contains the entry point's module; else the only package of the wheel, since a namespace package
    may belong to another distribution as well."""
    verify: Literal[True, False, "required", "interpret"] = True
    """Compare each lowered method with eager before packaging: on its example inputs; on random inputs of a second, the
    smallest (also 0) and a large size of every dynamic dimension; on equal numbers and zeros; on integers at their
    limits; and on the model's `verify-inputs`. The large size is the largest for which the method takes and computes at
    most 16,384 elements, or half as many as for the example. `on-mismatch` sets the reaction to a mismatch. Where the
    build's machine lacks the device of a recipe, a GPU for example, the recipe is built and not compared: the build
    warns, and manifest, `hatch-lower inspect` and SBOM say so. `"required"`: a recipe that the build cannot compare
    fails the build. `"interpret"`: without the device, the program runs on the CPU, and the kernels for GPUs are
    interpreted: a mismatch fails the build, and the recipe still reads as not compared, since the machine code has not
    run. Only the backend `cuda` can be interpreted."""
    rtol: float = field(default=RTOL, metadata=LEAST)
    """Relative tolerance of the comparison in float32, for recipes that set none. For an output that is computed from
    numbers in half precision, the tolerance is 100 (float16) or 400 (bfloat16) times as wide."""
    atol: float = field(default=ATOL, metadata=LEAST)
    """Absolute tolerance of the comparison in float32, for recipes that set none; widened as `rtol` is."""
    on_mismatch: Literal["leave-out", "fail"] = "leave-out"
    """Reaction to a backend that computes an operation wrongly, refuses an operation that its partitioner took, or
    fails at run time. `leave-out`: the operation is left out of the backend's partitions, torch computes the operation,
    and the build reports so; at most 8 times for a recipe. `fail`: the build fails. A mismatch that no single operation
    causes, and a mismatch of a recipe without backends, fails the build in any case."""
    imports: tuple[str, ...] = field(default=(), metadata=MODULE)
    """Modules that `load` imports first, because they register operators that the programs call: `["torchao"]`. The
    wheel then requires the distributions of the modules. torch's own modules need not be named. When loading from a
    folder, `load` imports nothing, because the folder may be untrusted: import the modules yourself."""
    weights: tuple[str, ...] = field(default=(), metadata=WEIGHTS)
    """URLs of published safetensors files with weights that the wheel need not contain: `https://…`, `s3://…`,
    `gs://…`, `az://…`, `abfs://…`, or `hf://org/name@<commit>/model.safetensors` with the 40 digits of a commit; of a
    `file://…` the wheel has the name alone. A tensor of a program whose bytes are in such a file is mapped from the
    file, whatever its name. Other tensors stay in the wheel, and the build reports how much and why. `"file"` alone:
    the build writes the weights into a file beside the wheel, to be uploaded. `"hub"` alone: the files of the model's
    checkpoint, which `transformers = "org/name@<commit>"` names. A URL contains no credentials: they come from the
    environment of the download."""
    keep_weights: bool = False
    """Package weights that the lowered programs contain as well. By default the wheel leaves out a safetensors file
    whose tensors are all in the programs. Set it if users run the module itself from the installed package."""
    variants: bool = False
    """Write wheel variants; experimental, since PEP 825 is a draft. Each instruction set level of the recipes has a
    wheel with the recipes for the level and the recipes without native code. The null variant has the latter alone, as
    has the wheel without a label, for installers without variants. `NAME-VERSION-variants.json` lists the variants for
    the index. Every model needs a recipe without native code, and a model with native code a recipe for each level. An
    editable install has all recipes. The variable `HATCH_LOWER_VARIANTS`, `on` or `off`, is stronger than the
    setting."""
    torch_free: bool = False
    """Require programs that run without torch, on NumPy's arrays: the build fails at an operation that needs torch, and
    names the operation. A recipe also works without torch, even when this is false, if its engine takes every operation
    except views and size arithmetic."""
    check_megabytes: float = field(default=1.0, metadata=LEAST)
    """Megabytes that the check data of a model may take: example inputs and eager's outputs, for `hatch-lower check`.
    Of larger example inputs the first rows are packaged, if the first dimension is dynamic. With 0 the wheel has no
    check data."""
    runtime_requirements: Literal["check", "add", "off"] = "check"
    """Packages that the programs need at run time, compared with `[project] dependencies`. `check`: a package that is
    missing there, or whose needed versions are excluded, fails the build, and the error has the lines to paste; a
    missing bound is appended to the wheel's metadata, with a note. `add`: missing packages are appended as well. `off`:
    no check and no addition. A source distribution lacks the appended requirements."""
    editable: Literal["lower", "known", "eager", "skip"] = "lower"
    """Contents of an editable install. `lower`: lowered programs, in the minutes that lowering takes; most frontends
    show no progress then. `eager`: `load` imports the entry point and runs the module. `known`: lowered programs if the
    cache has all models in their present state, else as `eager`, in seconds; `load` warns of it. `skip`: no models."""
    inputs: tuple[str, ...] = ()
    """Globs, relative to the project, of files that exports read, most often weights. A source distribution contains
    the files even if version control ignores them."""
    pass_env: tuple[str, ...] = ()
    """Globs of environment variables that exports may see: `["HF_*"]`. Without the setting exports see the places of
    things (`PATH`, `HOME`, cache folders), variables of Python and compilers (also `CUDA_HOME`),
    `CUDA_VISIBLE_DEVICES`, and `HATCH_LOWER_*`; locale, time zone, hash seed and number of threads are always the same,
    and the temporary folder is the build's own. An export fails that asks for a variable which is set where the build
    was started, and which is not named here: if the project's own code asks for the variable, or a library that is not
    known to ask for its own settings only, as torch is. Results in a shared cache contain plain sha256 digests of the
    named variables that an export read, but for names such as `*TOKEN*`, `*SECRET*`, `*PASSWORD*` and `*KEY*`."""
    jobs: int = field(default=1, metadata={"minimum": 1})
    """Models that are exported at the same time, each in a process of its own."""
    executor: str = field(default="local", metadata=EXECUTOR)
    """The executor of units: `local`, this machine; `dask` or `dask:ADDRESS`, a scheduler of Dask; `ray` or
    `ray:ADDRESS`, a cluster of Ray; or `module:factory`, a function that returns a `concurrent.futures.Executor`, or
    an executor of submitit. Their workers make recipes, and the build here puts them together: the wheel is the same.
    Without an address a cluster of `jobs` workers is started for the build. The variable `HATCH_LOWER_EXECUTOR` is
    stronger than the setting."""
    timeout: int = field(default=3600, metadata={"minimum": 1})
    """Limit in seconds for the export and lowering of a model."""
    strict: bool = False
    """Refuse reads of undeclared files: exports may read files of the project, of installed distributions and of the
    system, and files that `inputs` declares. The error names the file. Requires Landlock: Linux 5.13 or newer."""
    cache: CacheSettings = field(default_factory=CacheSettings)
    """Cache that a team shares, described below."""
    bench: BenchTable = field(default_factory=BenchTable)
    """Measurements and limits of `hatch-lower bench`, described below."""


def toml_key(name: str) -> str:
    return name.replace("_", "-")


def quote_key(key: str) -> str:
    """Return a key in the form of a dotted path of TOML: bare, or in quotes where TOML requires quotes."""
    plain = key.isascii() and key.replace("-", "").replace("_", "").isalnum()
    return key if plain else json.dumps(key, ensure_ascii=False)
