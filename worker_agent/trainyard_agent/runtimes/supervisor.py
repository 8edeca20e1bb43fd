"""The supervisor of one replica: starts its program, writes its log and exit status, ends its descendants.

It is a process of its own (`runtimes/fork_server.py`), outlives the agent and communicates with it through files. It
imports only the standard library, to start fast. In the replica's directory:

    launch.json   read:    command, environment, directory, temporary, cpus, log_quota; user, groups and processes,
                           or none
    alive         locked (flock, inherited open from the agent) for as long as this process lives
    started.json  written: the program's pid and start time, and where this process has what is not in the log yet
    log.jsonl     written: one line of JSON for each line of the program's output
    cut.json      written when the log has reached its quota: later output is read and dropped
    exit.json     written when the program has ended: status (-n for signal n) or failure, and time; after a stop
                  only when its descendants have ended too, or the grace has
    done.json     written last: no descendant lives and the log is complete
    reserve       disk space that is released to write the last two on a full disk

Its third argument, if there is one, is the open file with the job's secrets, which are on no disk: `environment`, its
further variables, and `values`, which are masked in the log. It stays open, for the agent (`spool.py`).

Whoever listens at the named pipe `changes`, of the agent's state directory, is woken after each of these but the log,
and after the first lines in that.

In the run's directory above it are `gate` (locked by the agent until every supervisor of the run has started),
run.json (`launched`: whether the run may begin) and stop.json (the run is stopped: why, and when to kill).
Descendants that called setsid or were orphaned are found too: this process adopts them (PR_SET_CHILD_SUBREAPER). What
is left of them is killed when the program has ended by itself, until this process has no child. After a stop they have
the rest of the grace, as the child of a shell has that has died of SIGTERM; the log names what is killed at its end.
"""

import ctypes
import errno
import fcntl
import json
import os
import resource
import select
import signal
import stat
import time
from collections.abc import Callable, Iterable

from trainyard_agent.runtimes.masking import Mask
from trainyard_agent.runtimes.spool import STREAMS, Mark, Spool

MAX_LINE_BYTES = 1 << 20
"""A longer line is split into several, each but the last marked `partial`."""

PROGRESS_BYTES = 1 << 12
"""Bytes that are dropped between two logged states of a line that is overwritten repeatedly: tqdm writes about 1 KB per
second. Not a time: a container's output must give the same lines whenever it is read."""

WHOLE, PARTIAL, OVERWRITTEN = range(3)
"""Kinds of a line: PARTIAL is continued by the next one, OVERWRITTEN is a state of a progress bar before its last."""

UP = b"\x1b[A"

CUT = "cut.json"

RESERVE = "reserve"

CHANGES = "changes"

NOT_ENDED = "WARNING: trainyard: not ended "
"""The beginning of the line about what was killed at the end of a grace, the only one that no program has written."""

_BLOCK = 1 << 16
_SMALL_READ = 1 << 14
_STEADY_READS = 16
_GATHER_S = 0.002  # to let lines gather that are printed one by one: a read alone costs as much as ten lines
_DEFAULT_GRACE_S = 10.0  # for a SIGTERM without a stop.json: from outside, or the disk was full
_RETRY_S = 0.5  # between attempts to write to a full disk
_RESERVE_BYTES = 1 << 16
_SHOWN = 3  # processes in a message
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_MAX_FDS = 1 << 20
_REAP_S = 0.01  # between two rounds of killing descendants, twice as long each time, where none ends
_LONGEST_REAP_S = 1.0
_PR_SET_PDEATHSIG = 1
_CLONE_NEWUTS = 0x04000000
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_quoted = json.encoder.encode_basestring_ascii  # json.dumps of a string, three times as fast
_libc = ctypes.CDLL(None, use_errno=True)


