"""A small capability, as `docs/contributing/add-a-capability.md` has it: added, asked, and taken out again."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from beds.world import World
from trainyard_protocol.errors import FailedPrecondition
from trainyard_protocol.job.training_input import Job
from trainyard_protocol.message import Wire
from trainyard_server.api.dependencies import Cases
from trainyard_server.api.routing import Router
from trainyard_server.capabilities.registry import CAPABILITIES
from trainyard_server.capability import Capability
from trainyard_server.context import Backend
from trainyard_server.dashboard.views import Link
from trainyard_server.domain.access.route_access import Access
from trainyard_server.storage.db.queries.reader import Reader
from trainyard_server.storage.db.repository import Event, JobEvents, NewJob, Writer

router = Router(prefix="/trainyard/v1")
happened: list[str] = []


class BookmarksView(Wire):
    jobs: tuple[str, ...]


class Bookmarks:
    """The jobs whose label `bookmark` is set."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def list(self, project: str) -> BookmarksView:
        with self._backend.store.read() as reader:
            rows, _ = reader.jobs(project, None, None, 100)
            return BookmarksView(jobs=tuple(row.job_id for row in rows if "bookmark" in row.labels))


@router.get("/projects/{project}/bookmarks", Access.VIEWER, "its bookmarks")
def bookmarks(project: str, cases: Cases) -> BookmarksView:
    return cases.of(Bookmarks).list(project)


def check(_backend: Backend, _reader: Reader, project: str, job: Job) -> None:
    if job.labels.get("bookmark") == "never":
        raise FailedPrecondition(f"The project {project} has no bookmark of that name.")


def added(_writer: Writer, jobs: Sequence[NewJob]) -> None:
    happened.extend(f"{job.row.job_id} is added" for job in jobs)


def moved(_writer: Writer, events: Mapping[int, tuple[int, Event]]) -> None:
    happened.extend(event.after for _, event in events.values() if event.kind == "job")


BOOKMARKS = Capability(
    "bookmarks",
    services=lambda cases: (Bookmarks(cases.backend),),
    routers=(router,),
    links=(Link("/bookmarks", "Bookmarks", 35),),
    check=check,
    job_events=JobEvents(added, moved),
)


async def test_capability_is_added_by_a_line_and_taken_out_by_it(tmp_path: Path) -> None:
    path = "/trainyard/v1/projects/p/bookmarks"
    world = World(tmp_path, capabilities=[*CAPABILITIES, BOOKMARKS])
    happened.clear()
    await world.submit("plain")
    await world.submit("marked", labels={"bookmark": "yes"})
    body = {"jobId": "refused", "labels": {"bookmark": "never"}, "trainingInput": {"pythonModule": "a.b"}}
    answer = await world.call("POST", "/v1/projects/p/jobs", body)
    assert (answer.status_code, "has no bookmark of that name" in answer.text) == (400, True)
    assert (await world.call("GET", path)).json() == {"jobs": ["marked"]}
    await world.cancel("plain")
    assert happened == ["plain is added", "marked is added", "CANCELLING", "CANCELLED"]
    assert 'href="/bookmarks"' in (await world.call("GET", "/")).text
    await world.close()

    world = World(tmp_path)
    assert (await world.call("GET", path)).status_code == 404
    assert 'href="/bookmarks"' not in (await world.call("GET", "/")).text
    assert (await world.detail("marked")).job["labels"] == {"bookmark": "yes"}
    await world.close()
