"""Delegated and undelegated ops, control flow, state."""
