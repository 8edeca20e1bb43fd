"""The files of a job: what lies in its job-dir, and what each of them holds."""

import json
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import BoundedSemaphore
from typing import TypeVar

from trainyard_protocol.errors import FailedPrecondition, Unavailable
from trainyard_protocol.file_views import FileListing
from trainyard_server.context import Backend
from trainyard_server.services.jobs import known_job
from trainyard_server.storage.db.repository import Reader
from trainyard_server.storage.job_files.gcs import SCHEME, BucketTree
from trainyard_server.storage.job_files.local import LocalTree
from trainyard_server.storage.job_files.tree import Content, Tree, names
from trainyard_server.storage.logs.store import Stream

_T = TypeVar("_T")

_PATIENCE_S = 10.0
_AT_ONCE = 8
_WAITING = 24  # who wait for them at most: each holds up a thread of those that serve everybody
_EMULATOR = "STORAGE_EMULATOR_HOST"
_ADDRESS = re.compile(r"(https?://)?([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:\d{1,5})?/?")
_MODEL = "model"
_LAST_LINES = 100  # of the primary's log, in which its program says where its model is
_LONGEST_MODEL = 1024


class Files:
    """Blocks, for ten seconds at most before it says that nobody answers."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        # A store that does not answer holds these up, and not everybody else.
        self._askers = ThreadPoolExecutor(_AT_ONCE, "files")
        self._places = BoundedSemaphore(_WAITING)

    def close(self) -> None:
        self._askers.shutdown(wait=False, cancel_futures=True)

    def listing(self, project: str, job_id: str, path: str = "", page_token: str = "") -> FileListing:
        """One page of a directory; `path` is below the job-dir, "" the job-dir itself.

        Raises NotFound for a job, a directory or a bucket that is not there, InvalidArgument for a path that is none,
        FailedPrecondition for a job-dir that cannot be looked into, PermissionDenied for what leads out of it,
        Unavailable for a store that does not answer.
        """
        parts = names(path)
        job_dir, said, emulator = self._place(project, job_id)

        def look() -> FileListing:
            tree = self._tree(job_dir, emulator)
            page = tree.page(parts, page_token)
            model = ""
            if not parts:
                model = said or (f"{job_dir.rstrip('/')}/{_MODEL}" if tree.has_directory(_MODEL) else "")
            return FileListing(
                job_dir=job_dir, path=path, entries=page.entries, next_page_token=page.more, model=model
            )

        return self._in_time(look, job_dir)

    def content(self, project: str, job_id: str, path: str) -> Content:
        """A file, to be read by the caller; raises what `listing` raises."""
        parts = names(path)
        if not parts:
            raise FailedPrecondition("The job-dir is a directory: only files can be downloaded.")
        job_dir, _, emulator = self._place(project, job_id)
        return self._in_time(lambda: self._tree(job_dir, emulator).content(parts), job_dir)

    def _tree(self, job_dir: str, emulator: str) -> Tree:
        """Raises FailedPrecondition for a job-dir that may not be shown."""
        settings = self._backend.settings
        if not job_dir.startswith(SCHEME):
            return LocalTree(job_dir, settings.job_dir_roots)
        if not emulator and not any(_is_below(job_dir, root) for root in settings.job_dir_buckets):
            raise FailedPrecondition(
                f"The job-dir {job_dir} lies in no bucket that this server may show with its own credentials "
                "(its --job-dir-root gs://BUCKET)."
            )
        return BucketTree(job_dir, emulator)

    def _in_time(self, look: Callable[[], _T], job_dir: str) -> _T:
        if not self._places.acquire(blocking=False):
            raise Unavailable("Many look at files at this moment: try again.")
        asked = self._askers.submit(look)
        try:
            return asked.result(_PATIENCE_S)
        except TimeoutError as error:
            if asked.done():  # it is the answer that was an error of this kind
                raise
            asked.cancel()
            raise Unavailable(
                f"Nobody answers for {job_dir} within {_PATIENCE_S:.0f} s. Try again later."
            ) from error
        finally:
            self._places.release()

    def _place(self, project: str, job_id: str) -> tuple[str, str, str]:
        """The job-dir, where the program says that its model is, and which emulator stands in for gs://."""
        with self._backend.store.read() as reader:
            job = known_job(reader, project, job_id)
            job_dir = str(job.training_input.get("jobDir") or "")
            if not job_dir:
                raise FailedPrecondition(
                    f"The job {job_id} has no job-dir: it was submitted without jobDir (--job-dir), so nobody knows "
                    "where it writes."
                )
            runs = reader.runs(job.key)
            primary = next(iter(reader.replicas([runs[-1].run_id])), None) if runs else None
            agent_id = runs[-1].agent_id if runs else ""
            emulator = self._backend.settings.storage_emulator or _emulator_of(reader, agent_id)
        said = ""
        if primary is not None:
            stream = Stream(runs[-1].number, primary.task)
            said = _reported(self._backend.logs.tail(project, job_id, stream, _LAST_LINES))
        return job_dir, said, emulator


def _is_below(address: str, root: str) -> bool:
    """`gs://bucket/runs/digits` is below `gs://bucket/runs`; every address is below `gs://`."""
    return f"{address.rstrip('/')}/".startswith(root if root == SCHEME else f"{root.rstrip('/')}/")


def _emulator_of(reader: Reader, agent_id: str) -> str:
    """What the replicas of that agent take for gs://. Raises FailedPrecondition for what is more than a server's
    address: an agent is not to say what this server asks for there."""
    agent = reader.agent(agent_id) if agent_id else None
    said = str(agent.info.get("replica_environment", {}).get(_EMULATOR, "")) if agent is not None else ""
    if said and not _ADDRESS.fullmatch(said):
        raise FailedPrecondition(f"The agent's {_EMULATOR} is no address of a server: {said!r}.")
    return said


def _reported(lines: tuple[str, ...]) -> str:
    """The place of the model in the last line that names one: `{"event": "saved", "model": ...}`."""
    for line in reversed(lines):
        if '"saved"' not in line:
            continue
        try:
            said = json.loads(line)
        except (ValueError, RecursionError):
            continue
        model = said.get("model") if isinstance(said, dict) and said.get("event") == "saved" else None
        if isinstance(model, str) and len(model) <= _LONGEST_MODEL:
            return model
    return ""
