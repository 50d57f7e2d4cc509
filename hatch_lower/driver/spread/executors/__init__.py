"""Engines that run units, a module each; an engine's own library is imported only where a build uses it."""
