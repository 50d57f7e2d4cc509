"""Checkpoints as `save_pretrained` writes them: the model to export, and the files that belong to the model."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hatch_lower.canonical import is_lfs_pointer
from hatch_lower.config.checkpoint import SENTENCES, TIMM, TRANSFORMERS, CheckpointFolder
from hatch_lower.errors import EntryPointError, nearest
from hatch_lower.format.timm_config import ARCHITECTURE, is_timm
from hatch_lower.huggingface.code import CODE, own_class, private_copies, refuse_code, refuse_module_code
from hatch_lower.huggingface.tasks import TASK_CLASSES, lacking_task

if TYPE_CHECKING:
    from hatch_lower.model import Model

CONFIG, MODULES, ADAPTER = "config.json", "modules.json", "adapter_config.json"
# files beside the weights that an application needs: configurations, tokenizer or processor, and the licence
ASSETS = (
    CONFIG,
    *("generation_config.json", "preprocessor_config.json", "processor_config.json"),
    *("tokenizer*.json", "special_tokens_map.json", "added_tokens.json", "vocab.*", "merges.txt", "*.model"),
    *("sentence_bert_config.json", "config_sentence_transformers.json"),
    *("chat_template*", "LICENSE*", "LICENCE*"),
)

WEIGHTS = ("*.safetensors", "*.safetensors.index.json")
WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
WRITERS = {  # the calls that write a checkpoint
    TRANSFORMERS: "model.save_pretrained(folder)",
    TIMM: "timm.models.save_for_hf(model, folder, safe_serialization=True)",
}
PICKLED = ("pytorch_model*.bin", "*.pt", "*.pth", "*.ckpt")
NOT_READ = "pooler."  # parameters of transformers' own pooling: an encoder of sentences pools its tokens itself


def checkpoint_model(checkpoint: CheckpointFolder, root: Path, where: str) -> Model:
    """Return the model of a checkpoint, in float32.

    Args:
        checkpoint: a folder with `config.json` and weights in safetensors files.
        root: the folder of relative folders.
        where: the setting, for errors.

    Raises:
        EntryPointError: if the folder holds no complete checkpoint, needs code that is not trusted, or is of an
            unknown class.
    """
    folder = root / checkpoint.folder
    if checkpoint.library == SENTENCES:
        return encoder_model(folder, where, trusts_code=checkpoint.trusts_code)
    if checkpoint.library == TIMM:
        return timm_model(folder, where)
    with library_needed(TRANSFORMERS, where):
        import transformers
        import transformers.exporters  # since 5.24
    config = read_checkpoint_config(folder, where, trusts_code=checkpoint.trusts_code)
    kinds = classes_of(transformers, config, checkpoint.task, where)

    from torch import float32

    from hatch_lower.huggingface.declare import generator, model

    refuse_other_weights(folder, kinds[0].__name__, where)
    options = {"local_files_only": True, "use_safetensors": True, "dtype": float32, "output_loading_info": True}
    options["ignore_mismatched_sizes"] = True  # transformers' own error names no parameter
    options["trust_remote_code"] = checkpoint.trusts_code
    with private_copies() if checkpoint.trusts_code else nullcontext():
        module, report = first_loaded(kinds, folder, options, lacking_task(config, checkpoint.task, where))
    refuse_missing(report["missing_keys"], type(module), where)
    refuse_other_shapes(report["mismatched_keys"], type(module), where)
    return (generator if module.can_generate() else model)(module.eval())


def encoder_model(folder: Path, where: str, *, trusts_code: bool) -> Model:
    with library_needed(SENTENCES, where):
        from sentence_transformers import SentenceTransformer

    parts = part_folders(folder)
    if not parts:
        raise EntryPointError(
            "the folder holds no encoder of sentence-transformers",
            where=where,
            found=f"no list of modules `{MODULES}` in {folder}",
            hint="name a folder that `encoder.save(folder)` wrote, or use `transformers`",
        )
    if not trusts_code:
        refuse_module_code(folder / MODULES, where)
    read_checkpoint_config(parts[0], where, trusts_code=trusts_code)
    refuse_other_weights(parts[0], "AutoModel", where)
    from torch import float32

    from hatch_lower.huggingface.sentences import inner_model, sentence_model

    options: dict[str, Any] = {"dtype": float32, "use_safetensors": True}
    with private_copies() if trusts_code else nullcontext():
        encoder = SentenceTransformer(
            str(folder), device="cpu", local_files_only=True, model_kwargs=options, trust_remote_code=trusts_code
        )
    kind: Any = type(inner_model(encoder, where))
    _, report = kind.from_pretrained(parts[0], local_files_only=True, output_loading_info=True, **options)
    missing = [name for name in report["missing_keys"] if not name.startswith(NOT_READ)]
    refuse_missing(missing, kind, where)
    return sentence_model(encoder, where)


def timm_model(folder: Path, where: str) -> Model:
    config = read_checkpoint_config(folder, where, TIMM)
    safe = folder / WHOLE  # timm prefers pickles to files of other names
    if not safe.is_file():
        pickle = next(iter(files_like(folder, PICKLED)), safe)
        line = (  # with copies: the weights of a model may be shared, as in CoaT
            "from timm.models import load_state_dict as l; from safetensors.torch import save_file as s;"
            f" s({{k: v.clone() for k, v in l({str(pickle)!r}).items()}}, {str(safe)!r})"
        )
        raise no_safe_weights(folder, [safe.name], line, where)
    with library_needed(TIMM, where):
        from hatch_lower.huggingface.image_models import loaded_by_timm, model_of_images
    return model_of_images(loaded_by_timm(folder, config, where), config, where)


def part_folders(folder: Path) -> list[Path]:
    """Return the folders of an encoder's modules in order; an empty list for a checkpoint that is no encoder."""
    try:
        listed = json.loads((folder / MODULES).read_text(encoding="utf-8"))
        names = [part["path"] for part in listed]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return [folder / name for name in names if isinstance(name, str) and leads_inside(Path(name))]


