"""Options of conversion."""

from hatch_lower.exir.capture._config import EdgeCompileConfig, ExecutorchBackendConfig

__all__ = ["EdgeCompileConfig", "ExecutorchBackendConfig"]
