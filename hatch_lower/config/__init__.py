"""The hook's table in `pyproject.toml` as frozen settings, with the schema and the reference page made from it.

Every fault of a table is found here, and all faults are reported at once. Other rooms see no dictionary of TOML.
Faults of the project's files, for example an entry point that cannot be imported, are found later.
"""
