"""The result of `load`: a callable model with its methods."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import hatch_lower
from hatch_lower.errors import InputError, ProgramError, nearest
from hatch_lower.frozen import Frozen

if TYPE_CHECKING:
    from hatch_lower.format.debug_map import DebugMap, MethodDebug
    from hatch_lower.format.plan import Plan
    from hatch_lower.runtime.arrays import Arrays
    from hatch_lower.runtime.executor import Runnable
    from hatch_lower.runtime.generation.calls import LanguageModel
    from hatch_lower.runtime.texts import TextReader


GENERATING = frozenset(("start", "decode"))  # methods of a language model


class Provenance(Frozen):
    name: str
    recipe: str  # `eager` in an editable install that runs the module itself
    recipes: tuple[str, ...]  # of the model, in load order
    read_debug: Callable[[], DebugMap]
    load_recipe: Callable[[str], LoadedModel]  # loads another recipe of the model over the same mapped constants
    assets: Mapping[str, Path]
    source: str | Path  # the installed model, `distribution:model`, or the model's folder
    arrays: str  # the library whose arrays methods take and return


class LoadedModel:
    """A loaded model: `model(x)` calls the method `forward`, `model.embed(x)` or `model["embed"](x)` another method.

    Methods check their arguments and raise `InputError` (a `TypeError`) for arguments that the export does not cover.
    Several threads may call a model at once; if the model has state, its calls wait for each other.
    """

    def __init__(self, runnable: Runnable, provenance: Provenance) -> None:
        self._runnable = runnable
        self._provenance = provenance
        self._reader: TextReader | None = None  # made by the first text
        methods = runnable.methods
        # a partial, not a bound method of this object, which would be a reference cycle
        self._call = methods.get("forward") or functools.partial(refuse_method, provenance.name, methods, "forward")
        self.__dict__.update({name: method for name, method in methods.items() if name not in RESERVED_METHOD_NAMES})

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the method `forward`.

        A model of transformers takes the whole output of its tokenizer or processor: arguments that the method does
        not have are left out if they change no result, such as an `attention_mask` of ones.
        """
        try:
            return self._call(*args, **kwargs)
        except InputError:
            if not (spare := self._spare(kwargs)):
                raise
        return self._call(*args, **{name: value for name, value in kwargs.items() if name not in spare})

    def __getitem__(self, method: str) -> Callable[..., Any]:
        self._check_method(method)
        return self._runnable.methods[method]

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)
        raise AttributeError(f"model `{self.name}` has no attribute or method `{name}`; {nearest(name, self.methods)}")

    def __repr__(self) -> str:
        return f"<LoadedModel `{self.name}`, recipe `{self.recipe}`: {', '.join(self.methods)}>"

    def __reduce__(self) -> tuple[Any, ...]:
        # the receiving process loads the model again, by name or path; state is not sent
        if self._runnable.has_changed():
            raise ProgramError(
                f"model `{self.name}` cannot be sent to another process",
                found="state that calls may have changed; only the packaged state can be sent",
                hint="send the model before the first call or after `reset()`, or call `load` in the other process",
            )
        return load_again, (self._provenance.source, self.recipe, self.arrays, self.device)

    def __copy__(self) -> LoadedModel:
        return LoadedModel(self._runnable, self._provenance)

    def __deepcopy__(self, memo: dict[int, Any]) -> LoadedModel:
        return self.clone()

    @property
    def name(self) -> str:
        """The model's name."""
        return self._provenance.name

    @property
    def recipe(self) -> str:
        """The name of the loaded recipe."""
        return self._provenance.recipe

    @property
    def recipes(self) -> tuple[str, ...]:
        """The names of the model's recipes, in load order."""
        return self._provenance.recipes

    @property
    def arrays(self) -> str:
        """The library whose arrays methods take and return: `torch` or `numpy`."""
        return self._provenance.arrays

    @property
    def device(self) -> str:
        """The device that the recipe computes on: `cpu`, or `cuda:0` for the first GPU."""
        return self._runnable.arrays.computes_on

    @property
    def methods(self) -> Mapping[str, Callable[..., Any]]:
        """The methods by name: functions with the signatures of the exported methods."""
        return self._runnable.methods

    @property
    def assets(self) -> Mapping[str, Path]:
        """The files that the project packages with the model (setting `assets`), by name: `tokenizer.json`."""
        return self._provenance.assets

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of a model of transformers or timm, by the index of the output.

        Raises:
            ProgramError: if the model's assets have no `config.json` with labels.
        """
        from hatch_lower.runtime.texts import read_labels

        return read_labels(self.name, self.assets)

    def preprocess(
        self,
        text: str | Sequence[str] | None = None,
        pair: str | Sequence[str] | None = None,
        *,
        images: Any = None,
        sounds: Any = None,
        sampling_rate: int | None = None,
    ) -> dict[str, Any]:
        """Return keyword arguments of `forward` or `generate`, by the assets: tokenizer, image processor, extractor.

        Args:
            text: a text, or a list of texts, which are padded to the longest.
            pair: the second text of each pair.
            images: an image, or a list of images: files, images of Pillow, or arrays of uint8 with channels last. For
                a language model, the texts have a mark for each image, such as `<image>`.
            sounds: a sound, or a list of sounds: WAV files, or arrays of floats from -1 to 1 of shape (samples,).
            sampling_rate: samples a second of arrays in `sounds`, which must be the model's.

        Returns:
            Arrays of the library that the methods take: int64 of shape (texts, tokens) for `input_ids`,
            `attention_mask` and `token_type_ids`, float32 of shape (images, channels, height, width) for
            `pixel_values`, and float32 for `input_values` or `input_features` of sounds, each if the method takes it.

        Raises:
            InputError: if texts of different lengths cannot be padded, or for other values than texts, images and
                sounds of the model's sampling rate.
            ProgramError: if the assets lack a file, a processor has unknown steps, or the library tokenizers or
                Pillow is not installed.
        """
        if self._generates:
            starts = inspect.signature(self.methods["start"]).parameters
            parameters: Collection[str] = {"input_ids", "attention_mask", *starts, *self._image_parameters}
        else:
            self._check_method("forward")
            parameters = inspect.signature(self.methods["forward"]).parameters
        found: dict[str, Any] = {}
        if images is not None:
            from hatch_lower.runtime.image_patches import inputs_of_images

            found |= inputs_of_images(self.name, self.assets, listed(images))
        if sounds is not None:
            from hatch_lower.runtime.sounds import refuse_hidden_padding, sound_reader

            found |= sound_reader(self.name, self.assets).read(listed(sounds), sampling_rate)
            refuse_hidden_padding(self.name, found, parameters)
        if text is not None or pair is not None or not found:
            from hatch_lower.runtime.texts import checked_texts

            texts = checked_texts(text, "text")
            pairs = None if pair is None else checked_texts(pair, "pair")
            if pairs is not None and len(pairs) != len(texts):
                raise InputError("each text needs one second text", found=f"{len(texts)} texts, {len(pairs)} of `pair`")
            if self._image_parameters:
                texts = self._with_places(texts, found)
            found |= self._text_reader().read(texts, pairs)
        return {name: self._in_library(array) for name, array in found.items() if name in parameters}

    def texts(self, tokens: Any) -> list[str]:
        """Return the text of each row of tokens, without special tokens, by the tokenizer among the assets.

        Args:
            tokens: integers of shape (rows, tokens).

        Raises:
            InputError: for other tokens.
            ProgramError: if the assets have no `tokenizer.json`, or the library tokenizers is not installed.
        """
        from hatch_lower.runtime.texts import checked_tokens, in_numpy

        rows = checked_tokens(in_numpy(tokens, arrays_of(self)))
        reader = self._text_reader()
        return [reader.text(row) for row in rows.tolist()]

    def generate(self, input_ids: Any = None, attention_mask: Any = None, **options: Any) -> Any:
        """Return the prompt and new tokens of each row, int64 of shape (rows, tokens), padded at the end.

        Args:
            input_ids: integers of shape (rows, tokens). A model with an encoder takes the encoder's input here, and the
                first tokens of its decoder as `decoder_input_ids`.
            attention_mask: 1 at tokens, 0 at padding, which must be on the left.
            options: `max_new_tokens`, `min_new_tokens`, `temperature` (0: the most likely token), `top_k`, `top_p`,
                `repetition_penalty`, `no_repeat_ngram_size`, `seed`, `stop` (texts that end a row), `eos_token_id`,
                `pad_token_id`; by default as in the packaged `generation_config.json`. Whisper: `language` (a code such
                as `en`; by default the model chooses) and `task`. Further inputs of an encoder.

        Raises:
            InputError: for arguments that do not fit the model, or a configuration that needs transformers.
            CallError: for logits that are no numbers.
        """
        import numpy

        prompt, steps = self._begin({"input_ids": input_ids, "attention_mask": attention_mask, **options})
        return self._in_library(numpy.concatenate([prompt, *(tokens[:, None] for tokens in steps)], 1))

    def stream(self, input_ids: Any = None, attention_mask: Any = None, **options: Any) -> Generator[Any, None, None]:
        """Return a generator of the new token of each row, int64 of shape (rows,), with the arguments of `generate`.

        Arguments are checked in this call; a step computes one token. A row that has ended gets padding. `close` frees
        the cache of a stream that is abandoned.
        """
        _, steps = self._begin({"input_ids": input_ids, "attention_mask": attention_mask, **options})
        return (self._in_library(tokens) for tokens in steps)

    def as_pretrained(self) -> Any:
        """Return the model as a model of transformers; see `hatch_lower.huggingface.as_pretrained`."""
        from hatch_lower.runtime.generation.pretrained import transformers_model

        return transformers_model(self._language_model())

    def _spare(self, arguments: Mapping[str, Any]) -> Collection[str]:
        from hatch_lower.runtime.spare import spare_names

        forward = self.methods.get("forward")
        parameters = {} if forward is None else inspect.signature(forward).parameters
        return spare_names(self.name, self.assets, parameters, arguments) if parameters else ()

    @property
    def _image_parameters(self) -> Collection[str]:
        encode = self.methods.get("encode_image") if self._generates else None
        # the caller of `encode_image` makes its further arguments from the grids of images
        return () if encode is None else {*inspect.signature(encode).parameters, "image_grid_thw"}

    def _with_places(self, texts: list[str], images: Mapping[str, Any]) -> list[str]:
        import numpy

        from hatch_lower.runtime.placeholders import image_place, numbers_of_places, with_places

        if not images:
            return texts
        sizes = self.methods["start"](input_ids=self._in_library(numpy.zeros((1, 1), dtype=numpy.int64)))
        numbers = numbers_of_places(images, sizes)
        place = image_place(self.name, self.assets, self._text_reader())
        return with_places(texts, numbers, place)

    @property
    def _generates(self) -> bool:
        return self.methods.keys() >= GENERATING

    def _begin(self, arguments: Mapping[str, Any]) -> tuple[Any, Iterator[Any]]:
        from hatch_lower.runtime.generation.calls import begin

        return begin(self._language_model(), arguments)

    def _language_model(self) -> LanguageModel:
        from hatch_lower.runtime.generation.calls import LanguageModel

        return LanguageModel(self.name, self.methods, self.assets, arrays_of(self), self._text_reader)

    def _in_library(self, array: Any) -> Any:
        from hatch_lower.runtime.texts import in_library

        return in_library(array, arrays_of(self))

    def _text_reader(self) -> TextReader:
        from hatch_lower.runtime.texts import TextReader

        if self._reader is None:
            self._reader = TextReader(self.name, self.assets)
            if self._generates and "cross" not in inspect.signature(self.methods["decode"]).parameters:
                self._reader.pad_left()  # the next token follows the last
        return self._reader

    def signature(self, method: str) -> str:
        """Return a method's signature with dtypes and symbolic shapes: `forward(image: float32[batch, 1, 8, 8])`.

        Raises:
            InputError: if the method does not exist.
        """
        self._check_method(method)
        return self._runnable.signature(method)

    def debug_map(self, method: str) -> MethodDebug:
        """Return the debug map of a method: the operations behind its instructions. Reads the file now.

        Raises:
            InputError: if the method does not exist.
            ProgramError: if the debug file is damaged, or the model runs eagerly.
        """
        from hatch_lower.format.debug_map import NO_DEBUG

        self._check_method(method)
        return self._provenance.read_debug().methods.get(method, NO_DEBUG)

    def clone(self) -> LoadedModel:
        """Return another instance, with shared constants and code and its own copy of the current state."""
        return LoadedModel(self._runnable.clone(), self._provenance)

    def reset(self) -> None:
        """Reset the state (the buffers that methods change) to the packaged contents."""
        self._runnable.reset()

    def in_recipe(self, recipe: str) -> LoadedModel:
        """Return the same model in another recipe, with its own state, over the same mapped constants.

        Raises:
            ProgramError: if the recipe does not exist or cannot run here.
        """
        return self._provenance.load_recipe(recipe)

    def _check_method(self, method: str) -> None:
        if method not in self._runnable.methods:
            refuse_method(self.name, self._runnable.methods, method)


def refuse_method(model: str, methods: Mapping[str, object], method: str, *args: object, **kwargs: object) -> NoReturn:
    raise InputError(
        f"model `{model}` has no method `{method}`",
        found=nearest(str(method), methods),
        hint="generate tokens with `model.generate(…)`"
        if methods.keys() >= GENERATING
        else "name a method of the model",
    )


def listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def load_again(source: str | Path, recipe: str, arrays: str, device: str) -> LoadedModel:
    return hatch_lower.load(source, recipe=recipe, arrays=arrays, device=device)


def arrays_of(model: LoadedModel) -> Arrays:
    """Return the library and the device of the arrays that a model's methods take and return."""
    return model._runnable.arrays


def loaded_plan(model: LoadedModel) -> Plan | None:
    """Return the plan of a loaded model; `None` for a model that runs eagerly."""
    return getattr(model._runnable, "plan", None)


# not allowed as names of methods: attributes of every loaded model
RESERVED_METHOD_NAMES: frozenset[str] = frozenset(dir(LoadedModel)) | {"_call", "_provenance", "_reader", "_runnable"}
