"""Use cases of attachments: create one, and connect its two ends.

An attachment lives at the server that created it, its home, which connects the ends of its streams. A WebSocket that
comes to another server on the same database is passed on to there. The agent gets its order, and begins, once the
caller has come and may still change the job.
"""

import asyncio
import logging
import secrets
import time
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal

from anyio import to_thread

from trainyard_protocol.errors import FailedPrecondition, InvalidArgument, NotFound, ResourceExhausted
from trainyard_protocol.job.cluster import PRIMARY, Task
from trainyard_protocol.states import ReplicaState
from trainyard_protocol.wire.attachments import REFUSED, AttachReceipt, AttachRequest, close_reason
from trainyard_server.capabilities.attachments import store
from trainyard_server.capabilities.attachments.relay import StreamEnd, relay
from trainyard_server.capabilities.attachments.tables import AttachmentRow
from trainyard_server.context import Backend
from trainyard_server.domain.access.agent_keys import AgentKey
from trainyard_server.domain.access.permissions import Caller
from trainyard_server.services.agents.agent_keys import check_key
from trainyard_server.services.jobs.known_jobs import check_change, known_job
from trainyard_server.storage.db.base.models import JobRow, ReplicaRow, RunRow
from trainyard_server.storage.db.queries.reader import LIVE_RUNS, Reader
from trainyard_server.storage.db.tables.audit_trail import CheckAgain
from trainyard_server.storage.events.notifier import agent_topic
from trainyard_server.storage.failures import DatabaseError, FailureLog

MEET_S = 30.0
"""How long an end of a stream waits for the other one."""

MOST_STREAMS = 256
"""Streams of an attachment at the same time: connections to its ports."""

_RENEW_S = 30.0
_EXPIRES = timedelta(seconds=3 * _RENEW_S)

Side = Literal["client", "agent"]

_failures = FailureLog(logging.getLogger(__name__))


@dataclass(slots=True)
class _Meeting:
    """A stream: the ends that have come, and whether it is over."""

    ends: dict[Side, StreamEnd] = field(default_factory=dict)
    both: asyncio.Event = field(default_factory=asyncio.Event)
    over: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(slots=True)
class _Open:
    """An attachment whose home this is."""

    caller: str
    agent_id: str
    agent: str
    moved_at: float
    streams: dict[int, _Meeting] = field(default_factory=dict)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def note(self) -> None:
        """Note that something came or went."""
        self.moved_at = time.monotonic()


