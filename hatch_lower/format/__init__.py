"""What is in the wheel: readers and writers of the packaged files, side by side, without torch."""
