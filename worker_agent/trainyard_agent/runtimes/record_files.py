"""Files with the records of runs, as a runtime finds them: any of them may be damaged."""

import logging
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from trainyard_agent.host.files import DamagedFile, read_json

_Record = TypeVar("_Record", bound=BaseModel)


class RecordFiles:
    """Reads records, and warns in `log`, of each thing once."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._warned: set[str] = set()

    def read(self, path: Path, kind: type[_Record]) -> _Record | None:
        """The content of a file; None for a missing or damaged one."""
        try:
            value = read_json(path)
            return None if value is None else kind.model_validate(value)
        except (DamagedFile, ValidationError) as error:
            self.warn_once(f"{path} is ignored: {error}")
            return None

    def warn_once(self, message: str) -> None:
        """Log a warning, the same message only once."""
        if message not in self._warned:
            self._log.warning("%s", message)
        self._warned.add(message)
