"""Configs: what is wrong with one, before it is sent; what became of one that was."""

import shlex
from collections.abc import Iterator
from contextlib import suppress
from threading import BoundedSemaphore
from typing import Any

from pydantic.alias_generators import to_camel

from trainyard_protocol import config_text
from trainyard_protocol.cluster import arguments, says_chief
from trainyard_protocol.config_text import NotReadable
from trainyard_protocol.config_views import (
    CommandView,
    ConfigCheck,
    ConfigCheckRequest,
    JobConfig,
    Outlook,
    Problem,
    Source,
    SuggestedId,
)
from trainyard_protocol.errors import (
    AlreadyExists,
    FailedPrecondition,
    InvalidArgument,
    ResourceExhausted,
    Unavailable,
)
from trainyard_protocol.machines import gang
from trainyard_protocol.states import JobState
from trainyard_protocol.training_input import Job, TrainingInput, parse_job
from trainyard_server.context import Backend
from trainyard_server.control.snapshots import agents_now, queued_snapshot, queued_snapshots
from trainyard_server.domain.configs import clone as cloning
from trainyard_server.domain.configs import resolved as resolving
from trainyard_server.domain.configs.draft import Draft, unreadable
from trainyard_server.domain.permissions import Caller
from trainyard_server.domain.scheduling.candidates import fits
from trainyard_server.domain.scheduling.scheduler import Placement, Planner, Queued, in_order
from trainyard_server.services.job_details import Explaining
from trainyard_server.services.jobs import Jobs, known_job
from trainyard_server.storage.db.repository import Reader

MAX_BYTES = 64 * 2**10
"""Of a text that is checked, and of shell words beside it. Reading so much YAML takes about a second at worst."""

_AT_ONCE = 4
_PATIENCE_S = 2.0
"""How many texts are read at the same time, and how long the next one waits for its turn."""

_MAX_QUEUE = 500
"""How many queued jobs are planned to say whether one more would start now."""

_NEW = -1
"""The key of a job that is not there."""


