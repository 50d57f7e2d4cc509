"""Backends by id: those whose class is defined in this process, and those that installed distributions declare."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

from hatch_lower import BACKEND_GROUP
from hatch_lower.errors import BackendError, nearest
from hatch_lower.exir.backend.backend_details import BackendDetails

__all__ = ["find_backend"]


def find_backend(backend_id: str) -> type[BackendDetails]:
    """Return a backend's compile half.

    An entry point of the group `hatch_lower.backends` gives the id of an installed backend. A backend that is defined
    in this process is also found under its class name.

    Raises:
        BackendError: if there is none or more than one of that id, or it cannot be imported.
    """
    declared: dict[str, list[EntryPoint]] = {}
    for entry_point in entry_points(group=BACKEND_GROUP):
        declared.setdefault(entry_point.name, []).append(entry_point)
    defined: dict[str, list[type[BackendDetails]]] = {}
    for backend in BackendDetails.__subclasses__():
        defined.setdefault(backend.__name__, []).append(backend)
    targets = sorted({entry_point.value for entry_point in declared.get(backend_id, [])})
    if len(targets) > 1:
        raise BackendError(
            f"two backends have the id `{backend_id}`",
            where=f"entry points `{BACKEND_GROUP}`",
            found=", ".join(f"`{target}`" for target in targets),
            hint="uninstall one of them",
        )
    if targets:
        return load_backend(declared[backend_id][0])
    found = defined.get(backend_id, [])
    if len(found) > 1:
        raise BackendError(
            f"two backends have the id `{backend_id}`",
            where="classes defined in this process",
            found=", ".join(f"`{each.__module__}.{each.__qualname__}`" for each in found),
            hint="rename one of the classes",
        )
    if not found:
        raise BackendError(
            f"there is no backend `{backend_id}`",
            found=nearest(backend_id, [*declared, *defined]),
            hint="install the distribution that provides it, or correct the name",
        )
    return found[0]


def load_backend(entry_point: EntryPoint) -> type[BackendDetails]:
    """Import a declared backend."""
    where = f"entry point `{entry_point.name} = {entry_point.value}`"
    try:
        loaded = entry_point.load()
    except Exception as error:
        raise BackendError(
            f"the backend `{entry_point.name}` could not be imported",
            where=where,
            found=f"{type(error).__name__}: {error}",
            hint="install what it needs in the build environment",
        ) from error
    if not (isinstance(loaded, type) and issubclass(loaded, BackendDetails)):
        raise BackendError(
            f"the backend `{entry_point.name}` is not a `BackendDetails` subclass", where=where, found=repr(loaded)
        )
    return loaded
