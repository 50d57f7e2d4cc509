"""The edge dialect: core ATen ops as edge overloads, with a debug handle on every operation."""
