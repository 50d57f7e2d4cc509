"""Why OpenVINO does not take an operation: its operator, its dtypes, its arguments or its weight."""

from __future__ import annotations

from collections.abc import Callable, Collection
from operator import getitem

import torch
from torch.fx import Graph, Node
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from hatch_lower.backends.engine_partitioner import why_not_target, why_not_tensor
from hatch_lower.backends.openvino import claims
from hatch_lower.backends.openvino.bounds import BoundsOfGraph
from hatch_lower.backends.openvino.calls import is_static_shape, makes_integers, why_not_chosen, why_not_openvino_call
from hatch_lower.backends.openvino.options import OpenvinoOptions
from hatch_lower.exir.graph.nodes import Ranges, producer_of, result_tensors
from hatch_lower.exir.graph.operators import named_arguments, operator_name, torch_operator
from hatch_lower.exir.graph.tensors import dtype_name
from hatch_lower.runtime.torch_private.operators import OpOverload

CONDITIONS = frozenset({"condition", "attn_mask"})
SCALES = frozenset({"scale"})
# OpenVINO 2026.4 looks up kernels of more dynamic dimensions by their number, and so takes the kernel of another shape
# (196 of 1,077 sums and products of seven dimensions were wrong, none of models with a single operation)
MOST_DYNAMIC = 6
# part of a reason: dtypes that the CPU's kernels compute as another dtype
COMPUTED_AS = {torch.int64: ", which OpenVINO computes as int32", torch.float64: ", which OpenVINO computes as float32"}


class OpenvinoSupport:
    # an operation is looked up once
    def __init__(self, graph: Graph, options: OpenvinoOptions, constants: Collection[Node], ranges: Ranges) -> None:
        self._options = options
        self._ranges = ranges
        self._constants = constants
        self._known: dict[Node, str] = {}
        self._conflicts = conflicting_products(graph)
        self._bounds = BoundsOfGraph(graph, ranges)
        self._places: set[Node] = set()  # small numbers that OpenVINO counts: results of `argmax`, for instance
        for node in graph.nodes:
            if self._counts_places(node) or self._moves_places(node):
                self._places.add(node)
        self._indices: set[Node] = set()
        for node in reversed(list(graph.nodes)):
            if node.users and all(self._takes_index(user, node) for user in node.users):
                self._indices.add(node)

    def why_not(self, node: Node) -> str:
        producer = producer_of(node)
        if producer not in self._known:
            reason = self._why_not_operation(producer)
            if not reason and operator_name(producer.target) in claims.CHOSEN:
                reason = why_not_chosen(producer, self._why_not_operation)
            if not reason and producer in self._conflicts:
                reason = "OpenVINO packs a weight once, and another product uses it transposed"
            self._known[producer] = reason or self._why_not_constants(producer) or self._why_not_indices(producer)
        return self._known[producer]

    def _why_not_operation(self, node: Node) -> str:
        return why_not_operation(node, self._options, self._ranges, self._passes_integers)

    def _passes_integers(self, node: Node) -> bool:
        """Return whether int64 may pass through a call, although OpenVINO computes it as int32."""
        return node in self._indices or node in self._places or self._compares_places(node)

    def _counts_places(self, node: Node) -> bool:
        maker = producer_of(node)
        claim = claims.CLAIMS.get(operator_name(maker.target)) if maker.op == "call_function" else None
        return claim is not None and "result" in claim.indices and self._is_exact(node)

    def _moves_places(self, node: Node) -> bool:
        sources = claims.tensor_inputs(node)
        moves = node.op == "call_function" and is_move(node) and self._is_exact(node)
        return moves and any(source in self._places for source in sources) and all(map(self._is_exact, sources))

    def _compares_places(self, node: Node) -> bool:
        sources = claims.tensor_inputs(node)
        return (
            operator_name(node.target) in claims.COMPARING_CALLS
            and any(source in self._places for source in sources)
            and all(map(self._is_exact, sources))
            and len({source.meta["val"].dtype for source in sources}) == 1
            and all(type(value) is int and abs(value) <= claims.EXACT for value in node.args if value not in sources)
        )

    def _is_exact(self, node: Node) -> bool:
        value = node.meta.get("val")
        return (
            isinstance(value, torch.Tensor)
            and value.dtype in claims.INDICES
            and self._bounds.within(node, claims.EXACT)
        )

    def _why_not_constants(self, node: Node) -> str:
        given = named_arguments(node)
        sources = [
            source
            for name in claims.CLAIMS[operator_name(node.target)].constants
            for source in claims.nodes_in(given.get(name))
        ]
        wrong = [source for source in sources if source not in self._constants]
        return f"`{wrong[0].name}` is not a constant" if wrong else ""

    def _why_not_indices(self, node: Node) -> str:
        # a call's own indices are compared before the call runs
        if self._hides_indices(node):
            return "it chooses among indices, and OpenVINO does not notice indices out of range"
        for used in claims.known_lookups(node):
            source = claims.index_source(used.indices)
            computed = source.op != "placeholder" and not self.why_not(source)
            if computed and not self._fits(used.indices, used.size):
                return "OpenVINO would compute its indices, and does not notice indices out of range"
        return ""

    def _hides_indices(self, node: Node) -> bool:
        """Return whether a call's indices could not be compared with their range."""
        name, found = operator_name(node.target), claims.known_lookups(node)
        if name in claims.TABLES and not found:
            return True
        if any(not isinstance(used.size, int) and not self._fits(used.indices, used.size) for used in found):
            return True
        chosen = name in claims.CHOICES and any(tensor.dtype in claims.INDICES for tensor in result_tensors(node))
        return chosen and node in self._indices and not self._fits(node, 0)

    def _fits(self, index: Node, size: int | torch.SymInt) -> bool:
        # in range in all calls: constants, or numbers with bounds
        if index.op == "placeholder":
            return index in self._constants and isinstance(size, int)
        moves = operator_name(index.target) in claims.KEPT_WHOLE | claims.CHOICES
        return self._bounds.fits(index, size) or (
            moves and all(self._fits(source, size) for source in claims.tensor_inputs(index))
        )

    def _takes_index(self, user: Node, node: Node) -> bool:
        """Return whether an operation uses a value only as an index."""
        claim = claims.CLAIMS.get(operator_name(user.target)) if user.op == "call_function" else None
        if claim is None or self._hides_indices(user):
            return False
        passed = claim.moves and user in self._indices
        return all(
            passed or name in claim.indices
            for name, value in named_arguments(user).items()
            if node in claims.nodes_in(value)
        )


