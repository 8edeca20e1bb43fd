"""Notes about a submission that is accepted, but may not be meant: a project that is new, a mount that no agent has."""

from collections.abc import Iterator, Sequence

from trainyard_protocol.fields import did_you_mean
from trainyard_protocol.job.training_input import TrainingInput
from trainyard_server.context import Backend
from trainyard_server.control.snapshots import idle_agents
from trainyard_server.domain.access.permissions import ALL_PROJECTS, Caller
from trainyard_server.storage.db.queries.job_queries import JobList
from trainyard_server.storage.db.queries.reader import Reader
from trainyard_server.storage.db.tables import people

_MOST_NAMED = 10


class SubmissionNotes:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._existing: set[str] = set()
        """Projects that were found once: they are not looked for again."""

    def of(self, caller: Caller, project: str, training_input: TrainingInput) -> Sequence[str]:
        """The notes for the caller, who would otherwise wait without knowing."""
        may_be_new = caller.visible is None and project not in self._existing
        if not may_be_new and not training_input.mounts:
            return ()
        with self._backend.store.read() as reader:
            return [
                *(self._of_project(reader, project) if may_be_new else ()),
                *_of_mounts(reader, project, training_input),
            ]

    def _of_project(self, reader: Reader, project: str) -> Iterator[str]:
        names = {*people.projects(reader), *JobList(reader, visible=None).projects()} - {ALL_PROJECTS}
        if project in names:
            self._existing.add(project)
        elif names:
            yield _joined(
                f"The project {project} is new: it has no jobs and no members yet.",
                did_you_mean(project, sorted(names)),
                "`trainyard projects list` shows all.",
            )


def _of_mounts(reader: Reader, project: str, training_input: TrainingInput) -> Iterator[str]:
    if not training_input.mounts:
        return
    agents = idle_agents(reader)
    offered = sorted({offer.name for agent in agents for offer in agent.mounts if offer.serves(project)})
    for mount in training_input.mounts:
        if agents and mount.name not in offered:
            yield _joined(
                f"No agent has the mount {mount.name} for the project {project}: the job waits until one has it "
                "(`--mounts` of the agent).",
                did_you_mean(mount.name, offered),
                f"Agents have: {', '.join(offered[:_MOST_NAMED])}." if offered else "Agents have no mounts for it.",
            )


def _joined(*sentences: str) -> str:
    return " ".join(filter(None, sentences))