class LineSplitter:
    """Splits the bytes of one stream into lines, independent of how the bytes are chunked.

    A line ends at `\\n` or at the end of the stream. A `\\r` restarts it, as on a terminal: the text before is dropped;
    `\\r` right before the end is ignored. So a progress bar becomes its last state, and a long one also a state for
    every PROGRESS_BYTES, OVERWRITTEN, so that followers of the log see it move. A `\\n` behind `UP` (the cursor goes
    up) is a `\\r`: so tqdm moves a bar below another one. A line longer than `max_line` bytes is split between two
    characters, each piece but the last `PARTIAL`. Bytes that are not UTF-8 become U+FFFD. Secrets are replaced by
    `mask`, and are never split.

    `feed` and `end` return pairs of text and WHOLE, PARTIAL or OVERWRITTEN.
    """

    def __init__(
        self, max_line: int = MAX_LINE_BYTES, progress: int = PROGRESS_BYTES, mask: Mask | None = None
    ) -> None:
        self._mask = mask or Mask()
        self._max_line = max_line
        self._progress = progress
        self._reset()

    def _reset(self) -> None:
        self._line = b""
        self._returned = False  # a `\r` came: the next byte overwrites the line
        self._begun = False  # its beginning was returned as partial
        self._dropped = 0  # bytes overwritten since the line began or a state was returned

    def feed(self, data: bytes) -> list[tuple[str, int]]:
        *whole, rest = data.split(b"\n")
        lines: list[tuple[str, int]] = []
        for line in whole:
            is_simple = b"\r" not in line and not line.endswith(UP) and len(line) <= self._max_line
            if is_simple and not self._line and not self._returned:
                lines.append((self._text(line), WHOLE))  # the fast path, for nearly all lines
                continue
            self._feed_part(line, lines)
            if self._line.endswith(UP):
                self._returned = True
                continue
            lines.append((self._text(self._line), WHOLE))
            self._reset()
        self._feed_part(rest, lines)
        return lines

    def mark(self, spool: Spool, log_size: int) -> None:
        """Note in the spool that every line which has ended is in the log."""
        spool.mark(log_size, self._line, self._dropped, self._returned, self._begun)

    def go_on(self, mark: Mark) -> None:
        """Go on where another splitter has left its mark."""
        self._line, self._dropped = mark.line, mark.dropped
        self._returned, self._begun = mark.returned, mark.begun

    def end(self) -> list[tuple[str, int]]:
        """The last line, if the stream ended without a newline."""
        rest = self._line
        self._reset()
        return [(self._text(rest), WHOLE)] if rest else []

    def _feed_part(self, data: bytes, lines: list[tuple[str, int]]) -> None:
        """Add a part of one line."""
        for number, piece in enumerate(data.split(b"\r")):
            self._returned |= number > 0
            if not piece:
                continue
            if self._returned:
                self._overwrite(lines)
            self._line += piece
            while len(self._line) > self._max_line + self._mask.longest:
                at = self._mask.outside(self._line, _character_start(self._line, self._max_line))
                lines.append((self._text(self._line[:at]), PARTIAL))
                self._line, self._begun = self._line[at:], True

    def _overwrite(self, lines: list[tuple[str, int]]) -> None:
        self._dropped += len(self._line)
        shown = self._dropped >= self._progress and self._line.strip()
        if shown or self._begun:  # a partial line needs an end
            lines.append((self._text(self._line), WHOLE if self._begun else OVERWRITTEN))
            self._dropped = 0
        self._line, self._begun, self._returned = b"", False, False

    def _text(self, data: bytes) -> str:
        data = self._mask(data).strip(b"\b")  # Keras erases its bar by backspaces
        return data.removesuffix(UP).decode("utf-8", "replace")


def _character_start(data: bytes, at: int) -> int:
    """The last index up to `at` that does not split a UTF-8 character."""
    for back in range(4):
        if at - back > 0 and data[at - back] & 0xC0 != 0x80:
            return at - back
    return at


