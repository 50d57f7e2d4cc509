"""Units of a build on other machines: requests and answers, the scheduler, and the engines.

A worker lowers a model in the same child process as a local build. A local build imports nothing of this package.
"""
