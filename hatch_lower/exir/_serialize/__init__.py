"""Where ExecuTorch keeps its named data store."""
