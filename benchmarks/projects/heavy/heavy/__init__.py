"""1 GiB of weights; the benchmark makes their file."""