def leads_inside(path: Path) -> bool:
    return not path.is_absolute() and ".." not in path.parts


def refuse_missing(names: Iterable[str], kind: type, where: str) -> None:
    """Refuse parameters without weights, which transformers fills with random numbers."""
    if missing := sorted(names):
        raise EntryPointError(
            f"the checkpoint has no weights for parameters of `{kind.__name__}`",
            where=where,
            found=", ".join(f"`{name}`" for name in missing[:5]) + (", …" if len(missing) > 5 else ""),
            hint="set the `task` for which the checkpoint was trained, or train the parameters",
        )


def refuse_other_shapes(found: Iterable[tuple[str, Any, Any]], kind: type, where: str) -> None:
    """Refuse weights that do not fit their parameters, which transformers fills with random numbers."""
    if rows := sorted((name, list(stored), list(wanted)) for name, stored, wanted in found):
        raise EntryPointError(
            f"the checkpoint's weights do not fit `{kind.__name__}`",
            where=where,
            found="\n".join(f"`{name}`: {stored}, where the model has {wanted}" for name, stored, wanted in rows[:5])
            + ("\n…" if len(rows) > 5 else ""),
            hint=f"correct the sizes in `{CONFIG}`: it belongs to other weights",
        )


@contextmanager
def library_needed(library: str, where: str) -> Iterator[None]:
    """Raise `EntryPointError` with the library's extra if an import fails."""
    hint = f'add "hatch-lower[{library}]" to `[build-system] requires`'
    try:
        yield
    except (ImportError, RuntimeError) as error:
        if isinstance(error, RuntimeError):  # operators of torchvision that a torch of another build lacks
            hint = "install torch and torchvision of releases that belong together, from the same index"
        raise EntryPointError(
            f"a model of the table `{library}` needs the library",
            where=where,
            found=f"{type(error).__name__}: {error}",
            hint=hint,
        ) from error


