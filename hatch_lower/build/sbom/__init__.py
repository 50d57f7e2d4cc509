"""The wheel's SBOM: which models it holds, what they are made of, and what made them."""
