"""Use cases of `/storage/v1`: who may read and write which bucket, and the way to the storage behind.

A bucket belongs to the project that it was made for. One that was not made here, as in a storage that others use too,
is for people with a role in all projects.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime

from trainyard_protocol.errors import FailedPrecondition, InvalidArgument, PermissionDenied, Violation, shown
from trainyard_protocol.net.storage_calls import BUCKET_RULE, Kind, StorageCall, is_bucket_name
from trainyard_server.context import Backend
from trainyard_server.domain.access.permissions import ALL_PROJECTS, Caller, Role
from trainyard_server.services.jobs.known_jobs import check_project
from trainyard_server.storage.db.repository import Writer
from trainyard_server.storage.db.tables import buckets as rows
from trainyard_server.storage.db.tables.audit_trail import current_trail
from trainyard_storage.remote import RemoteStorage

_OF_ADMINS = (Kind.UPDATE_BUCKET, Kind.DELETE_BUCKET, Kind.SET_POLICY)


@dataclass(frozen=True, slots=True)
class ProjectBucket:
    name: str
    made_at: datetime


class ObjectStorage:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        settings = backend.settings
        address = settings.storage or settings.storage_emulator
        self._remote = RemoteStorage(address) if address else None

    @property
    def remote(self) -> RemoteStorage:
        """The storage behind. Raises FailedPrecondition where the site has set none."""
        if self._remote is None:
            raise FailedPrecondition(
                "This server has no storage behind /storage/v1: its operator sets one with --storage URL."
            )
        return self._remote

    def check(self, caller: Caller, call: StorageCall) -> None:
        """Raises PermissionDenied, InvalidArgument for the name of a bucket."""
        if call.writes and self._backend.settings.only_operators_submit and not (caller.is_operator or caller.is_run):
            raise PermissionDenied(
                f"You are {caller}. Jobs of this service run with the rights of its user, and load what is in its "
                "buckets, so only operators and jobs write to them."
            )
        role_to_write = Role.ADMIN if call.kind in _OF_ADMINS else Role.SUBMITTER
        for bucket, role in ((call.reads, Role.VIEWER), (call.writes, role_to_write)):
            if bucket:
                self._check_bucket(caller, bucket, role)
        if call.kind is Kind.SET_POLICY:
            raise PermissionDenied(
                "Permission 'storage.buckets.setIamPolicy' denied on resource "
                f"//storage.googleapis.com/projects/_/buckets/{call.bucket}: a bucket has no IAM policy of its own. "
                "Roles are those of its project: give one with `trainyard projects add-member`."
            )

    def visible_project(self, caller: Caller, bucket: str) -> str:
        """The bucket's project, if the caller sees it; else "". `bucket` may be any text."""
        if not is_bucket_name(bucket):
            return ""
        with self._backend.store.read() as reader:
            project = rows.project_of(reader, bucket)
        return project if project is not None and caller.sees(project) else ""

    def check_new_bucket(self, caller: Caller, name: object, project: str) -> str:
        """The name, if the caller may make such a bucket in the project. Raises PermissionDenied, InvalidArgument."""
        check_bucket_name(name)
        if self._backend.settings.only_operators_submit and not (caller.is_operator or caller.is_run):
            raise PermissionDenied(f"You are {caller}. Only operators and jobs make buckets of this service.")
        if not project and caller.may(Role.SUBMITTER, ALL_PROJECTS):
            return str(name)
        self.check_lists(caller, project)
        if not caller.may(Role.SUBMITTER, project):
            raise PermissionDenied(
                f"You are {caller.described_in(project)}. A new bucket needs the role {Role.SUBMITTER} in its project."
            )
        return str(name)

    def check_lists(self, caller: Caller, project: str) -> None:
        """Raises PermissionDenied, InvalidArgument."""
        if not project:
            raise InvalidArgument(Violation("project", "is needed: buckets belong to projects, ?project=PROJECT."))
        check_project(project)
        caller.check_sees(project)

    def buckets_of(self, project: str) -> Sequence[ProjectBucket]:
        with self._backend.store.read() as reader:
            return [ProjectBucket(row.name, row.made_at) for row in rows.of_project(reader, project)]

    def note_new_bucket(self, caller: Caller, bucket: str, project: str) -> None:
        if project:
            with self._write() as writer:
                rows.save(writer, bucket, project, caller.name, self._backend.clock())

    def note_deleted_bucket(self, bucket: str) -> None:
        with self._write() as writer:
            rows.remove(writer, bucket)

    def _write(self) -> AbstractContextManager[Writer]:
        """A transaction about what the storage has done already, whether or not its caller still may."""
        if trail := current_trail():
            trail.check_again = None
        return self._backend.store.write()

    async def close(self) -> None:
        if self._remote is not None:
            await self._remote.close()

    def _check_bucket(self, caller: Caller, bucket: str, role: Role) -> None:
        check_bucket_name(bucket)
        if caller.may(role, ALL_PROJECTS):
            return
        with self._backend.store.read() as reader:
            project = rows.project_of(reader, bucket)
        if not (caller.sees(project) if project is not None else caller.may(Role.VIEWER, ALL_PROJECTS)):
            raise PermissionDenied(
                f"You are {caller}, who has no role in the project of the bucket {bucket} (or it does not exist)."
            )
        if project is None or not caller.may(role, project):
            you = f"You are {caller.described_in(project or ALL_PROJECTS)}"
            raise PermissionDenied(f"{you}. This call needs the role {role} for the bucket {bucket}.")


def check_bucket_name(name: object) -> None:
    """Raises InvalidArgument."""
    if not isinstance(name, str) or not is_bucket_name(name):
        raise InvalidArgument(
            Violation("bucket", f"{shown(str(name))!r} is not a bucket name: it must have {BUCKET_RULE}.")
        )
