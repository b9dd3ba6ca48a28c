"""What a reader has to say of a trace, above all whether it is all there."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Notes:
    """What is shown beside the profile; `is_complete` falls when the file was cut."""

    texts: list[str] = field(default_factory=list)
    is_complete: bool = True

    def add(self, text: str) -> None:
        """Keeps it."""
        self.texts.append(text)

    def cut(self, text: str) -> None:
        """Keeps it, and that the trace is not all there."""
        self.is_complete = False
        self.texts.append(text)
