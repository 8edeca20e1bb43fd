"""Answer to what a job starts after, and what starts after it."""

from trainyard_protocol.message import Wire
from trainyard_protocol.states import JobState


class NeighbourView(Wire):
    """A job before or after another one. `wanted`: the end that is waited for, `train to succeed`. `state` None: it was
    deleted."""

    job_id: str
    wanted: str
    state: JobState | None


class DependenciesView(Wire):
    """The jobs that a job starts after, and those that start after it."""

    predecessors: tuple[NeighbourView, ...]
    followers: tuple[NeighbourView, ...]
