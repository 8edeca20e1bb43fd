"""Stalled runs: the policy of a job, and the diagnosis of the replica that blocks a run. Pure.

In a synchronous job one stalled replica stalls all: the others wait for it in a collective operation. So the cause is
not the first replica whose time is up. It is the replica at the lowest step or, if all are at the same step, the one
whose stack differs from the others.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from trainyard_protocol.errors import InvalidArgument, Violation
from trainyard_protocol.job.cluster import PRIMARY, Task
from trainyard_protocol.wire.observations import Stall
from trainyard_protocol.wire.sync import StallPolicy

LIMIT_LABEL = "trainyard_stall_limit"
ACTION_LABEL = "trainyard_stall_action"

_LONGEST_LIMIT_S = 30 * 86400
_ALIKE = 3  # innermost frames that two replicas have in common if they do the same
_FRAMES = (
    re.compile(r'^  File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<function>.+)$'),  # faulthandler
    re.compile(r"^    (?P<function>.+) \((?P<file>.+):(?P<line>\d+)\)$"),  # py-spy
)
_LONGEST_LINE = 1000
_PROCESS = re.compile(r"^Process (\d+): ")  # py-spy's thread of the same number is the main one
_THREAD = re.compile(r"^(Current thread|Thread) (\S+)")
_STOPPED = re.compile(r"^Process \d+ is stopped, ", re.MULTILINE)  # written by the agent
_PYTHON = re.compile(r"/lib/python3\.\d+/(?!(?:site|dist)-packages/.+/)|^<")
"""Files of Python itself, and single modules beside installed packages: the launcher of a script is one."""


class StallAction(StrEnum):
    """The server's action for a stalled run."""

    RESTART = "restart"  # stop the run as an infrastructure failure, so that a new run follows
    REPORT = "report"  # add an event, and nothing else


@dataclass(frozen=True, slots=True)
class StackFrame:
    function: str
    file: str
    line: int

    def __str__(self) -> str:
        """`trainer/data.py:88 load`"""
        return f"{'/'.join(self.file.split('/')[-2:])}:{self.line} {self.function}"


@dataclass(frozen=True, slots=True)
class StalledReplica:
    """A replica of a stalled run. `stall` is set if it stalled itself; `steps` if its program reports steps. `part` is
    the one of its run that it belongs to, of which `silent` is said; `runs`: it has started, and not ended."""

    task: str
    stall: Stall | None = None
    stacks: str = ""
    steps: bool = False
    part: str = ""
    runs: bool = True


@dataclass(frozen=True, slots=True)
class StallDiagnosis:
    """The replica that blocks the run, as far as it is known, and the diagnosis in a sentence or two."""

    task: str
    message: str


def check_labels(labels: Mapping[str, str]) -> None:
    """Raises InvalidArgument for a stall label with a bad value."""
    limit, action = labels.get(LIMIT_LABEL), labels.get(ACTION_LABEL)
    wrong = []
    if limit is not None and _limit_s(limit) is None:
        text = f"must be a whole number of seconds from 1 to {_LONGEST_LIMIT_S}; this is {limit!r}."
        wrong.append(Violation(f"labels.{LIMIT_LABEL}", text))
    if action is not None and action not in list(StallAction):
        text = f"must be {' or '.join(StallAction)}; this is {action!r}."
        wrong.append(Violation(f"labels.{ACTION_LABEL}", text))
    if wrong:
        raise InvalidArgument(wrong)


def policy_of(labels: Mapping[str, str], default: StallPolicy) -> StallPolicy:
    """The stall policy of a job with these labels."""
    limit_s = _limit_s(labels.get(LIMIT_LABEL, ""))
    if limit_s is None:
        return default
    return default.model_copy(update={"limit_s": float(limit_s), "silent_s": float(limit_s)})


def requested_action(labels: Mapping[str, str]) -> StallAction | None:
    """The action that the job's labels request, if any."""
    action = labels.get(ACTION_LABEL)
    return StallAction(action) if action in list(StallAction) else None


def diagnose(members: Sequence[StalledReplica]) -> StallDiagnosis | None:
    """The diagnosis of a run; None while no replica is stalled."""
    stalled = [(member, member.stall) for member in members if member.stall is not None]
    if not stalled:
        return None
    silent = {member.part for member, stall in stalled if stall.silent}
    if silent and all(m.part in silent for m in members if m.runs and _computes(m.task)):
        return _silence(members, stalled)
    stalled = [(member, stall) for member, stall in stalled if not stall.silent]  # others of the run do something
    if not stalled:
        return None
    odd = _odd_one_out(members)
    named = odd or next((m for m, _ in stalled if m.task == PRIMARY.name), stalled[0][0])
    stall = named.stall or max((s for _, s in stalled), key=lambda stall: stall.for_s)
    if named.stall is not None:
        text = f"{named.task} {_stands(stall)}"
    else:  # it reports no steps; another replica shows that the run stalled
        first = next(member for member, its in stalled if its is stall)
        text = f"{named.task} holds the run up: {first.task} {_stands(stall)}"
    others = [s for m, s in stalled if m is not named and s is not stall]
    going_on = [member for member in members if member.steps and member.stall is None]
    text += _of_others(stall, others, len(going_on)) + "."
    if odd is None:
        text += " Which replica holds it up cannot be told: no step and no stack differs from the rest."
    return StallDiagnosis(named.task, text + _does(named))


