"""The versions of ExecuTorch that were tried."""

LIMIT = "1.6"  # the first version that was not tried
REQUIREMENT = f"executorch>=1.4,<{LIMIT}"
