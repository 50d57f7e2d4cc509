"""A network with random weights, and an HTTP server that joins waiting requests."""
