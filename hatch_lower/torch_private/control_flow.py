"""Control flow of torch that has no public name yet."""

from torch._higher_order_ops.map import map as map_rows
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

__all__ = ["map_rows", "scan", "while_loop"]
