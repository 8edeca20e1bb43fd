"""The default job-dirs of a server over time: a job keeps that of its submission, whatever is set later."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from trainyard_protocol.errors import FailedPrecondition

_FILE = "default-job-dirs.json"


@dataclass(frozen=True, slots=True)
class DefaultJobDirs:
    """The values of `--new-default-job-dir` with the time from which each holds, the oldest first; "" where it was
    taken back."""

    values: Sequence[tuple[datetime, str]] = ()

    @classmethod
    def noted(cls, data_dir: Path, value: str, now: datetime) -> "DefaultJobDirs":
        """Those of the data directory, with this one from now on. Raises OSError, FailedPrecondition for a damaged
        file."""
        file = data_dir / _FILE
        values: list[tuple[datetime, str]] = []
        if file.exists():
            try:
                entries = json.loads(file.read_text(encoding="utf-8"))
                values = [(datetime.fromisoformat(since), str(root)) for since, root in entries]
            except (ValueError, TypeError) as error:
                raise FailedPrecondition(
                    f"{file}, which says where the job-dirs of earlier jobs are, is damaged: restore it, or remove it."
                ) from error
        if value != (values[-1][1] if values else ""):
            values.append((now, value))
            draft = file.with_suffix(".new")
            draft.write_text(json.dumps([(since.isoformat(), root) for since, root in values]), encoding="utf-8")
            draft.replace(file)
        return cls(tuple(values))

    def at(self, created: datetime) -> str:
        """The value for a job of that time; "" for none."""
        return next((root for since, root in reversed(self.values) if since <= created), "")
