"""The kit of hatch-lower on this backend: some hundred programs against eager, and what else must hold."""

from hatch_lower.backends.testing import backend_tests

# `fuse = false` must give another program, or be in the key of the cache
test_backend = backend_tests("demo", variations={"fuse": [False]})
