"""The comparison of recorded inputs with the present state, and the changes in words."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from hatch_lower.driver.inputs.present import LINK, PORTIONS, Present
from hatch_lower.driver.inputs.record import ABSENT, RecordedInputs
from hatch_lower.frozen import Frozen


class Change(Frozen):
    """A changed input; a path as `subject` is located."""

    kind: str
    subject: str
    before: str
    after: str

    def text(self) -> str:
        """Return the change in a few words, for a table: `digits/model.py`, `torch 2.13.0 → 2.14.0`."""
        return TEXTS[self.kind](self)


def changes(inputs: RecordedInputs, present: Present) -> Iterator[Change]:
    """Yield the changes of recorded inputs, the most telling first; each input is examined when its turn comes."""
    yield from (Change("unknown", reason, "", "") for reason in sorted(inputs.unknown))
    yield from compare("distribution", inputs.distributions, present.distribution)
    yield from compare("file", inputs.files, present.file)
    yield from compare("module", inputs.modules, lambda name: present.module(name, owners_in(inputs.modules[name])))
    yield from compare("absent", dict.fromkeys(inputs.absent, ABSENT), present.look)
    yield from compare("look", inputs.looks, present.look)
    yield from compare("time", inputs.times, present.time)
    yield from compare("glob", inputs.globs, present.glob)
    yield from compare("listing", inputs.listings, present.listing)
    yield from compare("importable", inputs.importable, present.importable)
    yield from compare("tool", inputs.tools, present.tool)
    yield from (Change("hidden", name, "", name) for name in inputs.deciding if name in present.hidden)
    yield from compare("variable", present.asked_variables(inputs.environment), present.variable)


def compare(kind: str, recorded: Mapping[str, str], now: Callable[[str], str]) -> Iterator[Change]:
    for subject, before in sorted(recorded.items()):
        after = now(subject)
        if before != after:
            yield Change(kind, subject, before, after)


def owners_in(place: str) -> tuple[str, ...]:
    return tuple(portion[5:] for portion in place.split(PORTIONS) if portion.startswith("dist "))


def shown(located: str) -> str:
    """Return a located path for people: relative to the project if inside."""
    root, _, rest = located.partition("/")
    if root == "project":
        return rest or "the project's folder"
    if root == "home":
        return f"~/{rest}" if rest else "~"
    return rest if root == "site" else located


def say_file(change: Change) -> str:
    path = shown(change.subject)
    named = path if path.endswith((".py", ".pyi")) else f"input {path}"
    return named if change.after else f"{named} is gone"


def say_folder(change: Change, what: str) -> str:
    path = shown(change.subject)
    return f"{what} in {path}" if change.after else f"{path} is gone"


def say_absent(change: Change) -> str:
    kind = change.after.partition(" ")[0]
    return f"new {kind if kind != 'other' else 'entry'} {shown(change.subject)}"


def say_look(change: Change) -> str:
    path = shown(change.subject)
    if not change.after:
        return f"{path} is gone"
    before, after = (words(look) for look in (change.before, change.after))
    return f"{path}: {before} → {after}"


def words(look: str) -> str:
    """Return `file of 123 bytes` for `file 123`."""
    here, link, target = look.partition(LINK)
    kind, _, size = here.partition(" ")
    return f"file of {size} bytes{link}{target}" if size else f"{kind}{link}{target}"


def say_module(change: Change) -> str:
    name, before, after = change.subject, change.before, change.after
    if not after:
        return f"module {name} is gone"
    if not before:
        return f"new module {name}"
    if before == "python":
        return f"new module {name} shadows the standard library's"
    if before.startswith("dist ") and PORTIONS not in before and after.startswith(("project", "site", "home", "/")):
        return f"new module {name} shadows that of {before[5:]}"
    old, new = place_words(before), place_words(after)
    return f"module {name}" if old == new else f"module {name}: {old} → {new}"


def place_words(place: str) -> str:
    portions = place.split(PORTIONS)
    return PORTIONS.join(
        portion if portion.startswith("site/") and len(portions) > 1 else portion_words(portion) for portion in portions
    )


def portion_words(place: str) -> str:
    kind, _, name = place.partition(" ")
    if kind == "dist":
        return name
    return {"python": "the standard library", "archive": "an archive"}.get(kind, shown(place))


def say_distribution(change: Change) -> str:
    before, after = change.before.partition(" ")[0], change.after.partition(" ")[0]
    if not change.before:
        return f"{change.subject} {after} was installed"
    if not change.after:
        return f"{change.subject} {before} is no longer installed"
    if before == after:
        return f"{change.subject} {before}: other files or metadata"
    return f"{change.subject} {before} → {after}"


def say_named(change: Change, noun: str, came: str, went: str) -> str:
    name = f"{noun} {change.subject}"
    return f"{name} {came}" if not change.before else name if change.after else f"{name} {went}"


TEXTS: Mapping[str, Callable[[Change], str]] = {
    "absent": say_absent,
    "distribution": say_distribution,
    "file": say_file,
    "glob": lambda change: f"files that match {change.subject}",
    "hidden": lambda change: f"variable {change.subject} is set, and `pass-env` does not name it",
    "importable": lambda change: say_folder(change, "modules"),
    "listing": lambda change: say_folder(change, "files"),
    "look": say_look,
    "module": say_module,
    "time": lambda change: f"the time of {shown(change.subject)}",
    "tool": lambda change: say_named(change, "command", "is there now", "is gone"),
    "unknown": lambda change: change.subject,
    "variable": lambda change: say_named(change, "variable", "is set now", "is no longer set"),
}
