"""What the command `hatch-lower` says if a package is missing that it needs, and running programs does not."""

from __future__ import annotations

import sys

from hatch_lower.errors import ConfigError

# packages to import, to the extra of hatch-lower that brings them
EXTRAS = {
    **dict.fromkeys(("click", "elftools", "filelock", "platformdirs", "tomlkit"), "cli"),
    **dict.fromkeys(("cyclonedx", "numpy", "safetensors", "torch"), "build"),
}


def main() -> None:
    """Stand in for the command where click is not installed."""
    sys.exit(f"error: {incomplete_error('click')}")


def incomplete_error(package: str) -> ConfigError:
    return ConfigError(
        f"this command needs the package `{package}`, which is not installed",
        hint=f'install it: pip install "hatch-lower[{EXTRAS[package]}]"',
    )