class Attachments:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._open: dict[str, _Open] = {}

    def create(self, caller: Caller, project: str, job_id: str, request: AttachRequest) -> AttachReceipt:
        """Create an attachment to a running replica of the caller's own job, or as an admin of any.

        Raises NotFound, PermissionDenied, InvalidArgument for a request of nothing or of two things, FailedPrecondition
        for a job that does not allow it and a replica that does not run, ResourceExhausted for one too many.
        """
        backend = self._backend
        with backend.store.read() as reader:
            job = known_job(reader, project, job_id)
            check_change(caller, job)
            if bool(request.command) is bool(request.ports):
                raise InvalidArgument("An attachment is of a command or of ports: give one of the two.")
            self._check_allowed(reader, job)
            run, replica = _running(reader, job, request.task)
            agent = reader.agent(run.agent_id)
            assert agent is not None  # a run has one
            name = str(agent.info["name"])
        attachment_id, now = secrets.token_hex(16), backend.clock()
        row = AttachmentRow(
            attachment_id=attachment_id,
            agent_id=run.agent_id,
            run_id=run.run_id,
            task=replica.task,
            request=request.model_copy(update={"task": replica.task}).model_dump(mode="json"),
            caller=caller.name,
            server_url=backend.settings.peer_url,
            alive_until=now + _EXPIRES,
        )
        with backend.store.write() as writer:
            self._check_number(writer, caller)
            store.add(writer, row, now)
        self._forget_unused()
        self._open[attachment_id] = _Open(caller.name, run.agent_id, name, time.monotonic())
        return AttachReceipt(id=attachment_id, task=replica.task, agent=name)

    def _forget_unused(self) -> None:
        """Forget attachments to which nobody has come. Their rows expire."""
        oldest = time.monotonic() - MEET_S
        for attachment_id, attachment in list(self._open.items()):
            if not attachment.streams and attachment.moved_at < oldest:
                self._open.pop(attachment_id, None)

    def home_of(self, attachment_id: str, caller: Caller | None, key: AgentKey | None) -> str:
        """The URL of the server at which the attachment is, "" for this one, for its agent, or for its caller, who must
        still have the right to create it. Raises NotFound, PermissionDenied."""
        gone = NotFound("This shell, command or port forward does not exist or has ended.")
        with self._backend.store.read() as reader:
            row = store.attachment(reader, attachment_id)
            if row is None or (caller is not None and row.caller != caller.name):
                raise gone
            if caller is not None:
                run = reader.run(row.run_id)
                if run is None:
                    raise gone  # its job was deleted
                check_change(caller, reader.job_by_key(run.job_key))
            if key is not None:
                check_key(reader, reader.agent(row.agent_id), key)
            if attachment_id in self._open:
                return ""
            if row.server_url in ("", self._backend.settings.peer_url):
                raise gone  # this server has been started anew
            return row.server_url

    def begin(self, attachment_id: str, check_again: CheckAgain) -> None:
        """Order the attachment from its agent: its caller has come. Raises what `check_again` does."""
        with self._backend.store.write() as writer:
            check_again(writer)
            store.mark_joined(writer, attachment_id)
            row = store.attachment(writer, attachment_id)
            agent_id = row.agent_id if row is not None else ""
        self._backend.notifier.publish(agent_topic(agent_id))

    def end(self, caller: Caller, attachment_id: str) -> None:
        """End an attachment of the caller: its agent does."""
        with self._backend.store.read() as reader:
            row = store.attachment(reader, attachment_id)
            agent_id = row.agent_id if row is not None and row.caller == caller.name else ""
        if agent_id:
            self._remove(attachment_id)
            self._backend.notifier.publish(agent_topic(agent_id))

    async def join(self, attachment_id: str, stream: int, side: Side, end: StreamEnd) -> None:
        """Connect one end of a stream with the other, and pass on what comes, until it is over. Closes the end."""
        attachment = self._open.get(attachment_id)
        if attachment is None:
            await end.close(REFUSED, "It has ended.")
            return
        if stream and len(attachment.streams) > MOST_STREAMS:
            await end.close(REFUSED, f"More than {MOST_STREAMS} connections are open.")
            return
        meeting = attachment.streams.setdefault(stream, _Meeting())
        if side in meeting.ends:
            await end.close(REFUSED, "This stream is open already.")
            return
        meeting.ends[side] = end
        try:
            if len(meeting.ends) == 1:
                await _wait(attachment, meeting, end)
            else:
                meeting.both.set()
                tasks = [asyncio.create_task(relay(meeting.ends["client"], meeting.ends["agent"], attachment.note))]
                if stream == 0:
                    tasks.append(asyncio.create_task(self._keep(attachment_id, attachment, meeting)))
                await _until_first(attachment, tasks)
        finally:
            meeting.over.set()
            attachment.streams.pop(stream, None)
            if stream == 0:
                await self._end(attachment_id)

    async def _keep(self, attachment_id: str, attachment: _Open, meeting: _Meeting) -> None:
        """Keep the row of an attachment alive. Returns once it was idle for too long."""
        idle_s = self._backend.settings.attachment_idle_s
        while (left := attachment.moved_at + idle_s - time.monotonic()) > 0:
            await asyncio.sleep(min(left, _RENEW_S))
            await to_thread.run_sync(self._renew, attachment_id)
        reason = f"Nothing came or went for {idle_s:g} s, the limit of this server."
        await asyncio.gather(*(end.close(REFUSED, reason) for end in meeting.ends.values()))

    def _renew(self, attachment_id: str) -> None:
        try:
            with self._backend.store.write() as writer:
                store.keep_alive(writer, [attachment_id], self._backend.clock() + _EXPIRES)
        except DatabaseError as error:  # the next time
            _failures.record("Attachments cannot be kept alive", error)

    async def _end(self, attachment_id: str) -> None:
        attachment = self._open.pop(attachment_id, None)
        if attachment is None:
            return
        for task in attachment.tasks:
            task.cancel()
        streams = [end for meeting in attachment.streams.values() for end in meeting.ends.values()]
        await asyncio.gather(*(end.close(REFUSED, "The forwarder has ended.") for end in streams))
        try:
            await to_thread.run_sync(self._remove, attachment_id)
        except DatabaseError as error:  # it expires
            _failures.record("An attachment that has ended cannot be removed", error)
        self._backend.notifier.publish(agent_topic(attachment.agent_id))

    def _remove(self, attachment_id: str) -> None:
        with self._backend.store.write() as writer:
            store.remove(writer, attachment_id)

    def _check_allowed(self, reader: Reader, job: JobRow) -> None:
        if self._backend.settings.one_user or reader.job_input(job)[0].enable_web_access:
            return
        raise FailedPrecondition(
            f"The job {job.job_id} does not allow it. Whoever may enter a replica sees its secrets, so a job says so: "
            "submit it with --enable-web-access (enableWebAccess: true in trainingInput)."
        )

    def _check_number(self, reader: Reader, caller: Caller) -> None:
        most = self._backend.settings.attachments
        if store.open_of(reader, caller.name, self._backend.clock()) >= most:
            raise ResourceExhausted(
                f"{caller.name} has {most} shells, commands and forwarders of ports open, as many as this server "
                "allows (--attachments). End one of them; this one can be opened then."
            )


