"""The edge dialect: core ATen ops as edge overloads, explicit dtypes, a debug handle on every operation."""
