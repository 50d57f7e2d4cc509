"""One method, one op."""
