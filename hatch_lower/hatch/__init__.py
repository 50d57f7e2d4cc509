"""The build hook `lower`, the only importer of hatchling.

The hook turns hatchling's view of the project into settings, and the result of a build into the files, the tag and the
metadata of the wheel. Lowering, and all decisions, are elsewhere.
"""
