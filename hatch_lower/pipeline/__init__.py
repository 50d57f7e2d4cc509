"""Lower one model, in the build's child process: import, export, decompose, partition, compile, package, compare.

Read `lower_model` first. `driver` decides which models exist and which of the models need lowering.
"""
