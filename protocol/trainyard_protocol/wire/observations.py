"""Parts of a report of an agent that the server passes on to people: a stall, and the versions that a run has. They
need no model of a job, so a command that shows them loads none."""

from datetime import datetime

from pydantic import Field

from trainyard_protocol.message import Many, Wire


class Stall(Wire):
    """A stalled replica: its step has not changed for too long, or beside one in the same run.

    `since` is the time of `step`, by its machine's clock. At the detection the step had not changed for `for_s`, of the
    allowed `limit_s`, without another sign of progress. `longest_s` is the longest time between two signs before.
    `silent`: no replica of the run has printed anything or used a CPU since; `step` is the last one, or 0.
    """

    step: int
    since: datetime
    limit_s: float
    for_s: float = 0.0
    longest_s: float = 0.0
    silent: bool = False


MAX_REQUIREMENTS = 64 * 2**10
"""Characters of the requirements of a run."""

_MAX_IMAGES, _MAX_IMAGE = 10, 1024
_MAX_NOTES, _MAX_NOTE = 20, 1000


class ResolvedRun(Wire):
    """The versions that a run has: `images` are its images by name, each as NAME@DIGEST, or as the engine's id where no
    registry has it. `requirements` are lines NAME==VERSION of its Python environment; "" where they are not known, as
    in an image. `installed` says what was installed for it, from where and in which time, for its log."""

    images: dict[str, str] = Field(default_factory=dict)
    requirements: str = ""
    installed: Many[str] = ()

    def bounded(self) -> "ResolvedRun":
        """The same within its limits: whole lines, and short names."""
        lines = self.requirements[:MAX_REQUIREMENTS]
        if len(lines) < len(self.requirements):
            lines = lines[: lines.rfind("\n") + 1]
        images = [pair for pair in self.images.items() if max(map(len, pair)) <= _MAX_IMAGE]
        notes = [note[:_MAX_NOTE] for note in self.installed[:_MAX_NOTES]]
        return ResolvedRun(images=dict(images[:_MAX_IMAGES]), requirements=lines, installed=notes)
