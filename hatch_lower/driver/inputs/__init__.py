"""The inputs of an export: recorded in the child process, compared in the parent before the next build."""
