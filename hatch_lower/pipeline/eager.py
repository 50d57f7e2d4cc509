"""The eager side of a comparison: callable copies of the module, eager's outputs, and operators that draw randomly."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch.export import ExportedProgram

from hatch_lower.errors import VerificationError
from hatch_lower.exir.graph.nodes import STATISTICS, is_trained, written_into
from hatch_lower.exir.graph.operators import named_arguments
from hatch_lower.exir.graph.surgery import all_nodes
from hatch_lower.exir.graph.tensors import is_plain_tensor, storage_key
from hatch_lower.pipeline.capture import CapturedMethod, CapturedModel
from hatch_lower.pipeline.exceptions import describe_exception
from hatch_lower.pipeline.random_inputs import InputCase
from hatch_lower.pipeline.same_leaves import are_equal
from hatch_lower.runtime.module_copy import copy_module
from hatch_lower.runtime.torch_private import tensors
from hatch_lower.runtime.torch_private.operators import OpOverload, schema_of

ASSUMED_HINT = (
    "torch.export chose the operations for sizes that meet the condition: declare such sizes, for example"
    ' `2 * torch.export.Dim("half")`, or rewrite the line that depends on the size'
)
TRAINING_HINT = "the module is in training mode; call `module.eval()` in the entry point"
FAST_PATH_HINT = (
    "in inference eager takes torch's fast path for layers of transformers, which returns zeros where the input is"
    " padded, and the exported program does not: make `nn.TransformerEncoder` with `enable_nested_tensor=False`, or"
    " call `torch.backends.mha.set_fastpath_enabled(False)` in the entry point"
)
HIDDEN_STATE_HINT = (
    "eager itself computes other numbers in a second call with the same inputs, and no tensor of the module changes:"
    " keep values of Python objects in buffers, and change the buffers in place"
)


def random_operators(program: ExportedProgram) -> list[str]:
    return sorted({str(node.target) for node in all_nodes(program.graph_module) if draws(node)})


def refusal_of_draws(operators: Sequence[str], where: str, training: bool) -> VerificationError:
    return VerificationError(
        "the method draws random numbers, so that a comparison with the eager module is impossible",
        where=where,
        found=", ".join(f"`{operator}`" for operator in operators),
        hint=TRAINING_HINT
        if training
        else "pass the random numbers as an input, or set `verify = false` for the recipe",
    )


def draws(node: torch.fx.Node) -> bool:
    # dropout with p=0, or in eval mode, has the tag but draws no random numbers
    if not isinstance(node.target, OpOverload) or torch.Tag.nondeterministic_seeded not in node.target.tags:
        return False
    arguments = schema_of(node.target).arguments
    values = {argument.name: argument.default_value for argument in arguments if argument.has_default_value()}
    values |= named_arguments(node)
    return values.get("train", values.get("training", True)) is not False and values.get("dropout_p", 1.0) != 0.0


def eager_factory(model: CapturedModel, method: CapturedMethod) -> Callable[[], Callable[..., object]]:
    """Return a factory of eager methods, each bound to a fresh copy of the module that shares unchanged parameters."""
    module = model.eager if model.eager is not None else program_module(model, method.program)
    attribute = model.attributes.get(method.name, "forward") if model.eager is not None else "forward"
    shared = unchanged_parameters(module, [method.program])

    def new_eager() -> Callable[..., object]:
        copied = copied_module(model.name, module, shared)
        call = copied if attribute == "forward" else getattr(copied, attribute)
        return with_gradients(call) if method.gradients else call

    return new_eager


def eager_modules(model: CapturedModel) -> dict[str, tuple[torch.nn.Module, str]]:
    """Return, by method, a module and the name of its method: in a fresh copy that shares unchanged parameters."""
    # methods share the state, also methods of several ready programs
    programs = {method.name: method.program for method in model.methods}
    if model.eager is not None:
        copied = copied_module(model.name, model.eager, unchanged_parameters(model.eager, programs.values()))
        return {name: (copied, model.attributes.get(name, "forward")) for name in programs}
    modules = [program_module(model, program) for program in programs.values()]
    shared: dict[int, object] = {}
    changed: set[int] = set()
    for module, program in zip(modules, programs.values(), strict=True):
        unchanged = unchanged_parameters(module, [program])
        changed |= {id(parameter) for parameter in module.parameters()} - unchanged.keys()
        shared |= unchanged
    shared = {key: tensor for key, tensor in shared.items() if key not in changed}
    copies = copied_module(model.name, torch.nn.ModuleList(modules), shared)
    return {name: (module, "forward") for name, module in zip(programs, copies.children(), strict=True)}


def program_module(model: CapturedModel, program: ExportedProgram) -> torch.nn.Module:
    """Return the module of a program, for a ready program with the program's own guards.

    The user's module has no guards, and torch's lower limits of sums of sizes are too high: a converted method is
    compared at the sizes at which the module would be.
    """
    converted = bool(model.attributes)
    return program.module(check_guards=not converted)


def copied_module(model: str, module: torch.nn.Module, shared: Mapping[int, object]) -> torch.nn.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # torch's warning about its tree specifications
            return copy_module(module, shared)
    except Exception as error:
        raise VerificationError(
            "the module cannot be copied, so that a verification would change its state",
            where=f"model `{model}`",
            found=describe_exception(error),
            hint="make `copy.deepcopy(module)` work: keep objects that cannot be copied outside of the module",
        ) from error


def unchanged_parameters(module: torch.nn.Module, programs: Iterable[ExportedProgram]) -> dict[int, object]:
    """Return, by id, the parameters that no program of a module changes."""
    changed = frozenset(name for program in programs for name in changed_parameters(program))
    named = dict(module.named_parameters(remove_duplicate=False))
    shared: dict[int, object] = {id(tensor): tensor for tensor in named.values()}
    buffers = set(map(storage_key, filter(is_plain_tensor, module.buffers())))
    for name, tensor in named.items():  # a tied parameter has several names, and a buffer may be a view of a parameter
        if name in changed or (is_plain_tensor(tensor) and storage_key(tensor) in buffers):
            shared.pop(id(tensor), None)
    return shared


def with_gradients(call: Callable[..., object]) -> Callable[..., object]:
    def run(*args: object, **kwargs: object) -> object:
        with torch.enable_grad():
            outputs = call(*args, **kwargs)
        return tensors.tree_map_only(torch.Tensor, torch.Tensor.detach, outputs)

    return run


def has_hidden_state(program: ExportedProgram, new_eager: Callable[[], Callable[..., object]], case: InputCase) -> bool:
    """Return whether eager's results depend on earlier calls, though the exported program mutates nothing."""
    if written_into(program.graph_module):
        return False
    eager = new_eager()

    def call() -> object:
        args, kwargs = case.copied()
        with torch.no_grad():
            return tensors.tree_map_only(torch.Tensor, torch.nan_to_num, eager(*args, **kwargs))

    try:
        first, second = call(), call()
        return tensors.tree_flatten(first)[1] != tensors.tree_flatten(second)[1] or not are_equal(first, second)
    except Exception:  # no evidence
        return False


