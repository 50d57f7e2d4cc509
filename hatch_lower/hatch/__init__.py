"""The build hook `lower`, a doorway: the only importer of hatchling.

It turns what hatchling knows into settings, and what a build came to into the files, the tag and the metadata of the
wheel. Nothing is lowered or decided here.
"""
