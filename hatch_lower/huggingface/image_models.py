"""Models of timm to export: the method `forward` from images of the checkpoint's size to timm's output."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import timm
import torch
from torch.export import Dim

from hatch_lower.errors import EntryPointError
from hatch_lower.format.timm_config import ARCHITECTURE, image_size
from hatch_lower.huggingface.examples import BATCH, LARGEST_BATCH
from hatch_lower.model import Method, Model

INPUT = "pixel_values"  # the name in `LoadedModel.preprocess`
MOST_NAMES = 5  # in an error


class ImageModel(torch.nn.Module):
    """A model of timm whose `forward` has the name of `preprocess` for its argument."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, pixel_values: torch.Tensor) -> Any:
        return self.inner(pixel_values)


def model_of_images(module: torch.nn.Module, config: Mapping[str, Any], where: str) -> Model:
    """Return a model to export, with the method `forward`: images of shape (batch, channels, height, width).

    Args:
        module: a model of timm in the mode to export.
        config: the configuration of the checkpoint, with the size of images.
        where: the setting, for errors.

    Raises:
        EntryPointError: if the configuration has no possible size.
    """
    try:
        images = torch.randn(BATCH, *image_size(config))
    except (TypeError, ValueError) as error:
        raise EntryPointError(
            "the configuration of the checkpoint has no possible size of images",
            where=where,
            found=f"`input_size`: {error}",
            hint="write `input_size` into `pretrained_cfg` of config.json: channels, height and width",
        ) from error
    batch = Dim("batch", min=1, max=LARGEST_BATCH)
    forward = Method((images,), dynamic_shapes={INPUT: {0: batch}})
    return Model(ImageModel(module).eval(), {"forward": forward})


def loaded_by_timm(folder: Path, config: Mapping[str, Any], where: str) -> torch.nn.Module:
    """Return the model of a checkpoint with `model.safetensors`, in float32.

    Raises:
        EntryPointError: if timm does not know the architecture, cannot make it from the configuration, or if weights
            are missing or spare.
    """
    name = config[ARCHITECTURE]
    if not timm.is_model(name):
        near = ", ".join(f"`{each}`" for each in difflib.get_close_matches(name, timm.list_models()))
        raise EntryPointError(
            f"timm has no architecture `{name}`",
            where=where,
            found=f"timm {timm.__version__}" + (f", with {near}" if near else ""),
            hint="install the version that wrote the checkpoint; code of your own needs an entry point",
        )
    with recorded_loads() as reports:
        try:
            module: torch.nn.Module = timm.create_model(f"local-dir:{folder}", pretrained=True)
        except Exception as error:  # of the architecture's own code, by the arguments in the configuration
            raise EntryPointError(
                f"timm cannot load the checkpoint as `{name}`",
                where=where,
                found=f"{type(error).__name__}: {error}",
                hint="correct `num_classes` and `model_args` in config.json, or save the model again",
            ) from error
    kind = type(module).__name__
    # the weights of a model that timm did not load are random numbers
    missing, spare = reports[-1] if reports else (list(module.state_dict()), [])
    refuse_names(without_weights(module, missing), f"the checkpoint has no weights for parameters of `{kind}`", where)
    refuse_names(spare, f"the checkpoint has weights that `{kind}` does not take", where)
    return module.float()


def without_weights(module: torch.nn.Module, missing: Iterable[str]) -> list[str]:
    """Return the missing names without those of shared weights, which a file may hold under a single name."""
    state = module.state_dict()
    absent = set(missing)
    loaded = {tensor.data_ptr() for name, tensor in state.items() if name not in absent}
    return [name for name in absent if name not in state or state[name].data_ptr() not in loaded]


@contextmanager
def recorded_loads() -> Iterator[list[tuple[list[str], list[str]]]]:
    """Yield a list that gets the missing and the unexpected names of each load of weights, which timm may only log."""
    plain = torch.nn.Module.load_state_dict
    reports: list[tuple[list[str], list[str]]] = []

    def load(module: torch.nn.Module, state: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        report = plain(module, state, strict=False, assign=assign)
        reports.append((report.missing_keys, report.unexpected_keys))
        return report

    with patch.object(torch.nn.Module, "load_state_dict", load):
        yield reports


def refuse_names(names: Iterable[str], what: str, where: str) -> None:
    if found := sorted(names):
        raise EntryPointError(
            what,
            where=where,
            found=", ".join(f"`{name}`" for name in found[:MOST_NAMES]) + (", …" if len(found) > MOST_NAMES else ""),
            hint="correct `num_classes` and `model_args` in config.json, or save the model again",
        )
