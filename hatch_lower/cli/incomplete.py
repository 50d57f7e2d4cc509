"""Error of the command `hatch-lower` if a package is missing that only the command needs."""

from __future__ import annotations

import sys

from hatch_lower.errors import ConfigError

# import package to the extra of hatch-lower that installs the package
EXTRAS = {
    **dict.fromkeys(("click", "elftools", "filelock", "platformdirs", "tomlkit"), "cli"),
    **dict.fromkeys(("cyclonedx", "numpy", "safetensors", "torch"), "build"),
    "onnx": "onnxruntime",
}


def main() -> None:
    """Stand in for the command where click is not installed."""
    sys.exit(f"error: {incomplete_error('click')}")


def incomplete_error(package: str) -> ConfigError:
    return ConfigError(
        f"this command needs the package `{package}`, which is not installed",
        hint=f'install it: pip install "hatch-lower[{EXTRAS[package]}]"',
    )
