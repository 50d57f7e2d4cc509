"""A module that cannot be imported where it is built."""

from a_package_that_nobody_installed import load

export = load
