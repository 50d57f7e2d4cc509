"""The build of a project: look up known models, export the others in child processes, and join the results.

`build.py` is the parent's page, `worker.py` the child's. `inputs` records the reads of an export, `explain` names the
reasons of a new build, `diff` the differences of wheels. Hatchling is called in `hatch` only.
"""
