"""Two methods that share their weights, in a `src/` layout."""
