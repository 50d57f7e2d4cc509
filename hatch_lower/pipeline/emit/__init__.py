"""From lowered graphs to what is packaged: the plan, delegate blobs, constants and the debug map."""