def entries(time: str, stream: str, lines: list[tuple[str, int]]) -> list[str]:
    """The lines of log.jsonl, with newlines, for the pairs of a LineSplitter."""
    head = f'{{"time": "{time}", "stream": "{stream}", "text": '
    tails = {WHOLE: "}\n", PARTIAL: ', "partial": true}\n', OVERWRITTEN: ', "overwritten": true}\n'}
    return [head + _quoted(text) + tails[kind] for text, kind in lines]


def fitting(sizes: list[int], room: int) -> int:
    """The number of first sizes that fit into `room` together."""
    for number, size in enumerate(sizes):
        room -= size
        if room < 0:
            return number
    return len(sizes)


class SupervisorLog:
    """Writer of log.jsonl. What a full disk refuses stays in `pending`; the owner reads no more until it is empty.

    With a `quota` (in bytes; 0: none) lines that would exceed it are dropped: `is_cut`.
    """

    def __init__(self, path: str, quota: int = 0, mask: Mask | None = None) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._mask = mask or Mask()
        self._splitters = {stream: LineSplitter(mask=self._mask) for stream in STREAMS}
        self._refused = False
        self._quota = quota
        self._size = 0
        self.is_cut = False
        self.pending = b""
        self.count = 0
        self.file = os.fstat(self._fd).st_ino
        """The number of the file: another one may have its name by the end."""

    def feed(self, stream: str, data: bytes) -> None:
        if not self.is_cut:
            self._add(stream, self._splitters[stream].feed(data))

    def end(self, stream: str) -> None:
        if not self.is_cut:
            self._add(stream, self._splitters[stream].end())

    def say(self, text: str) -> None:
        """Add a line that is not the program's own. `mark` must follow for each stream."""
        if not self.is_cut:
            self._add(STREAMS[0], [(self._mask(text.encode()).decode("utf-8", "replace"), WHOLE)])

    def mark(self, stream: str, spool: Spool) -> None:
        """Note in the spool what is in the log, unless a line is pending: a later mark tells more."""
        if not self.pending:
            self._splitters[stream].mark(spool, self._size)

    def go_on(self, stream: str, spool: Spool, written: int) -> None:
        """Add what another writer of this log had not. It had written so many lines of the stream behind its mark."""
        mark, splitter = spool.read_mark(), self._splitters[stream]
        splitter.go_on(mark)
        self._size = os.fstat(self._fd).st_size
        self._add(stream, [*splitter.feed(spool.rest(mark)), *splitter.end()][written:])

    def close(self) -> None:
        os.close(self._fd)

    def flush(self) -> None:
        """Write what is pending, as far as the disk accepts it."""
        try:
            while self.pending:
                self.pending = self.pending[os.write(self._fd, self.pending) :]
            self._refused = False
        except OSError as error:
            if not self._refused:  # logged once, not at each retry
                _log_error(f"the log cannot be written, trying again: {error}")
            self._refused = True

    def _add(self, stream: str, lines: list[tuple[str, int]]) -> None:
        if not lines:
            return
        new = entries(rfc3339(time.time_ns()), stream, lines)
        if self._quota:
            count = fitting([len(line) for line in new], self._quota - self._size)  # they are ASCII
            self.is_cut, new = count < len(new), new[:count]
        data = "".join(new).encode()
        self.count += len(new)
        self._size += len(data)
        self.pending += data
        self.flush()


