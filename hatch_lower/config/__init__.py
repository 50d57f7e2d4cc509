"""The hook's table in `pyproject.toml` as frozen settings, with the schema and the reference page made from it.

Every fault of a table is found here, and all are reported at once. Nothing after this room sees a dict of TOML. What
only the project's files can tell, such as an entry point that cannot be imported, is found later.
"""
