"""Answer to why a job waits, and what would start it."""

from datetime import datetime

from trainyard_protocol.message import Wire
from trainyard_protocol.states import JobState


class CandidateView(Wire):
    """An agent as a candidate for a waiting job. `home`: the job would fit if nothing else ran there. `lacks` is ""
    if it fits now."""

    agent: str
    alive: bool
    has: str
    free: str
    home: bool
    lacks: str = ""


class HolderView(Wire):
    """A job that holds resources that another one waits for. `ends_by`: the end of its maxRunningTime. `left_over`: its
    run has ended, but processes of it still run."""

    project: str
    job_id: str
    state: JobState
    priority: int
    agent: str
    holds: str
    running_since: datetime | None = None
    ends_by: datetime | None = None
    left_over: bool = False


class QueuedAheadView(Wire):
    """A job that is ahead of another in the queue."""

    project: str
    job_id: str
    priority: int
    position: int
    needs: str
    waiting: str


class SuggestionView(Wire):
    """A change that would start a waiting job now. `kind`: priority, replicas, machine-type, quota, engine, agent,
    end-job."""

    kind: str
    message: str


class QueueExplanationView(Wire):
    """The explanation of a waiting job; for another job, `summary` alone. `kind` is room, quota, never, apart,
    no-agent, no-engine, no-disk or no-mount. `ahead` and `holders` are jobs that the reader may see; `hidden_holders`
    is the number of the others.

    `changes` has the smallest first. Where no single change is enough, `nothing` is a sentence about what is.
    """

    project: str
    job_id: str
    state: JobState
    priority: int
    summary: str
    kind: str = ""
    needs: str = ""
    position: int = 0
    ahead: tuple[QueuedAheadView, ...] = ()
    agents: tuple[CandidateView, ...] = ()
    holders: tuple[HolderView, ...] = ()
    hidden_holders: int = 0
    changes: tuple[SuggestionView, ...] = ()
    nothing: str = ""