def why_not_operation(
    node: Node, options: OpenvinoOptions, ranges: Ranges, passes_integers: Callable[[Node], bool] = lambda node: False
) -> str:
    """Return why an operation, no `getitem`, is not taken; `passes_integers`: int64 may pass through a call."""
    if reason := why_not_target(node, options.exclude):
        return reason
    name = operator_name(node.target)
    claim = claims.CLAIMS.get(name)
    if not isinstance(torch_operator(node.target), OpOverload) or isinstance(node.meta.get("val"), torch.SymInt):
        return f"`{name}` computes a size or a condition, which the program does itself"
    if claim is None:
        return f"`{name}` is not among the operators that OpenVINO computes as eager does"
    if not options.finite and (name in claims.NAN_LOSING or makes_integers(node)):
        return f"`{name}` may give a number for NaN or NaN for a number, and `finite-only` is false"
    passed = (claim.moves or name in claims.COMPARING_CALLS) and passes_integers(node)
    reason = why_not_results(node, claim, passed) or why_not_inputs(node, claim, passed)
    return reason or why_not_openvino_call(name, node, ranges)


def why_not_results(node: Node, claim: claims.Claim, passed: bool) -> str:
    # `passed`: int64 may pass through the call
    if claim.first_only and any(user.target is not getitem or user.args[1] != 0 for user in node.users):
        return "only the first result of this operator is taken, and other results are used"
    values = list(result_tensors(node))
    for value in values[:1] if claim.first_only else values:
        if reason := why_not_value(value, "its result"):
            return reason
        index = value.dtype is torch.int64 and (passed or "result" in claim.indices)
        if not index and value.dtype not in claim.takes | claims.BOOLEAN:
            return f"its result is {dtype_name(value.dtype)}{COMPUTED_AS.get(value.dtype, '')}"
    return ""