def _silence(members: Sequence[StalledReplica], stalled: Sequence[tuple[StalledReplica, Stall]]) -> StallDiagnosis:
    """The diagnosis of a run in which no replica does anything."""
    primary = next((member for member, _ in stalled if member.task == PRIMARY.name), stalled[0][0])
    named = _different([member for member in members if _computes(member.task)]) or primary
    text = f"{named.task} has printed nothing and used no CPU for {_seconds(stalled[0][1].for_s)}"
    text += ", nor has another replica." if len(members) > 1 else "."
    return StallDiagnosis(named.task, text + _does(named))


def _does(member: StalledReplica) -> str:
    """Sentences about its stacks; "" without any."""
    text = ""
    if _STOPPED.search(member.stacks):
        text += " A process of it is stopped, by SIGSTOP or a debugger."
    where = _own_frame(main_stack(member.stacks))
    return text + (f" It is in {where}." if where is not None else "")


def main_stack(stacks: str) -> tuple[StackFrame, ...]:
    """The frames of the main thread, the innermost first, of what faulthandler or py-spy wrote; of the last thread
    where none is marked as the main one. Empty for anything else."""
    threads: list[tuple[bool, list[StackFrame]]] = []
    process = ""
    for line in stacks.splitlines():
        if len(line) > _LONGEST_LINE:  # no frame, and the patterns need more than linear time
            continue
        if begin := _PROCESS.match(line):
            process = begin[1]
        if thread := _THREAD.match(line):
            is_main = thread[1] == "Current thread" or thread[2] == process or '"MainThread"' in line
            threads.append((is_main, []))
            continue
        match = next(filter(None, (pattern.match(line) for pattern in _FRAMES)), None)
        if match is not None and threads:
            threads[-1][1].append(StackFrame(match["function"], match["file"], int(match["line"])))
    with_frames = [thread for thread in threads if thread[1]]
    mains = [frames for is_main, frames in with_frames if is_main]
    if mains:
        return tuple(mains[0])
    return tuple(with_frames[-1][1]) if with_frames else ()


def _own_frame(frames: Sequence[StackFrame]) -> StackFrame | None:
    """The innermost frame of the program's own code: in the directory of the file that it began with, or below.

    Libraries lie beside an installed package, not in it. Without such a frame, the innermost of all.
    """
    began = next((frame for frame in reversed(frames) if not _PYTHON.search(frame.file)), None)
    if began is None:
        return frames[0] if frames else None
    directory = began.file.rpartition("/")[0]
    return next(frame for frame in frames if frame.file.startswith(f"{directory}/") or frame.file == began.file)


def _odd_one_out(members: Sequence[StalledReplica]) -> StalledReplica | None:
    """The replica that the others wait for, if it is known."""
    steps = [member.stall.step for member in members if member.stall is not None]
    behind = [m for m in members if m.stall is not None and m.stall.step == min(steps)]
    if len(behind) == 1 and len(steps) > 1:
        return behind[0]
    # A replica without steps may be the cause too. Parameter servers and evaluators always differ from the others.
    suspects = [m for m in members if m in behind or (m.stall is None and not m.steps and _computes(m.task))]
    return suspects[0] if len(suspects) == 1 else _different(suspects)


def _different(suspects: Sequence[StalledReplica]) -> StalledReplica | None:
    """The replica whose stacks differ from those of the others."""
    stopped = [member for member in suspects if _STOPPED.search(member.stacks)]
    if len(stopped) == 1:
        return stopped[0]
    doing = {member.task: _doing(member) for member in suspects}
    counts = Counter(what for what in doing.values() if what)
    if len(counts) != 2:
        return None
    (_, most), (rare, once) = counts.most_common()
    if once != 1 or most < 2:
        return None
    return next(member for member in suspects if doing[member.task] == rare)


def _doing(member: StalledReplica) -> tuple[tuple[str, str], ...]:
    """The innermost functions, with files as replicas have in common: each runs a copy of the program of its own."""
    innermost = main_stack(member.stacks)[:_ALIKE]
    return tuple((frame.file.rpartition(f"/{member.task}/")[2], frame.function) for frame in innermost)


def _computes(task: str) -> bool:
    return Task.parse(task).type in ("master", "worker")


def _stands(stall: Stall) -> str:
    before = f" (it never took more than {_seconds(stall.longest_s)} before)" if stall.longest_s else ""
    return f"stands still at step {stall.step} for {_seconds(stall.for_s)}{before}"


def _of_others(stall: Stall, others: Sequence[Stall], going_on: int) -> str:
    if not others:
        return f"; {going_on} other{'s go' if going_on > 1 else ' goes'} on" if going_on else ""
    low, high = min(other.step for other in others), max(other.step for other in others)
    where = "at the same step" if low == high == stall.step else f"at step {low}"
    if low != high:
        where = f"at steps {low} to {high}"
    return f"; the other{'s' if len(others) > 1 else ''} wait{'' if len(others) > 1 else 's'} {where}"


def _seconds(value: float) -> str:
    return f"{value:.0f} s" if value >= 10 else f"{value:.2g} s"


def _limit_s(text: str) -> int | None:
    if not text.isascii() or not text.isdecimal() or len(text) > 9:
        return None
    return int(text) if 1 <= int(text) <= _LONGEST_LIMIT_S else None
