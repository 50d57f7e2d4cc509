"""The check of a wheel with each version of its engines, for `hatch-lower check --matrix`."""
