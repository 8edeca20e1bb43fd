"""The log of a service of ours: its format, the request in which a line was written, and its last lines.

set_up("json")     # or "text"
"""

import json
import logging
import re
import sys
import uuid
from collections import deque
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Literal, TextIO

LogFormat = Literal["text", "json"]
FORMATS: tuple[LogFormat, ...] = ("text", "json")

REQUEST_ID = "X-Request-Id"
"""The header with the id of a request, in requests and in answers."""

RECENT = 2000
"""Lines that are kept in memory."""

_TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")

request_id: ContextVar[str] = ContextVar("request_id", default="")
"""The id of the request that this context serves; "" outside of one."""

recent: deque[str] = deque(maxlen=RECENT)
"""The last lines of this process."""


def new_request_id(given: str) -> str:
    """The id that a caller gave, if it is one, or a new one."""
    return given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex[:16]


def set_up(log_format: LogFormat, stream: TextIO | None = None) -> None:
    """Let the root logger write to the stream. Without one to standard error, unless something else has set up the log
    of this process, as with `logging.basicConfig`."""
    root = logging.getLogger()
    if stream is None and any(not isinstance(handler, ServiceLogHandler) for handler in root.handlers):
        return
    for handler in list(root.handlers):
        if isinstance(handler, ServiceLogHandler):
            root.removeHandler(handler)
    root.addHandler(ServiceLogHandler(log_format, sys.stderr if stream is None else stream))


class ServiceLogHandler(logging.StreamHandler[TextIO]):
    """Writes lines in a format, and keeps the last ones."""

    def __init__(self, log_format: LogFormat, stream: TextIO) -> None:
        super().__init__(stream)
        self.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter(_TEXT))

    def format(self, record: logging.LogRecord) -> str:
        """The line, which is also kept."""
        line = super().format(record)
        recent.append(line)
        return line


class TextFormatter(logging.Formatter):
    """Lines for people, with the id of the request behind the first one."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, and those of a traceback."""
        text = super().format(record)
        current = request_id.get()
        if not current:
            return text
        first, newline, rest = text.partition("\n")
        return f"{first} [request {current}]{newline}{rest}"


class JsonFormatter(logging.Formatter):
    """A JSON object for each record: time, level, logger, message, and where there are such request and exception."""

    def format(self, record: logging.LogRecord) -> str:
        """The object in one line."""
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if current := request_id.get():
            entry["request"] = current
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)
