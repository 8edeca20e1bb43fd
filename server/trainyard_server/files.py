"""The files of a job: what lies in its job-dir, and what each of them holds."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from trainyard_protocol.errors import FailedPrecondition, Unavailable
from trainyard_protocol.file_views import FileListing
from trainyard_server.backend import Backend
from trainyard_server.bucket_files import SCHEME, BucketTree
from trainyard_server.file_tree import Content, Tree, names
from trainyard_server.jobs import known_job
from trainyard_server.local_files import LocalTree
from trainyard_server.logs import Stream
from trainyard_server.store import Reader

_T = TypeVar("_T")

_PATIENCE_S = 10.0
_AT_ONCE = 8
_EMULATOR = "STORAGE_EMULATOR_HOST"
_MODEL = "model"
_LAST_LINES = 100  # of the primary's log, in which its program says where its model is
_LONGEST_MODEL = 1024


class Files:
    """Blocks, for ten seconds at most before it says that nobody answers."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        # A store that does not answer holds these up, and not everybody else.
        self._askers = ThreadPoolExecutor(_AT_ONCE, "files")

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
            tree = _tree(job_dir, self._backend.settings.job_dir_roots, emulator)
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
        roots = self._backend.settings.job_dir_roots
        return self._in_time(lambda: _tree(job_dir, roots, emulator).content(parts), job_dir)

    def _in_time(self, look: Callable[[], _T], job_dir: str) -> _T:
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


def _tree(job_dir: str, roots: tuple[Path, ...], emulator: str) -> Tree:
    return BucketTree(job_dir, emulator) if job_dir.startswith(SCHEME) else LocalTree(job_dir, roots)


def _emulator_of(reader: Reader, agent_id: str) -> str:
    """What the replicas of that agent take for gs://."""
    agent = reader.agent(agent_id) if agent_id else None
    return str(agent.info.get("replica_environment", {}).get(_EMULATOR, "")) if agent is not None else ""


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
