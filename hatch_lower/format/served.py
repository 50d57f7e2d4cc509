"""`method.json` of a server: a method of a packaged model, with the names, dtypes and shapes of a request's tensors."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated

from hatch_lower.canonical import canonical_json
from hatch_lower.format.codec import GREATEST_INTEGER, Damage, decode_file, encode, show_value
from hatch_lower.format.values import Dtype, Natural, Text
from hatch_lower.frozen import Frozen

SERVED_SCHEMA = 1
FACTS = "method.json"
# torch's name of a dtype, which is also NumPy's, to the name in the open inference protocol
DATATYPES: Mapping[str, str] = MappingProxyType(
    {
        "bool": "BOOL",
        **{f"{sign}int{bits}": f"{sign}int{bits}".upper() for sign in ("", "u") for bits in (8, 16, 32, 64)},
        **{f"float{bits}": f"FP{bits}" for bits in (16, 32, 64)},
    }
)
ANY = -1  # of a size: not fixed


def read_size(value: object) -> int:
    if type(value) is not int or not ANY <= value <= GREATEST_INTEGER:
        raise Damage(f"{show_value(value)} instead of a size")
    return value


class ServedTensor(Frozen):
    name: Text  # in requests and answers
    dtype: Dtype
    shape: tuple[Annotated[int, read_size], ...]  # of the method's tensor, with the dimension of the batch
    # whether the server's shape has a further last dimension of size 1: Triton refuses tensors without dimensions
    lifted: bool = False


class ServedMethod(Frozen):
    """A method as a model of a server; its inputs are the method's tensors and integers, in order."""

    name: Text  # of the server's model
    distribution: Text
    version: Text  # of the distribution
    model: Text
    recipe: Text
    method: Text
    inputs: tuple[ServedTensor, ...]
    outputs: tuple[ServedTensor, ...]
    # the most rows of a call that joins requests, in the first dimension of each tensor; 0: requests are never joined
    batch: Natural = 0

    def validate(self) -> None:
        for field, tensors in ((".inputs", self.inputs), (".outputs", self.outputs)):
            if len({tensor.name for tensor in tensors}) != len(tensors):
                raise Damage("two tensors with the same name", field)


def read_served(data: bytes, where: str) -> ServedMethod:
    return decode_file(ServedMethod, data, SERVED_SCHEMA, where)


def write_served(served: ServedMethod) -> bytes:
    return canonical_json({"schema": SERVED_SCHEMA, **encode(served)})
