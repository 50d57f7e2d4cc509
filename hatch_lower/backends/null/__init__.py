"""The backend that delegates everything and computes nothing, for tests of the machinery."""
