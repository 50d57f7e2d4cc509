"""`EdgeProgramManager`, and the functions that make one."""
