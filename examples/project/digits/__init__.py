"""Handwritten digits, classified by a network that `hatch build` lowers into the wheel."""
