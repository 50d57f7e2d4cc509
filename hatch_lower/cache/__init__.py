"""Results of earlier builds: their keys, and the stores of this machine and of a team.

Callers supply the values from which keys are computed. `driver.inputs` records the inputs of an export and compares
them.
"""