def changed_parameters(program: ExportedProgram) -> frozenset[str]:
    """Return the names of the parameters that an exported program writes into, directly or through views."""
    # before decomposition, only the graph shows the writes, not the signature
    names = program.graph_signature.inputs_to_parameters
    return frozenset(names[node.name] for node in written_into(program.graph_module) if node.name in names)


def training_note(program: ExportedProgram) -> str:
    """Return a note on norms with the statistics of each batch in place of the module's, else an empty string."""
    norms = set()
    for node in all_nodes(program.graph_module):
        given = named_arguments(node)
        if is_trained(given) and isinstance(given.get(STATISTICS[0]), torch.fx.Node):
            norms.add(str(node.target))
    if not norms:
        return ""
    listed = ", ".join(f"`{norm}`" for norm in sorted(norms))
    return f"each call normalizes by its own batch, and changes the running statistics ({listed}): {TRAINING_HINT}"


def is_training(model: CapturedModel) -> bool:
    # an exported module, for example after PT2E quantization, is in training mode, and its own `eval` raises
    return model.eager is not None and model.eager.training and "eval" not in vars(model.eager)


def eager_outputs(model: CapturedModel, method: CapturedMethod, case: InputCase) -> object:
    args, kwargs = case.copied()
    with torch.no_grad():
        return eager_factory(model, method)()(*args, **kwargs)
