"""Which operation of a lowered method first computes something else than eager; runs in the child process."""
