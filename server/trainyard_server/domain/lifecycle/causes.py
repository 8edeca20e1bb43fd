"""Cause of a failure, from the end of a replica's log: the exception's own line, or what the program said last. Pure.

Of several tracebacks the last one counts, and of chained exceptions the last one. An exception that only says that
other replicas are gone (a collective operation, a coordination service) is a consequence: the cause is elsewhere, in
the same log or in that of another replica. The sentence that the environment of a run prints about an exception
(`staging/inside/hints.py` of the agent) belongs to its cause.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self

from trainyard_protocol.answers.log_views import LogEntry
from trainyard_protocol.lines.progress_reader import ProgressReader, may_report
from trainyard_protocol.lines.severity import severity

LINES = 1000
"""Lines at the end of a log that are searched."""

CHARACTERS = 400_000
"""Characters of them."""

REPLICAS = 64
"""Replicas whose logs are searched if the cause is not in that of the one that failed first."""

_LONGEST = 600  # characters of a cause
_HINT = "trainyard: "
_LINE = 4000  # characters of a line that are looked at
_MESSAGE_LINES = 400  # in which a message goes on behind its first line

_ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]{0,40}[ -/]{0,4}[@-~]|\][^\x07\x1b]{0,400}(?:\x07|\x1b\\)?|[@-Z\\-_])")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_PREFIX = re.compile(r"\[rank\d{1,6}\]: ?|(?: {0,40}\|)+ ?")  # torchrun's, and that of an exception group
_TRACEBACK = re.compile(r"\s{0,40}(?:\+ |╭─+ )?(?:Exception Group )?Traceback \(most recent call last\)")
_EXCEPTION = re.compile(r"(?:[A-Za-z_]\w{0,80}\.){0,10}[A-Z_a-z]\w{0,80}(?::(?: |$)|$)")
_IGNORED = re.compile(r"Exception ignored in|Exception ignored while")
_FRAME_STARTS = frozenset(" \t+>╭│╰")  # also of rich and loguru
_GROUP = re.compile(r"(?:[A-Za-z_]\w{0,80}\.){0,10}(?:Base)?ExceptionGroup: ")
_FILTERED = re.compile(r"jax\.errors\.SimplifiedTraceback|jax\._src\.traceback_util\.UnfilteredStackTrace")
_NODE = re.compile(r"Node: '([^']{1,200})'")
_FUNCTION_NODE = re.compile(r"\{\{function_node [^}]{0,200}\}\}:? ?")
_OPERATION = re.compile(r" ?\[Op:\w{1,200}\](?: name:.{0,200})?$")
_INFO = re.compile(r"\bINFO\b|\bDEBUG\b|I\d{4} |[\d:.\- ]{8,40}: I ")
_WHAT = re.compile(r"\s{0,8}what\(\):\s{0,8}(.{1,2000})")
_CONSEQUENCE = re.compile(
    r"gloo|connection (?:closed|reset) by (?:remote )?peer|socket closed|broken pipe|connectionreseterror"
    r"|coordination ?service|barrier|heartbeat|another task|other tasks|peer tasks|leader task|preempted"
    r"|nccl (?:communicator|operation|error)|ncclremoteerror|ncclsystemerror|distbackenderror"
    r"|watchdog caught collective|childfailederror|collective operation|remote process exited"
    r"|failed to connect to all addresses",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Cause:
    """`text` is one printable line, `cursor` that of the line in the log. `task` is the replica whose log has it.
    `is_consequence`: another replica's failure is its cause."""

    text: str
    cursor: int = 0
    task: str = ""
    is_consequence: bool = False

    @classmethod
    def of(cls, entries: Sequence[LogEntry], task: str) -> Self | None:
        """The cause in the last lines of a replica; None if they have none."""
        cause = None
        for stream in ("stderr", "stdout"):  # two pipes: the lines of one are between those of the other
            own = [entry for entry in entries if entry.stream == stream]
            cause = cause or _exception(own)
        cause = cause or _message(entries)
        if cause is None:
            return None
        return cls(_shortened(" ".join(cause.text.split())), cause.cursor, task, cause.is_consequence)


def first_cause(causes: Iterable[Cause], decider: str) -> Cause | None:
    """The cause to show: that of the replica that decides, unless it is a consequence and another replica's is none;
    then the earliest of those."""
    ordered = sorted(causes, key=lambda cause: (cause.task != decider, cause.cursor))
    own = ordered[0] if ordered and ordered[0].task == decider else None
    if own is not None and not own.is_consequence:
        return own
    return next((cause for cause in ordered if not cause.is_consequence), own)


