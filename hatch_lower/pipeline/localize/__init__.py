"""Search for the first operation of a lowered method whose result differs from eager's; runs in the child process."""