class Configs:
    def __init__(self, backend: Backend, jobs: Jobs, explaining: Explaining) -> None:
        self._backend = backend
        self._jobs = jobs
        self._explaining = explaining
        self._turns = BoundedSemaphore(_AT_ONCE)

    def check(self, caller: Caller, project: str, request: ConfigCheckRequest) -> ConfigCheck:
        """What submit would say to the caller. Nothing is created, and nothing that is wrong is raised: it is in the
        answer."""
        if len(request.config.encode(errors="replace")) > MAX_BYTES:
            said = f"is larger than {MAX_BYTES // 2**10} KiB: give it to the command line."
            return ConfigCheck(ok=False, problems=(Problem(message=f"The config {said}"),))
        if isinstance(request.args, str) and len(request.args) > MAX_BYTES:
            said = f"The arguments are longer than {MAX_BYTES // 2**10} KiB: give them to the command line."
            return ConfigCheck(ok=False, problems=(Problem(message=said, source="args", field="args"),))
        if not self._turns.acquire(timeout=_PATIENCE_S):
            raise Unavailable("Many configs are being checked at this moment: try again.")
        try:
            read = config_text.read(request.config.removeprefix("\ufeff"), request.format)
        except NotReadable as error:
            return ConfigCheck(ok=False, problems=(unreadable(error),))
        finally:
            self._turns.release()
        try:
            args = shlex.split(request.args) if isinstance(request.args, str) else list(request.args)
        except ValueError as error:
            said = f"The arguments are no shell words: {str(error).lower()}."
            return ConfigCheck(ok=False, problems=(Problem(message=said, source="args", field="args"),))
        draft = Draft(read, _beside(request, args))
        body = draft.body()
        warnings = tuple(draft.replaced())
        try:
            created = self._jobs.create(caller, project, body, validate_only=True)
        except (InvalidArgument, ResourceExhausted) as error:
            found = tuple(draft.problems(error))
            free = ""
            if isinstance(error, AlreadyExists):
                free = self.suggest(project, str(body.get("jobId"))).job_id
            return ConfigCheck(ok=False, problems=(*found, *warnings), suggested_id=free)
        job = parse_job(body)
        return ConfigCheck(
            ok=True,
            problems=warnings,
            job={key: created[key] for key in ("jobId", "trainingInput", "labels") if key in created},
            gang=resolving.groups(gang(job.training_input, self._backend.catalog), job.training_input),
            args=tuple(arguments(job.training_input, job.training_input.job_dir)),
            outlook=self._outlook(project, job),
            notes=tuple(_notes(job.training_input)),
        )

    def config(self, project: str, job_id: str) -> JobConfig:
        """Raises NotFound."""
        with self._backend.store.read() as reader:
            row = known_job(reader, project, job_id)
            new_id = cloning.next_id(job_id, lambda name: reader.job(project, name) is not None)
            requests = queued_snapshot(row).gang
            labels = dict(row.labels)
            training_input = TrainingInput.model_validate(row.training_input)
        replicas = resolving.groups(requests, training_input)
        sent = resolving.as_sent(training_input)
        resolved = resolving.resolved(training_input, replicas)
        resolved_text = resolving.as_yaml(resolving.document(resolved, labels))
        tasks = [request.task.name for request in requests]
        return JobConfig(
            sent=resolving.document(training_input.canonical(), labels),
            sent_text=resolving.as_yaml(resolving.document(sent, labels)),
            resolved=resolving.document(resolved, labels),
            resolved_text=resolved_text,
            filled_lines=resolving.filled_lines(resolved_text, resolving.document(sent, labels)),
            gang=replicas,
            primary="chief" if says_chief(training_input) else "master",
            args=training_input.args,
            job_dir=training_input.job_dir,
            labels=labels,
            commands=(
                *cloning.commands(project, job_id, new_id, sent, labels, tasks),
                *self._reproduce(project, job_id),
            ),
            clone=cloning.clone(job_id, new_id, sent, labels),
        )

    def _reproduce(self, project: str, job_id: str) -> Iterator[CommandView]:
        """The line that starts the primary by hand, once it is known where it is."""
        with suppress(FailedPrecondition):
            said = self._explaining.explain(project, job_id)
            yield CommandView(name="reproduce", title=f"Start {said.task} by hand", command=said.reproduce)

    def suggest(self, project: str, like: str) -> SuggestedId:
        """An id that is free in the project: `like` itself, or what follows it. Raises InvalidArgument for no id."""
        parse_job({"jobId": like, "trainingInput": {}})
        with self._backend.store.read() as reader:

            def is_taken(name: str) -> bool:
                return reader.job(project, name) is not None

            return SuggestedId(job_id=cloning.next_id(like, is_taken) if is_taken(like) else like)

    def _outlook(self, project: str, job: Job) -> Outlook:
        """Whether it would start now, as `jobs why` would say a moment after it was sent."""
        backend, scheduling = self._backend, job.training_input.scheduling
        wanted = Queued(
            key=_NEW,
            priority=scheduling.priority if scheduling else 0,
            created_at=backend.clock(),
            gang=tuple(gang(job.training_input, backend.catalog)),
            needs_images=bool(job.training_input.image_uri),
            project=project,
        )
        with backend.store.read() as reader:
            agents = agents_now(reader, backend)
            queue = _queue(reader)
        places = fits(wanted, agents, backend.quotas)
        if queue is None:
            said = f"More than {_MAX_QUEUE} jobs are queued here; it would line up with them by its priority."
            return Outlook(starts=False, summary=said, agents=places)
        planner = Planner(agents, wanted.created_at, backend.quotas)
        for one in in_order([*queue, wanted]):
            answer = planner.take(one)
            if one is not wanted:
                continue
            if isinstance(answer, Placement):
                name = next(agent.name for agent in agents if agent.agent_id == answer.agent_id)
                said = f"It would start now, on agent {name}. {answer.scaled}".rstrip()
                return Outlook(starts=True, summary=said, agents=places)
            return Outlook(starts=False, summary=f"It would wait: {answer.reason}.", agents=places)
        raise AssertionError("the job was planned with the others")


def _queue(reader: Reader) -> list[Queued] | None:
    """The queue, if it is not too long to be planned for a glance."""
    if reader.job_counts().get(JobState.QUEUED, 0) > _MAX_QUEUE:
        return None
    return queued_snapshots(reader.queued())


def _beside(request: ConfigCheckRequest, args: list[str]) -> dict[Source, Any]:
    given: dict[Source, Any] = {
        "job_id": request.job_id.strip(),
        "args": args,
        "job_dir": request.job_dir.strip(),
        "labels": request.labels,
        "packages": list(request.package_uris),
    }
    return {source: value for source, value in given.items() if value}


_RECORDED = ("network", "service_account", "encryption_config", "enable_web_access")
"""Fields of the API that are kept with the job and have no meaning on machines of one's own."""


def _notes(training_input: TrainingInput) -> Iterator[str]:
    if training_input.python_module and not training_input.package_uris:
        yield (
            f"No package comes with it: {training_input.python_module} must be importable where it runs. "
            "Attach the package that holds it, unless it is installed there."
        )
    if not training_input.job_dir:
        yield "It has no job-dir: its program is told of no directory to save to."
    names = [to_camel(name) for name in _RECORDED if name in training_input.model_fields_set]
    if names:
        yield f"Recorded with the job, and without effect here: {', '.join(names)}."
