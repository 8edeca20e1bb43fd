"""Severity of a log line: what the line itself says, not the stream that it came on.

Progress bars, warnings and the logs of most libraries are on stderr. So a line without a severity of its own is INFO,
and ERROR is what names itself so: a level of Python's logging, the letter of absl, glog and TensorFlow, a JSON
`severity`, a traceback with its exception, `error:`, and what a shell says when a command fails.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

SEVERITIES = ("DEBUG", "INFO", "NOTICE", "WARNING", "ERROR", "CRITICAL")
"""From the lowest to the highest."""

_LEVELS = frozenset(SEVERITIES)
_FIELDS = ("severity", "level", "levelname")
_NAMES = {"FATAL": "CRITICAL", "WARN": "WARNING", "EXCEPTION": "ERROR"}
_LETTERS = {"I": "INFO", "W": "WARNING", "E": "ERROR", "F": "CRITICAL"}
_SEARCHED = 400  # characters at the beginning of a line

_WORDS = (
    *("info", "error", "warn", "debug", "notice", "critical", "fatal", "exception", "traceback", "exit", "interrupt"),
    *("failure", "timeout", "panic", "killed", "abort", "terminate", "fault", "illegal", "not found", "no such file"),
    *("denied", "is a directory", "cannot execute"),
)
"""Every line with a severity of its own has one of them in its beginning, but for those of glog and TensorFlow."""

_DIGITS = bytes.maketrans(b"123456789", b"000000000")
_ANSI = re.compile(r"\x1b\[[0-9;?]{0,20}[A-Za-z]")
_LEVEL = re.compile(
    r"(?:\S{1,100} ){0,3}?\[?(DEBUG|INFO|NOTICE|WARNING|WARN|ERROR|CRITICAL|FATAL)\b"
    r"|.{0,120}? [-|] (DEBUG|INFO|NOTICE|WARNING|WARN|ERROR|CRITICAL|FATAL)\s{0,8} [-|]"
)
_GLOG = re.compile(r"([IWEF])(?:\d{4}|\d{8}) \d\d:\d\d:\d")
_TENSORFLOW = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{1,9}: ([IWEF]) ")
_REGISTRATION = re.compile(r"Unable to register cu\w{1,12} factory|computation placer already registered")
_EXCEPTION = re.compile(
    r"(?:[A-Za-z_]\w{0,80}\.){0,8}[A-Z]\w{0,80}(?:Error|Exception|Exit|Interrupt|Failure|Timeout|ExceptionGroup)(?::|$)"
)
_PYTHON_WARNING = re.compile(r"(?:\S{1,300}:\d{1,9}: )?(?:[A-Za-z_]\w{0,80}\.){0,8}\w{0,80}Warning: ")
_TRACEBACK = re.compile(
    r"(?:\[rank\d{1,6}\]: ?)?[\s|+╭─]{0,200}(?:Exception Group )?Traceback \(most recent call last\)"
)
_CHAINED = re.compile(r"During handling of the above exception, |The above exception was the direct cause of ")
_LABELLED = re.compile(
    r"(?:[^\s:]{1,100}: ){0,3}(?:(fatal|panic|(?:fatal |internal |runtime )?error)|(warning)): (?![-+]?[\d.])",
    re.IGNORECASE,
)
_FATAL = re.compile(
    r"Fatal Python error: |terminate called |Aborted|Killed|Segmentation fault|Bus error|Illegal instruction"
)
_SHELL = re.compile(
    r".{1,300}: (?:command not found|No such file or directory|Permission denied|not found|Is a directory"
    r"|cannot execute.{0,80})$"
)


@dataclass(slots=True)
class SeverityReader:
    """Severities of the lines of one replica, in their order: all lines of a traceback are as severe as its first one.

    `count` is for the owner: the number of lines that it has read.
    """

    count: int = 0
    traceback: str = ""
    """The stream on which a traceback has begun; "" outside of one."""

    def read(self, stream: Literal["stdout", "stderr"], text: str) -> str:
        self.count += 1
        if self.traceback == stream:
            if text[:1] in (" ", "\t", "") or text.startswith(("[rank", "|", "+", ">", "│", "╰")):
                return "ERROR"
            self.traceback = ""
            return max(severity(stream, text), "ERROR", key=SEVERITIES.index)
        if "Traceback (most" in text and _TRACEBACK.match(text) is not None:
            self.traceback = stream
            return "ERROR"
        return severity(stream, text)

    def read_all(self, stream: Literal["stdout", "stderr"], texts: Sequence[str]) -> list[str]:
        """The severities of lines of one stream that follow one another. Those that differ in their digits alone have
        one, and are many: a line of each such shape is read."""
        if len(texts) == 1:
            return [self.read(stream, texts[0])]
        shapes = "\n".join(texts).encode(errors="surrogatepass").translate(_DIGITS).split(b"\n")
        if self.traceback or len(shapes) != len(texts) or any("Traceback (most" in text for text in texts):
            return [self.read(stream, text) for text in texts]
        self.count += len(texts)
        levels = {shape: severity(stream, text) for shape, text in dict(zip(shapes, texts, strict=True)).items()}
        return [levels[shape] for shape in shapes]


def severity(stream: Literal["stdout", "stderr"], text: str) -> str:
    """The severity that a line says, by itself; INFO where it says none."""
    if text.startswith("{"):
        level = _of_object(text)
        return _NAMES.get(level, level) if level in _LEVELS or level in _NAMES else "INFO"
    start = text[:_SEARCHED]
    if "\x1b" in start:
        start = _ANSI.sub("", start)
    lower = start.lower()
    for word in _WORDS:
        if word in lower:
            break
    else:
        if start[:1] not in _LETTERS and not start[:1].isdigit():
            return "INFO"
    if match := _LEVEL.match(start):
        level = match[1] or match[2]
        return _NAMES.get(level, level)
    if match := _GLOG.match(start) or _TENSORFLOW.match(start):
        level = _LETTERS[match[1]]
        return "WARNING" if level == "ERROR" and _REGISTRATION.search(text[:1000]) else level
    if _EXCEPTION.match(start) or _TRACEBACK.match(start) or _CHAINED.match(start):
        return "ERROR"
    if _PYTHON_WARNING.match(start):
        return "WARNING"
    if match := _LABELLED.match(start):
        return "WARNING" if match[2] else "ERROR"
    if stream == "stderr" and (_FATAL.match(start) or _SHELL.match(start)):
        return "ERROR"
    return "INFO"


def _of_object(text: str) -> str:
    if not any(name in text for name in _FIELDS[:2]):
        return ""
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        return ""
    if not isinstance(fields, dict):
        return ""
    level = next((fields[key] for key in _FIELDS if key in fields), "")
    return level[:_SEARCHED].upper() if isinstance(level, str) else ""
