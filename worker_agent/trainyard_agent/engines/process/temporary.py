"""The temporary directories of replicas, which are outside of the state directory (`host/temporary.py`).

`temporary/RUN.json` there has those of a run, from before the first is made until the last is removed. So an agent
finds what one before it has left, and nothing of other agents.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, ValidationError

from trainyard_agent.host import temporary, unix_users
from trainyard_agent.host.files import DamagedFile, read_json, remove_tree, write_json


class _Record(BaseModel):
    """The user of a run, None: the agent's, and the directories of its replicas by task."""

    user: int | None = None
    paths: dict[str, str] = {}


class TemporaryDirectories:
    """Those of the runs in one state directory."""

    def __init__(self, state_dir: Path) -> None:
        self._records = state_dir / "temporary"

    def make(self, run_id: str, tasks: Sequence[str], user: int | None) -> None:
        """Make one for each replica of a run, for its user alone. Raises OSError."""
        self._records.mkdir(mode=0o700, exist_ok=True)
        record = _Record(user=user)
        place = parent_of(has_users=user is not None)
        for task in tasks:

            def note(path: str, task: str = task) -> None:
                record.paths[task] = path
                # Not durable: after a crash of the machine another one may clear its temporary files.
                write_json(self._file(run_id), record.model_dump(mode="json"), mode=0o600, durable=False)

            temporary.make(place, note, user)

    def of(self, run_id: str, task: str) -> Path | None:
        """The directory of a replica; None: it has none."""
        path = self._record(run_id).paths.get(task)
        return Path(path) if path else None

    def run_ids(self) -> list[str]:
        """The runs that have any."""
        return sorted(path.stem for path in self._records.glob("*.json"))

    def remove(self, run_id: str) -> None:
        """Remove those of a run, of which no process lives, with all that is in them. Raises OSError."""
        record = self._record(run_id)
        users = {os.geteuid(), *(() if record.user is None else (record.user,))}
        for path in record.paths.values():
            if temporary.belongs_to(path, users):
                remove_tree(Path(path))
        self._file(run_id).unlink(missing_ok=True)

    def _record(self, run_id: str) -> _Record:
        try:
            value = read_json(self._file(run_id))
            return _Record() if value is None else _Record.model_validate(value)
        except (DamagedFile, ValidationError):
            return _Record()

    def _file(self, run_id: str) -> Path:
        return self._records / f"{run_id}.json"


def parent_of(*, has_users: bool) -> str:
    """The directory in which they are made. `has_users`: runs have users of their own, who must come in."""
    return temporary.parent(lambda path: not has_users or unix_users.closed_to(Path(path)) is None)
