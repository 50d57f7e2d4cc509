"""The Hatch build hook `lower`: the only importer of hatchling."""
