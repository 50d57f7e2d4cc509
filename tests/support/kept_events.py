"""Events that tests look at."""

from __future__ import annotations

from dataclasses import dataclass, field

from hatch_lower.events import Event


@dataclass
class Events:
    """Keeps the events that it is told of."""

    seen: list[Event] = field(default_factory=list)

    def report(self, event: Event) -> None:
        self.seen.append(event)

    def close(self) -> None:
        pass

    def stages(self) -> set[str]:
        """Return the stages that ran to their end."""
        return {event.stage for event in self.seen if event.state == "end"}

    def notes(self) -> list[str]:
        """Return the notes."""
        return [event.detail for event in self.seen if event.state == "note"]
