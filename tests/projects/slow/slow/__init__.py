"""An export that says that it began, and does not end."""