def shown(cause: Cause, decider: str) -> str:
    """The cause for a message about a replica: with the name of its own, if that is another."""
    return cause.text if cause.task in ("", decider) else f"{cause.task}: {cause.text}"


def _exception(entries: Sequence[LogEntry]) -> Cause | None:
    """The last exception in the lines of one stream, rather one that is no consequence. One with progress behind it was
    caught."""
    texts = [_plain(entry.text) for entry in entries]
    reader, begin = ProgressReader(), 0
    for index, text in enumerate(texts):
        event = reader.read(text)
        is_bar = "%|" in text or "it [" in text  # tqdm prints its last state when the interpreter ends
        if event is not None and event.step is not None and not is_bar:
            begin = index + 1
    found = list(_exceptions(texts[begin:]))
    hint = _hint(texts[begin + found[-1][1] :]) if found else ""
    causes = [_cause(text, entries[begin + index]) for text, index in found]
    if hint:
        causes[-1] = replace(causes[-1], text=f"{causes[-1].text} ({hint})", is_consequence=False)
    return next((cause for cause in reversed(causes) if not cause.is_consequence), causes[-1] if causes else None)


def _hint(texts: Sequence[str]) -> str:
    """The sentence of the run's environment about the last exception; "" without one."""
    lines = (prefix.string[prefix.end() :] if (prefix := _PREFIX.match(text)) else text for text in texts)
    return next((line.removeprefix(_HINT).rstrip(". ") for line in lines if line.startswith(_HINT)), "")


def _exceptions(texts: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Every exception with a traceback, or with a line of source that Python cannot read: its text and place."""
    in_traceback = is_ignored = False
    group: tuple[str, int] | None = None
    for index, raw in enumerate(texts):
        prefix = _PREFIX.match(raw)
        text = raw[prefix.end() :] if prefix is not None else raw
        if _TRACEBACK.match(text):
            in_traceback = True
            is_ignored = index > 0 and _IGNORED.match(texts[index - 1]) is not None
            continue
        if not text or text[0] in _FRAME_STARTS:
            continue
        is_syntax = text.startswith(("SyntaxError: ", "IndentationError: ", "TabError: "))
        if not is_syntax and not (in_traceback and _EXCEPTION.match(text)):
            in_traceback = False
            continue
        in_traceback = False
        if is_ignored or _FILTERED.match(text):
            continue
        if _GROUP.match(text):
            group = text, index
        elif prefix is None or "|" not in prefix[0]:
            if group is not None:
                yield group
                group = None
            yield _message_of(text, texts, index), index
        elif group is not None:  # the first exception of a group
            group = None
            yield text, index
    if group is not None:
        yield group


def _message_of(text: str, texts: Sequence[str], index: int) -> str:
    """The exception's line, with the first words of a message that begins below it."""
    behind = [_FUNCTION_NODE.sub("", row.strip()) for row in texts[index + 1 : index + 1 + _MESSAGE_LINES]]
    name = text.partition(":")[0]
    if "Graph execution error" in text:
        for at, line in enumerate(behind):
            if (node := _NODE.match(line)) is not None:
                message = next((row for row in behind[at + 1 :] if row and not _NODE.match(row)), "")
                return f"{name}: {message or text} (node {node[1]})"
    text = _OPERATION.sub("", _FUNCTION_NODE.sub("", text))
    if text.endswith(":"):
        message = next((row for row in behind[:3] if row), "")
        return f"{text} {message}".rstrip()
    return text


def _message(entries: Sequence[LogEntry]) -> Cause | None:
    """The last error of a program without an exception; else its last line on stderr that is no report."""
    last = None
    for entry in reversed(entries):
        text = _plain(entry.text)
        if not text.strip():
            continue
        if (what := _WHAT.match(text)) is not None:
            return _cause(what[1], entry)
        level = severity(entry.stream, text)
        if level in ("ERROR", "CRITICAL") and _TRACEBACK.match(text) is None:
            return _cause(text.strip(), entry)
        is_message = entry.stream == "stderr" and level == "INFO" and not text[0].isspace()
        if last is None and is_message and not may_report(text) and _INFO.search(text[:_LONGEST]) is None:
            last = _cause(text, entry)
    return last


def _cause(text: str, entry: LogEntry) -> Cause:
    return Cause(text, entry.cursor, is_consequence=_CONSEQUENCE.search(text[:_LINE]) is not None)


def _plain(text: str) -> str:
    """The text without terminal escapes and control characters."""
    text = text[:_LINE]
    return _CONTROLS.sub(" ", _ESCAPES.sub("", text)).rstrip()


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
