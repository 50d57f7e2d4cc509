"""All checks that need a GPU, in a single run on a bare machine: `prepare` here, `check.sh` there."""
