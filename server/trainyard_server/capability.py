"""Capability: what may it add to the kernel?

The kernel submits, schedules, runs and follows jobs, and knows no capability. `capabilities/registry.py` lists those of
a server; each has its folder there, and its `capability.py` says what it adds by these seams. A capability imports the
kernel and the protocol, never another one. It is taken out by its folders, its line in the registry, and a migration
for its tables (`docs/contributing/add-a-capability.md`).
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from trainyard_protocol.job.training_input import Job
from trainyard_server.config.settings import CapabilitySettings, Settings
from trainyard_server.storage.db.base.models import JobRow
from trainyard_server.storage.db.queries.reader import Reader
from trainyard_server.storage.db.repository import JobEvents

if TYPE_CHECKING:  # for its types
    from starlette.types import ASGIApp

    from trainyard_server.api.routing import Router
    from trainyard_server.context import Backend
    from trainyard_server.dashboard.views import JobCard, Link
    from trainyard_server.services.measurements.curves import Curves
    from trainyard_server.services.people.principals import Credentials
    from trainyard_server.use_cases import UseCases


@dataclass(frozen=True, slots=True)
class Loop:
    """Work in the background.

    `step` is called in a thread every `every_s` and whenever `topic` is published, until the server stops; what it
    returns is awaited. A failure is logged as `failure`, once for each cause, and the next step tries again. `leads`:
    on one server of those on the same database alone.
    """

    step: Callable[["UseCases"], Awaitable[None] | object]
    every_s: float
    failure: str
    topic: str = ""
    leads: bool = True


@dataclass(frozen=True, slots=True)
class Middleware:
    """`make` wraps the application. `reads_answers`: it is inside of compression, where it reads answers as they are;
    else outside, so that compression sees the path that it has given a request."""

    make: Callable[["ASGIApp", Settings], "ASGIApp"]
    reads_answers: bool = False


class Figure(NamedTuple):
    """Counts for a monitoring system, by the value of a label: `trainyard_notifications{state="failed"}`."""

    name: str
    text: str
    label: str
    counts: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Capability:
    name: str
    """The name of its folders: here, of the command line, of the tests."""

    services: Callable[["UseCases"], Iterable[object]] = lambda _: ()
    """Makes its use cases at the start of the server, after those of the kernel; `UseCases.of` finds each by its class.
    What it raises ends the start."""

    close: Callable[["UseCases"], Awaitable[object]] | None = None
    """Releases what its services hold, when the server stops."""

    middleware: Sequence[Middleware] = ()
    """Middleware around all routes, outside of audit and authentication, inside of the check of the host."""

    routers: Sequence["Router"] = ()
    """Its routes and pages, each with who may call it. They are tried after those of the kernel, in the order of the
    registry."""

    links: Sequence["Link"] = ()
    """Its entries of the navigation. A template of the kernel links to a page of a capability only if it is among
    `pages`."""

    job_cards: Sequence["JobCard"] = ()
    """Its cards of a job's page, behind the curve."""

    options: type[CapabilitySettings] | None = None
    """Its settings: a dataclass, whose flags are the server's. `Settings.of` has their values."""

    heading: str = ""
    """The heading of these flags in `--help`, with a sentence in its second line."""

    loops: Sequence[Loop] = ()

    credentials: Callable[[Settings, bytes], Iterable["Credentials"]] = lambda *_: ()
    """Further credentials than tokens, by the settings and the server's key; made before the use cases."""

    check: Callable[["Backend", Reader, str, Job], None] | None = None
    """Checks a job that is submitted to a project, in the transaction that adds it. A TrainyardError refuses the job;
    others that are submitted at the same time are added."""

    job_events: JobEvents | None = None
    """Writes beside jobs, in the transaction of each event. What it raises undoes the transaction. `Writer.hold` keeps
    a job that is added from starting, until it is called again."""

    before_removal: Callable[["Backend", Collection[int]], None] | None = None
    """Keeps what outlives jobs that are about to be deleted, by their keys, before their files go. What it raises
    leaves the jobs as they are: a TrainyardError says why they cannot be deleted yet."""

    order: Callable[["Backend", Reader, JobRow, str], Mapping[str, Any]] | None = None
    """Its fields of the order of a run of a job, with the run's token ("": it has none). `variables` are also those of
    `jobs explain`, and placeholders in arguments: `{after.job_dir}` is TRAINYARD_AFTER_JOB_DIR."""

    curves: "Curves | None" = None
    """A source of points of a job's metrics, beside what its programs print and write."""

    figures: Callable[["Backend"], Iterable[Figure]] = lambda _: ()
    """Its figures for a monitoring system, which are read at each scrape."""

    stored: Mapping[str, Callable[["UseCases"], Iterator[str]]] = field(default_factory=dict)
    """What it stores, for the rehearsal of a backup: for each thing the text of its fault, or ""."""

    agent_orders: Callable[[Reader, str, datetime], Mapping[str, Any]] | None = None
    """Its fields of the answer to an agent that runs something, by the agent's id, now. It is asked for whenever the
    agent calls or is woken (`agent_topic`)."""
