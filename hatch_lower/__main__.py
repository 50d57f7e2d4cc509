"""`python -m hatch_lower`: the command, in the environment of that interpreter."""

from __future__ import annotations

from hatch_lower.cli.entry import main

if __name__ == "__main__":
    main()
