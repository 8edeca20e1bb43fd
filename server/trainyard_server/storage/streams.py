"""Streams: the writers of a job's logs and usage, one for each replica of each run."""

from dataclasses import dataclass

from trainyard_protocol.answers.log_views import SERVICE_TASK


@dataclass(frozen=True, slots=True, order=True)
class Stream:
    """One writer of a job's log: a replica of a run, or the service (run 0)."""

    run: int
    task: str

    @property
    def name(self) -> str:
        """The key of the stream in a LogSummary."""
        return f"{self.run}/{self.task}"


SERVICE = Stream(0, SERVICE_TASK)
