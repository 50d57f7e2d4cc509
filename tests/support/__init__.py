"""Helpers of several test modules. What one module needs is in that module.

| for tests of | modules |
|---|---|
| anything | `effort` (short and long runs), `shared` (made once in a run), `processes` (waiting for others) |
| builds of a project | `scenarios` (copies of `tests/projects`), `venv` (commands, environments), `installed` |
| builds that are disturbed | `faults`, `supervise.cpp` (at a chosen change of a file), `compilers`, `cache_server` |
| one build and another | `variations` (what must not matter), `mutations` (what must), `counted` (at the same time) |
| what an export reads | `recorded` |
| generation | `generators` (language models without an export) |
| lowering | `exports` (a model to edit), `backends`, `tables`, `generated` and `random_tags` (random programs) |
| wheels, plans and packaged files | `wheels`, `lowered` and `plans` (by hand), `hostile` (damaged at random) |
| the documentation | `console` (pages as shell sessions) |
| the kit for backends | `kit` (what a short run tries), `sabotage` (backends that are wrong) |
"""
