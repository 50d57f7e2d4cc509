"""A project's build: which models are known from before, a child process for each other one, one result.

`build.py` is the parent's page, `worker.py` the child's. `inputs` knows what an export has read, `explain` why a build
did something again, `diff` what differs between wheels. Hatchling is called in `hatch` only.
"""
