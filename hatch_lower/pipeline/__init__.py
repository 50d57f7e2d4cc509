"""One model in the build's child process: discover, capture, convert, lower, emit, package, verify.

`lower_model` is the page to read first. Which models there are, and whether one needs lowering at all, is decided in
`build`.
"""
