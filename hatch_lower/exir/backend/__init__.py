"""What the author of a backend imports, and how backends are found."""