def finish_log(directory: str, quota: int, mask: Mask, spools: dict[str, Spool]) -> int | None:
    """Complete the log of a supervisor that was killed, and of which no descendant lives. Returns its number of lines;
    None where it may lack some. Raises OSError, where the disk is full; it can be repeated then."""
    path = f"{directory}/log.jsonl"
    if not all(spool.is_kept for spool in spools.values()):
        return None
    file = int(_read_json(f"{directory}/started.json").get("log", 0))
    if not has_all(path, max(spool.read_mark().log_size for spool in spools.values()), file):
        return None
    count = truncate_torn_line(path)
    if os.path.exists(f"{directory}/{CUT}"):  # noqa: PTH110 - pathlib is slow to import
        return count
    log = SupervisorLog(path, quota, mask)
    try:
        for stream, spool in spools.items():
            if not log.is_cut:
                log.go_on(stream, spool, _lines_behind(path, spool.read_mark().log_size, stream))
            if log.pending:
                raise OSError(errno.ENOSPC, "the end of the log cannot be written")
        if log.is_cut:
            _write_json(f"{directory}/{CUT}", {"lines": count + log.count}, durable=False)
    finally:
        log.close()
    return count + log.count


def has_all(path: str | os.PathLike[str], size: int, file: int) -> bool:
    """Whether a log of so many bytes is still there: somebody may have removed it, or cut it off. `file` is its number;
    0: not known."""
    try:
        status = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return size == 0
    return stat.S_ISREG(status.st_mode) and status.st_size >= size and status.st_ino == (file or status.st_ino)


def truncate_torn_line(path: str | os.PathLike[str]) -> int:
    """Remove an incomplete last line. Returns the number of lines; 0 if there is no file."""
    count = whole = 0
    try:
        with open(path, "r+b") as file:  # noqa: PTH123
            for raw in file:
                if raw.endswith(b"\n"):
                    count, whole = count + 1, whole + len(raw)
            file.truncate(whole)
    except FileNotFoundError:
        return 0
    return count


def _lines_behind(path: str, start: int, stream: str) -> int:
    """The lines of one stream in log.jsonl, from an offset on."""
    mark = f'", "stream": "{stream}", "text": '.encode()
    with open(path, "rb") as file:  # noqa: PTH123
        file.seek(start)
        return sum(mark in raw[:80] for raw in file)


