"""Turn lowered graphs into a package's parts: the plan, delegate blobs, constants and the debug map."""
