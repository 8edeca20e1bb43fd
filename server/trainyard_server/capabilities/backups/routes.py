"""Routes of what is stored: an archive of everything, and its examination."""

import anyio
from fastapi.responses import Response
from starlette.concurrency import run_in_threadpool
from starlette.types import Receive, Scope, Send

from trainyard_protocol.answers.stored.backups import ExaminationView
from trainyard_server.api.dependencies import Cases
from trainyard_server.api.own.files import Download
from trainyard_server.api.routing import Router
from trainyard_server.capabilities.backups.backups import Backups, OpenArchive
from trainyard_server.capabilities.backups.examination import Examination
from trainyard_server.domain.access.route_access import Access

router = Router()


class ArchiveContent(Response):
    """The content of an answer with an archive, for the description."""

    media_type = "application/gzip"


class ArchiveDownload(Download):
    """An archive, closed whatever ends its download."""

    media_type = ArchiveContent.media_type

    def __init__(self, archive: OpenArchive) -> None:
        super().__init__(archive.blocks)
        self._archive = archive

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            with anyio.CancelScope(shield=True):
                await run_in_threadpool(self._archive.close)


@router.post(
    "/trainyard/v1/backups",
    Access.OPERATOR,
    "an archive of all stored data and keys ([backup](../how-to/operate.md))",
    "backups.create",
    response_class=ArchiveContent,
)
def create(cases: Cases) -> Response:
    """Everything that is stored at this moment, as a tar archive compressed by gzip; its last member is a manifest."""
    return ArchiveDownload(cases.of(Backups).open())


@router.get("/trainyard/v1/examination", Access.OPERATOR, "compare all that is stored with its digests")
def examination(cases: Cases) -> ExaminationView:
    """Read all jobs, logs, packages, secrets, the audit and objects; the answer has what is wrong with them."""
    return cases.of(Examination).run()