def rfc3339(time_ns: int) -> str:
    seconds, rest = divmod(time_ns, 10**9)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{rest // 1000:06d}Z"


class ExitFiles:
    """Writer of the small files that report the program's start and end, in the order in which they are added.

    Each is written atomically. What a full disk refuses stays in `pending`: a lost exit status is worse than a late
    one. For a `vital` note the reserve is released first, and it is written durably.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._reserve = f"{directory}/{RESERVE}"
        self._refused = False
        self.pending: list[tuple[str, dict[str, object], bool]] = []
        try:
            fd = os.open(self._reserve, os.O_WRONLY | os.O_CREAT, 0o600)
            try:
                os.posix_fallocate(fd, 0, _RESERVE_BYTES)  # a sparse file would reserve no space
            finally:
                os.close(fd)
        except OSError as error:
            _log_error(f"no disk space for the reserve: {error}")

    def add(self, name: str, note: dict[str, object], vital: bool = True) -> None:
        self.pending.append((name, note, vital))
        self.flush()

    def flush(self) -> None:
        """Write what is pending, as far as the disk accepts it."""
        while self.pending:
            name, note, vital = self.pending[0]
            try:
                _write_json(f"{self._directory}/{name}", note, durable=vital)
            except FileNotFoundError:
                self.pending.clear()  # the directory was removed with its run
            except OSError as error:
                if error.errno in _NO_ROOM and self._release_reserve():
                    continue
                if not self._refused:
                    _log_error(f"{name} cannot be written, trying again: {error}")
                self._refused = True
                return
            else:
                self.pending.pop(0)
                _notify(self._directory)

    def close(self) -> None:
        _unlink(self._reserve)

    def _release_reserve(self) -> bool:
        """Release the reserve for a vital note. True if there is more space now."""
        return any(vital for _, _, vital in self.pending) and _unlink(self._reserve)


def _write_json(path: str, value: dict[str, object], durable: bool) -> None:
    with open(path + ".new", "w", encoding="utf-8") as file:  # noqa: PTH123 - pathlib is slow to import
        json.dump(value, file)
        file.flush()
        if durable:
            os.fsync(file.fileno())
    os.replace(path + ".new", path)  # noqa: PTH105


def _notify(directory: str) -> None:
    """Wake whoever listens at `changes`. Never waits: it is needless where the pipe is full."""
    try:
        fd = os.open(f"{directory}/../../../{CHANGES}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError:
        return
    try:
        os.write(fd, b".")
    except OSError:
        return
    finally:
        os.close(fd)


def _unlink(path: str) -> bool:
    try:
        os.unlink(path)  # noqa: PTH108
    except OSError:
        return False
    return True


class SteadyPrinting:
    """Recognizes a stream to which a program prints without a pause, while the other is silent: so many reads of it in
    a row, with hardly any time between them."""

    def __init__(self) -> None:
        self._stream = -1
        self._reads = 0
        self._size = 0
        self._read_at = float("-inf")

    def add(self, stream: int, size: int, now: float) -> None:
        """Add a read of so many bytes."""
        is_next = stream == self._stream and now - self._read_at < 2 * _GATHER_S
        self._reads = self._reads + 1 if is_next else 1
        self._stream, self._size, self._read_at = stream, size, now

    @property
    def stream(self) -> int:
        """The stream that is better read a little later; -1: none."""
        return self._stream if self._reads >= _STEADY_READS and self._size < _SMALL_READ else -1


class Supervisor:
    """Runs one program from its start to the death of its last descendant."""

    def __init__(
        self, directory: str, launch: dict[str, object], mask: Mask, spools: dict[str, Spool] | None = None
    ) -> None:
        """`spools`, by stream, are those of a guard, which finishes the log should this process be killed."""
        self._directory = directory
        self._launch = launch
        self._mask = mask
        self._spools = {stream: Spool() for stream in STREAMS} if spools is None else spools
        self._notes = ExitFiles(directory)
        self._log = SupervisorLog(f"{directory}/log.jsonl", int(str(launch.get("log_quota", 0))), mask)
        self._cut_reported = False
        self._streams: dict[int, str] = {}
        """Names of streams by the pipes that are open."""
        self._printing = SteadyPrinting()
        self._has_printed = False
        self._program = 0  # its pid
        self._end: dict[str, object] = {}
        """How and when the program ended; empty before."""
        self._ended = False
        self._stopping = False
        self._stopped_at = float("inf")
        self._grace_is_over = False
        self._kill_at = float("inf")
        self._unkillable: set[int] = set()
        self._wake_fd = wake_on_signals()
        self._temporary = _held_directory(str(launch.get("temporary", "")))

    def run(self) -> None:
        if _read_json(f"{self._directory}/../stop.json"):
            self._note_end({"never_started": True})
        elif failure := self._start():
            self._note_end({"failure": failure})
        while not self._is_over(has_children=not reap(self._note_child)):
            if time.monotonic() >= self._kill_at:
                self._end_grace()
            else:
                self._wait_and_read(self._kill_at - time.monotonic())
        self._record_exit()
        pause = _REAP_S
        while not reap(self._note_child):
            self._kill_descendants()
            self._wait_and_read(pause)
            pause = min(2 * pause, _LONGEST_REAP_S)
        self._drain()
        self._settle()
        self._notes.add("done.json", {"lines": self._log.count, "file": self._log.file})
        self._settle()
        self._notes.close()

    def stop(self) -> None:
        """Send SIGTERM and schedule SIGKILL. Again: the earlier SIGKILL applies."""
        stop = _read_json(f"{self._directory}/../stop.json")
        requested_at = float(stop.get("monotonic", time.monotonic()))
        kill_at = float(stop.get("kill_at", requested_at + _DEFAULT_GRACE_S))
        self._kill_at = min(self._kill_at, kill_at)
        if not self._stopping and not self._end and self._program:
            self._stopping, self._stopped_at = True, time.monotonic()
            _signal_group(self._program, signal.SIGTERM)

    @property
    def _is_stopping(self) -> bool:
        """Whether SIGTERM was sent: then descendants have the grace."""
        return self._stopping

    def _is_over(self, *, has_children: bool) -> bool:
        """Whether the program has ended, and with it what may go on without it."""
        return bool(self._end) and (not has_children or not self._is_stopping or self._grace_is_over)

    def _end_grace(self) -> None:
        self._kill_at = float("inf")
        self._grace_is_over = True
        self._log_survivors()
        self._kill_descendants()

    def _log_survivors(self) -> None:
        """Say in the log what the grace was too short for."""
        from trainyard_agent.host import procfs  # slow to import, and hardly ever needed

        alive = [
            pid for pid in procfs.tree(os.getpid())[1:] if procfs.lives(pid) and procfs.name(pid) != procfs.LAUNCHER
        ]
        if self._stopped_at == float("inf") or not alive:
            return
        shown = [f"{procfs.program(pid) or procfs.name(pid)} (pid {pid})" for pid in alive[:_SHOWN]]
        others = [f"{len(alive) - _SHOWN} more"] if len(alive) > _SHOWN else []
        after = f"{time.monotonic() - self._stopped_at:.3g} s after SIGTERM"
        self._log.say(f"{NOT_ENDED}{after}, and killed: {', '.join([*shown, *others])}")
        for stream, spool in self._spools.items():
            self._log.mark(stream, spool)
        self._report_cut()

    def _start(self) -> str:
        """Start the program. Returns the error, or ""."""
        failure = os.pipe()
        pid = os.fork()
        if pid == 0:
            out, err = (self._spools[stream].writer for stream in STREAMS)
            _become_program(self._launch, os.getppid(), out, err, failure[1])
        os.close(failure[1])
        for spool in self._spools.values():
            spool.close_writer()
        self._streams = {spool.pipe: stream for stream, spool in self._spools.items()}
        with os.fdopen(failure[0], "rb") as pipe:
            # The text is empty once exec has closed the other end.
            error_text = self._mask(pipe.read()).decode("utf-8", "replace")
        if not error_text:
            self._program = pid
            spools = {stream: [spool.pipe, spool.memory] for stream, spool in self._spools.items()}
            started = {"pid": pid, "time": rfc3339(time.time_ns()), "spools": spools, "log": self._log.file}
            self._notes.add("started.json", started, vital=False)
        return error_text

    def _wait_and_read(self, timeout: float) -> None:
        if not self._flush():
            timeout = min(timeout, _RETRY_S)
        # While a full disk delays the log nothing is read: the program blocks in its write.
        readable = [self._wake_fd] if self._log.pending else [self._wake_fd, *self._streams]
        timeout = max(0.0, min(timeout, 3600.0))
        if self._printing.stream in readable:  # its lines come together, unless anything else happens
            others = [fd for fd in readable if fd != self._printing.stream]
            select.select(others, [], [], min(timeout, _GATHER_S))
        ready, _, _ = select.select(readable, [], [], timeout)
        for fd in ready:
            if fd == self._wake_fd:
                if signal.SIGTERM in os.read(fd, 512):
                    self.stop()
            else:
                self._read(fd)

    def _read(self, fd: int) -> bool:
        stream = self._streams[fd]
        data = self._spools[stream].consume(_BLOCK)
        self._printing.add(fd, len(data), time.monotonic())
        if data:
            self._log.feed(stream, data)
            if not self._has_printed:  # whoever has just changed the program waits for this
                self._has_printed = True
                _notify(self._directory)
        else:
            self._log.end(stream)
            del self._streams[fd]
        self._log.mark(stream, self._spools[stream])
        self._report_cut()
        return bool(data)

    def _report_cut(self) -> None:
        """Write cut.json at once: this process may be killed."""
        if self._log.is_cut and not self._cut_reported:
            self._cut_reported = True
            self._notes.add(CUT, {"lines": self._log.count}, vital=False)

    def _note_child(self, pid: int, status: int) -> None:
        if pid == self._program and not self._end:
            self._note_end({"status": os.waitstatus_to_exitcode(status)})

    def _note_end(self, how: dict[str, object]) -> None:
        self._end = {**how, "time": rfc3339(time.time_ns()), "monotonic": time.monotonic()}

    def _record_exit(self) -> None:
        self._ended = True
        self._notes.add("exit.json", self._end)

    def _kill_descendants(self) -> None:
        for pid in signal_descendants(signal.SIGKILL) - self._unkillable:
            _log_error(f"process {pid} cannot be killed, trying again: it is another user's")
            self._unkillable.add(pid)

    def _drain(self) -> None:
        """Read what is left in the pipes: no descendant writes any more."""
        for fd, stream in list(self._streams.items()):
            os.set_blocking(fd, False)
            try:
                while self._read(fd):
                    pass
            except BlockingIOError:  # a process outside the replica has the pipe: not our output
                self._log.end(stream)
                self._report_cut()

    def _settle(self) -> None:
        """Wait until a full disk has accepted everything."""
        while not self._flush():
            time.sleep(_RETRY_S)

    def _flush(self) -> bool:
        """Write what is pending. True once nothing is."""
        self._notes.flush()
        self._log.flush()
        return not self._notes.pending and not self._log.pending


def descendants(root: int) -> list[int]:
    """The pids of all descendants of `root`, from /proc."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdecimal():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
                    parent = int(file.read().rpartition(b")")[2].split()[1])
            except (OSError, IndexError):
                continue  # it has ended
            children.setdefault(parent, []).append(int(name))
    pids = list(children.get(root, ()))
    for pid in pids:
        pids += children.get(pid, ())
    return pids


def reap(note: Callable[[int, int], None]) -> bool:
    """Reap dead children: `note` gets the pid and the status of each. True once there is no child, dead or alive."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return True
        if pid == 0:
            return False
        note(pid, status)


def signal_descendants(number: signal.Signals) -> set[int]:
    """Send a signal to all descendants. Returns those that may not be signalled: another user's, such as of sudo."""
    refused = set()
    for pid in descendants(os.getpid()):
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue
        except PermissionError:
            refused.add(pid)
    return refused


def _become_program(launch: dict[str, object], parent: int, out: int, err: int, failure: int) -> None:
    """Execute the program in the forked child. Never returns: an error before exec is written to `failure`."""
    try:
        restore_signals()
        os.setsid()
        die_with(parent)
        os.dup2(out, 1)
        os.dup2(err, 2)
        command = launch["command"]
        cpus = launch["cpus"]
        assert isinstance(command, list)
        assert isinstance(cpus, list)
        if cpus:
            try:
                os.sched_setaffinity(0, cpus)
            except (OSError, ValueError) as error:
                raise OSError(f"the CPUs {', '.join(map(str, cpus))} cannot be used ({error})") from error
        if launch.get("host_name"):
            _set_host_name(str(launch["host_name"]))
        if launch.get("user"):
            # The program may open /dev/stdout and /dev/stderr, which stay root's, and never read them.
            for fd in (1, 2):
                os.fchmod(fd, 0o622)
            groups = launch.get("groups") or []
            assert isinstance(groups, list)
            become_user(int(str(launch["user"])), int(str(launch["processes"])), groups)
            die_with(parent)  # again: the kernel forgets it with another user
        os.chdir(str(launch["directory"]))
        environment = launch["environment"]
        assert isinstance(environment, dict)
        os.execve(command[0], command, environment)  # noqa: S606 - a list, and no shell
    except BaseException as error:  # noqa: BLE001 - a child that returned would be a second supervisor
        os.write(failure, str(error).encode("utf-8", "replace")[:4000] or b"unknown error")
    os._exit(127)


def _held_directory(path: str) -> int:
    """The program's temporary directory, open and locked for as long as this process lives: systemd-tmpfiles removes
    what is old in the machine's, but nothing that is locked. -1: there is none, or it cannot be locked."""
    if not path:
        return -1
    try:
        directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        fcntl.flock(directory, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return -1
    return directory


def _set_host_name(name: str) -> None:
    """Let the program, and what it starts, alone have this host name: Gloo listens at the address that it resolves to,
    which on many machines is loopback. Without the right to do so (CAP_SYS_ADMIN) the machine's name stays."""
    given = name.encode()
    if _libc.unshare(_CLONE_NEWUTS) == 0 and _libc.sethostname(given, len(given)) == 0:
        return
    if (error := ctypes.get_errno()) != errno.EPERM:
        raise OSError(error, f"the host name cannot be set: {os.strerror(error)}")


def restore_signals() -> None:
    """Ignore, catch and block no signal, in a process that is about to execute a program. What is ignored stays so in
    all that is executed: Python ignores SIGPIPE, and an agent that was started by `nohup` or `&` has inherited SIGHUP,
    SIGINT and SIGQUIT, without which no Ctrl-C ends anything."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def die_with(parent: int) -> None:
    """Let the kernel kill this process when its parent ends."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)  # it ended before it could be watched


def become_user(user: int, processes: int, groups: Iterable[int] = ()) -> None:
    """Become that user for ever, with no other group than its own and `groups`, no capability and no way to gain any;
    `processes` limits those of the user, of all its programs together. Raises OSError."""
    resource.setrlimit(resource.RLIMIT_NPROC, (processes, processes))
    os.setgroups(list(groups))
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def wake_on_signals() -> int:
    """A file descriptor that gets a byte, the signal's number, for each signal."""
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    return read_end


def _signal_group(leader: int, number: int) -> None:
    try:
        os.killpg(leader, number)
    except ProcessLookupError:
        return  # it has ended: SIGCHLD follows


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed")


def _read_json(path: str) -> dict[str, float]:
    """The JSON object in a file; empty for a missing or damaged one, which must not end the program."""
    try:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123
            value = json.load(file)
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _log_error(message: str) -> None:
    """Write to stderr. Never fails: supervisor.err may be on the full disk."""
    try:
        os.write(2, f"{message}\n".encode("utf-8", "backslashreplace"))
    except OSError:
        return


def _pass_gate(directory: str) -> bool:
    """Wait until the agent lets the run begin. False if it died, or removed the run, before that."""
    try:
        gate = os.open(f"{directory}/../gate", os.O_RDONLY)
    except FileNotFoundError:
        return False
    fcntl.flock(gate, fcntl.LOCK_SH)
    os.close(gate)
    return bool(_read_json(f"{directory}/../run.json").get("launched"))


def _read_secrets(file: int) -> tuple[dict[str, str], Mask]:
    """The further variables of the program, and the mask of its log."""
    os.set_inheritable(file, False)  # not the program's
    with open(file, "rb", closefd=False) as opened:
        secrets = json.load(opened)
    return secrets["environment"], Mask(secrets["values"])


def main(directory: str, lock: int, secrets: int = 0) -> None:
    """`lock` is the open, locked `alive` file: the program must not inherit it."""
    environment, mask = _read_secrets(secrets) if secrets else ({}, Mask())
    os.set_inheritable(lock, False)
    os.closerange(max(lock, secrets) + 1, _MAX_FDS)  # inherited from the agent's parent
    if not _pass_gate(directory):
        return
    adopt_orphans()
    with open(f"{directory}/launch.json", encoding="utf-8") as file:  # noqa: PTH123
        launch = json.load(file)
    launch["environment"].update(environment)
    supervisor = Supervisor(directory, launch, mask)
    # Blocked since this process was spawned: a stop may come before the handlers are installed.
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    supervisor.run()
