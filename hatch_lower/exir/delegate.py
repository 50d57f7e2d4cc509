"""The call of a lowered module in a graph; torch has the operator itself."""

from hatch_lower.runtime.torch_private.programs import (
    executorch_call_delegate,
    get_lowered_module_name,
    is_lowered_module,
)

__all__ = ["executorch_call_delegate", "get_lowered_module_name", "is_lowered_module"]
