"""Time by source line: measured in a process of its own, divided among lines with the debug map, and written out."""
