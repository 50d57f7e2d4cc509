"""Variants of operators."""
