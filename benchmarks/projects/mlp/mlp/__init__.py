"""Three layers: so little work that what a call costs by itself shows."""