def why_not_inputs(node: Node, claim: claims.Claim, passed: bool) -> str:
    # `passed`: int64 may pass through the call
    dtypes: set[torch.dtype] = set()
    promoted = False
    for name, given in named_arguments(node).items():
        for source in claims.nodes_in(given):
            if reason := why_not_source(source):
                return reason
            for tensor in result_tensors(source):
                if tensor.dtype in claims.INDICES and (passed or name in claim.indices):
                    continue
                if (tensor.dtype is torch.bool and name in CONDITIONS) or name in SCALES:
                    continue
                if tensor.dtype in claims.QUANTIZED and operator_name(node.target) in claims.PROMOTING:
                    promoted = True
                    continue
                if tensor.dtype not in claim.takes:
                    return f"`{source.name}` is {dtype_name(tensor.dtype)}{COMPUTED_AS.get(tensor.dtype, '')}"
                if name not in claim.constants:
                    dtypes.add(tensor.dtype)
    numbers = [value for value in (*node.args, *node.kwargs.values()) if isinstance(value, float)]
    if promoted and dtypes != {torch.float32}:
        return "its inputs are 8-bit integers"
    if len(dtypes) > 1 or (numbers and torch.int32 in dtypes and not claim.moves):
        return "its inputs are of several types"
    return ""


def why_not_source(source: Node) -> str:
    value = source.meta.get("val")
    if source.op == "get_attr":
        return f"it uses the attribute `{source.target}`"
    if isinstance(value, (torch.SymFloat, torch.SymBool, float, bool)):
        return f"`{source.name}` is a number that is known at run time only"
    if isinstance(value, torch.SymInt) and free_unbacked_symbols(value):
        return f"`{source.name}` is a size that is known at run time only"
    return next(filter(None, (why_not_value(tensor, f"`{source.name}`") for tensor in result_tensors(source))), "")


def conflicting_products(graph: Graph) -> set[Node]:
    # OpenVINO finds a packed weight by its place and packed shape. A square weight that is used both transposed and
    # not, or in both a convolution and a transposed convolution, would be packed for a single use only. Linear layers
    # come first: they are kept whole, so no other backend may take them.
    origins: dict[Node, tuple[Node, bool]] = {}
    uses: list[tuple[bool, Node, Node, bool]] = []
    for node in graph.nodes:
        if node.op == "placeholder":
            origins[node] = node, False
        elif node.op == "call_function" and node.all_input_nodes:
            name, source = operator_name(node.target), node.all_input_nodes[0]
            if name in claims.WEIGHTS:
                given = named_arguments(node)
                source = given[claims.WEIGHTS[name]]
                if source in origins and is_square(source, name):
                    weight, turned = origins[source]
                    linear = name == "aten.linear.default"
                    uses.append((not linear, node, weight, turned != (linear or bool(given.get("transposed")))))
            elif (is_move(node) or name == claims.DEQUANTIZE_CHANNELS) and source in origins:
                weight, turned = origins[source]
                origins[node] = weight, turned != turns(node)
    first: dict[Node, bool] = {}
    return {
        node
        for _, node, weight, turned in sorted(uses, key=lambda use: use[0])
        if first.setdefault(weight, turned) != turned
    }


def is_square(weight: Node, name: str) -> bool:
    # the packed weight has the same sizes when transposed
    shape = weight.meta["val"].shape
    left, right = (shape[0], shape[1]) if name.startswith("aten.conv") else (shape[-2], shape[-1])
    return not (isinstance(left, int) and isinstance(right, int) and left != right)


def turns(node: Node) -> bool:
    if operator_name(node.target) != "aten.permute.default":
        return False
    dims = named_arguments(node)["dims"]
    return len(dims) > 1 and dims[-1] % len(dims) < dims[-2] % len(dims)


def why_not_value(value: torch.Tensor, name: str) -> str:
    if any(size == 0 for size in value.shape if isinstance(size, int)):
        return f"{name} has no elements"
    if value.dim() > MOST_DYNAMIC and not is_static_shape(value.shape):
        return f"{name} has more than {MOST_DYNAMIC} dimensions with dynamic sizes, and OpenVINO mixes up the kernels"
    return why_not_tensor(value, name)


def is_move(node: Node) -> bool:
    claim = claims.CLAIMS.get(operator_name(node.target))
    return claim is not None and claim.moves
