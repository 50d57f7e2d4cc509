"""The command line `hatch-lower`: a module for each command, and `output`, through which all of them print.

What no other room needs of a command is in a folder: `measure` for `bench`, `profile` and pytest's plugin, `page` for
`report`.
"""