def _running(reader: Reader, job: JobRow, task: str) -> tuple[RunRow, ReplicaRow]:
    """The replica of the job's live run with this task, "": the primary. Raises InvalidArgument, FailedPrecondition."""
    try:
        name = Task.parse(task).name if task else PRIMARY.name
    except ValueError as error:
        raise InvalidArgument(f"{task!r} is no replica of a job: {error}") from error
    gang = reader.live_run(job.key)
    restarts = [run for run in reader.restarts([job.key]) if run.state in LIVE_RUNS]
    runs = [*restarts, *(reader.parts(gang) if gang is not None else ())]
    replicas = {run.run_id: list(reader.replicas([run.run_id])) for run in runs}
    found = [(run, replica) for run in runs for replica in replicas[run.run_id] if replica.task == name]
    for run, replica in found:
        if replica.state is ReplicaState.RUNNING:
            return run, replica
    names = ", ".join(replica.task for run in runs for replica in replicas[run.run_id])
    if found:
        raise FailedPrecondition(f"{name} does not run: it is {found[0][1].state}.")
    if names:
        raise InvalidArgument(f"The job {job.job_id} has no {name}. Its replicas: {names}.")
    raise FailedPrecondition(f"The job {job.job_id} does not run: it is {job.state}.")


async def _wait(attachment: _Open, meeting: _Meeting, end: StreamEnd) -> None:
    """Wait for the other end, and then for the end of the stream. Closes the end where the other does not come."""
    try:
        async with asyncio.timeout(MEET_S):
            await meeting.both.wait()
    except TimeoutError:
        late = f"The agent {attachment.agent}" if "client" in meeting.ends else "The command line"
        await end.close(REFUSED, close_reason(f"{late} did not answer within {MEET_S:g} s."))
        return
    await meeting.over.wait()


async def _until_first(attachment: _Open, tasks: list[asyncio.Task[None]]) -> None:
    """Wait until one of the tasks has ended, by itself or by the end of the attachment, and cancel the others."""
    attachment.tasks.update(tasks)
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            if not task.cancelled():
                task.result()
    finally:
        attachment.tasks.difference_update(tasks)
        for task in tasks:
            task.cancel()
