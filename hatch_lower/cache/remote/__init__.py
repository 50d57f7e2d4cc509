"""A cache shared by a team and its CI: a server of Bazel's HTTP protocol, or a folder or object store."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hatch_lower.cache.remote.client import RemoteClient
from hatch_lower.cache.remote.policy import read_policy
from hatch_lower.config.tables import CacheSettings


def open_remote(
    environment: Mapping[str, str], settings: CacheSettings, warn: Callable[[str], None]
) -> RemoteClient | None:
    """Return the remote cache that the environment or the project names, not connected yet, or `None`."""
    policy = read_policy(environment, settings.remote, settings.public_keys, warn)
    return None if policy is None else RemoteClient(policy, warn)
