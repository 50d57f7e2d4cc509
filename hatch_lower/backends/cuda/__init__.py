"""AOTInductor for NVIDIA GPUs, compiled on machines with and without a GPU."""
