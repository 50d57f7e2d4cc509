"""The command line `hatch-lower`: a module for each command, and `output` for printing.

Code for commands only is in folders: `measure` for `bench`, `profile` and pytest's plugin, `page` for `report`.
"""