def read_checkpoint_config(
    folder: Path, where: str, library: str = TRANSFORMERS, *, trusts_code: bool = False
) -> dict[str, Any]:
    path = folder / CONFIG
    found: dict[str, Any] = {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        reason = "" if isinstance(found, dict) else f"a value of type `{type(found).__name__}`"
        listed = [] if reason else found.get("architectures") or []
        if not isinstance(listed, list) or not all(isinstance(name, str) for name in listed):
            reason = "`architectures` is no list of names"
    except (OSError, ValueError) as error:
        reason = str(error)
    hint = f"name a folder that `{WRITERS[library]}` wrote"
    if not reason and library == TIMM and not is_timm(found):
        reason = f"no `{ARCHITECTURE}`"
    elif not reason and library == TRANSFORMERS and is_timm(found) and "model_type" not in found:
        reason, hint = "a checkpoint of timm", "declare the folder with `timm`"
    elif reason and (folder / ADAPTER).is_file():
        hint = (
            "the folder holds an adapter alone: merge it into its model with `merge_and_unload()` of peft, and save the"
            " model with `save_pretrained`"
        )
    if reason:
        raise EntryPointError(
            f"the folder holds no checkpoint of {library}", where=where, found=f"{path}: {reason}", hint=hint
        )
    refuse_code(found, path, where, trusted=trusts_code)
    return found


def refuse_unknown_task(task: str, where: str) -> None:
    if task and task not in TASK_CLASSES:
        found = f"`{task}`; {nearest(task, TASK_CLASSES)}"
        raise EntryPointError("there is no such task", where=where, found=found, hint="correct the task")


def first_loaded(kinds: Iterable[Any], folder: Path, options: dict[str, Any], lacking: EntryPointError) -> Any:
    """Return the model, and the report of its loading, of the first class that has the checkpoint's architecture."""
    for kind in kinds:
        try:
            return kind.from_pretrained(folder, **options)
        except ValueError as error:
            if "Unrecognized configuration class" not in str(error):
                raise
    raise lacking


def refuse_other_weights(folder: Path, kind: str, where: str) -> None:
    """Refuse a folder without weights in safetensors files, with a part of them, or with damaged files.

    The arguments are those of `names_of_weights`.
    """
    for name in names_of_weights(folder, kind, where):
        refuse_damaged_weights(folder / name, where)


def names_of_weights(folder: Path, kind: str, where: str) -> list[str]:
    """Return the names of the files with the weights; refuse a folder that lacks one.

    Args:
        folder: of a model of transformers.
        kind: the class that loads the weights, for the line that converts pickled ones.
        where: the setting, for errors.
    """
    # the order in which transformers looks for them
    names = [WHOLE] if (folder / WHOLE).is_file() or not (folder / INDEX).is_file() else read_index(folder, where)
    missing = [name for name in names if not (folder / name).is_file()]
    if not missing:
        return names
    place = repr(str(folder))
    line = f"from transformers import {kind} as m; m.from_pretrained({place}).save_pretrained({place})"
    raise no_safe_weights(folder, missing, line if missing == [WHOLE] else "", where)


def no_safe_weights(folder: Path, names: Iterable[str], line: str, where: str) -> EntryPointError:
    """Return the error of a folder without files of weights; `line` is Python that converts pickled weights."""
    pickled = files_like(folder, PICKLED)
    found = f"no file {', '.join(f'`{name}`' for name in names)} in {folder}"
    hint = "copy the weights into the folder; if git keeps them elsewhere, fetch them first"
    if pickled and line:
        found = f"pickled weights alone: {', '.join(f'`{path.name}`' for path in pickled)}"
        hint = f'convert the weights if you trust their author, because a pickle may run code: python -c "{line}"'
    return EntryPointError(
        "a checkpoint must have its weights in safetensors files", where=where, found=found, hint=hint
    )


def missing_weights(folder: Path) -> list[str]:
    """Return the names of weight files that a folder lacks; a pattern if the folder has no file and no index."""
    missing = sorted(name for name in indexed_weights(folder) if not (folder / name).is_file())
    return missing or ([] if files_like(folder, WEIGHTS[:1]) else [WEIGHTS[0]])


def checkpoint_weights(folder: Path) -> list[str]:
    """Return the paths of a checkpoint's weights, relative to its folder: the parts of the index, or whole files."""
    found = []
    for place in (folder, *(part for part in part_folders(folder) if part != folder)):
        names = sorted(indexed_weights(place)) or [WHOLE] * (place / WHOLE).is_file()
        paths = [place / name for name in names] or files_like(place, WEIGHTS[:1])
        found += [path.relative_to(folder).as_posix() for path in paths]
    return found


def indexed_weights(folder: Path) -> set[str]:
    """Return the names of the files in the index of a checkpoint in parts; none without an index."""
    try:
        index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
        return {str(name) for name in index["weight_map"].values()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return set()


def read_index(folder: Path, where: str) -> list[str]:
    """Return the names of the files in the index of a checkpoint in parts."""
    path = folder / INDEX
    try:
        names = sorted({str(name) for name in json.loads(path.read_text(encoding="utf-8"))["weight_map"].values()})
        reason = "" if names else "no file"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        names, reason = [], f"{type(error).__name__}: {error}"
    if reason:
        raise EntryPointError(
            "the list of a checkpoint's weights cannot be read",
            where=where,
            found=f"{path}: {reason}",
            hint="save the checkpoint again with `save_pretrained`",
        )
    return names


def refuse_damaged_weights(path: Path, where: str) -> None:
    """Refuse a file whose head does not describe the file's bytes."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy"):
            return
    except (SafetensorError, OSError) as error:
        is_pointer = is_lfs_pointer(path)
        raise EntryPointError(
            "a file of weights is damaged",
            where=where,
            found=f"{path}: " + ("a pointer of Git LFS, not the file itself" if is_pointer else str(error)),
            hint="run `git lfs pull`"
            if is_pointer
            else "copy the file again, as a whole, or save the checkpoint again",
        ) from error


def classes_of(transformers: Any, config: dict[str, Any], task: str, where: str) -> list[Any]:
    refuse_unknown_task(task, where)
    names = TASK_CLASSES[task] if task else own_class(config) or (config.get("architectures") or [])[:1]
    if not names or not isinstance(names[0], str):
        raise EntryPointError(
            "the task of the checkpoint is not known",
            where=where,
            found="`config.json` has no `architectures`",
            hint='set `task`, such as "text-classification"',
        )
    kinds = [kind for name in names if (kind := getattr(transformers, name, None)) is not None]
    if not kinds:
        raise EntryPointError(
            f"transformers has no class `{names[0]}`",
            where=where,
            found=f"transformers {transformers.__version__}",
            hint="install the version that wrote the checkpoint, or set `task`",
        )
    return kinds


def checkpoint_assets(folder: Path) -> list[Path]:
    """Return the files of a checkpoint that are packaged beside the programs."""
    return files_like(folder, ASSETS)


def damaged_assets(paths: Iterable[Path]) -> Iterator[tuple[Path, str]]:
    """Yield each JSON file that no application can read from the wheel, and the reason."""
    for path in paths:
        if path.suffix == ".json" and not is_lfs_pointer(path):
            try:
                json.loads(path.read_bytes())
            except ValueError as error:
                yield path, str(error)


def checkpoint_files(folder: Path, *, code: bool = False) -> list[Path]:
    """Return the files of a checkpoint that a build needs, without the rest of a training.

    Args:
        folder: of the checkpoint.
        code: whether the build runs the checkpoint's code.
    """
    return files_like(folder, (*ASSETS, *WEIGHTS, MODULES, *([CODE] if code else []))) + [
        path for part in part_folders(folder) if part != folder for path in files_like(part, (*ASSETS, *WEIGHTS))
    ]


def files_like(folder: Path, patterns: Iterable[str]) -> list[Path]:
    return sorted({path for pattern in patterns for path in folder.glob(pattern) if path.is_file()})
