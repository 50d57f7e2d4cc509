"""Wrappers of torch's private interfaces: hatch-lower uses private names of torch only here.

Modules are divided by user, so that importing a module imports no unneeded parts of torch; `X as X` re-exports a name.
`tried.json` lists the torch versions with which each private name was tried. No module here decides about lowering.
"""
