"""Output of one stream that is not in its log yet: a pipe, and behind it a file in memory.

The supervisor moves bytes from the pipe into the file in one system call, so no byte is only in its own memory. After
their lines are in the log it notes how far it came, in the file's header. Another process that has both open, the agent
or the guard of a rank, goes on exactly there should the supervisor be killed (`finish_log`): the kernel keeps both for
as long as one process has them open, and nothing of them is ever on a disk.

Standard library only, as the supervisor.
"""

import ctypes
import os
import struct

STREAMS = ("stdout", "stderr")

_HEADER = struct.Struct("<QQQQ??")
_BEGIN = 64  # of the data; before it is the header
_KEPT = 1 << 20  # bytes that were read and are still kept: to let go of them is a system call
_PUNCH_HOLE = 3  # FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE
_CLOEXEC = 1  # MFD_CLOEXEC
_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)


def _file_in_memory() -> tuple[int, bool]:
    """An open file, and whether it keeps anything: not on a kernel, or with a C library, that has no such files.
    Python's own `memfd_create` is not in one that was built for older systems."""
    try:
        file = _libc.memfd_create(b"spool", _CLOEXEC)
    except AttributeError:
        file = -1
    return (file, True) if file >= 0 else (os.open(os.devnull, os.O_RDWR), False)


class Mark:
    """Place in a stream up to which it is in its log: all bytes up to `next` are read, and all of their lines are in
    the first `log_size` bytes of log.jsonl. Of the line that has not ended: its text so far, and the splitter's state.
    """

    def __init__(self, next_: int, log_size: int, line: bytes, dropped: int, returned: bool, begun: bool) -> None:
        self.next, self.log_size, self.line = next_, log_size, line
        self.dropped, self.returned, self.begun = dropped, returned, begun


class Spool:
    """`pipe` is the pipe's end to read from, `writer` the other one; -1: closed."""

    def __init__(self) -> None:
        self.pipe, self.writer = os.pipe()
        self.memory, self._is_kept = _file_in_memory()
        self._size = self._freed = _BEGIN
        self.mark(0)

    @classmethod
    def of_process(cls, pid: int, pipe: int, memory: int) -> "Spool":
        """That of a process that lives, by its descriptors. Raises OSError."""
        spool = cls.__new__(cls)
        spool._size, spool._freed, spool._is_kept = _BEGIN, _BEGIN, True
        spool.pipe, spool.writer = os.open(f"/proc/{pid}/fd/{pipe}", os.O_RDONLY | os.O_NONBLOCK), -1
        try:
            spool.memory = os.open(f"/proc/{pid}/fd/{memory}", os.O_RDWR)
        except OSError:
            os.close(spool.pipe)
            raise
        return spool

    @property
    def is_kept(self) -> bool:
        """Whether all is there. Without memory, or where files may have no more bytes, nothing is."""
        return os.fstat(self.memory).st_size > 0

    def close_writer(self) -> None:
        os.close(self.writer)
        self.writer = -1

    def close(self) -> None:
        os.close(self.pipe)
        os.close(self.memory)

    def consume(self, most: int) -> bytes:
        """Move up to `most` bytes from the pipe into the file, and return them; b"" at its end. Raises
        BlockingIOError, from a pipe that does not block."""
        if not self._is_kept:
            return os.read(self.pipe, most)
        try:
            count = os.splice(self.pipe, self.memory, most, offset_dst=self._size)
        except BlockingIOError:
            raise
        except OSError:
            self._forget()
            return os.read(self.pipe, most)
        data = os.pread(self.memory, count, self._size)
        self._size += count
        return data

    def mark(
        self, log_size: int, line: bytes = b"", dropped: int = 0, returned: bool = False, begun: bool = False
    ) -> None:
        """Note that all that was taken is in the log, but for the line that has not ended."""
        if not self._is_kept:
            return
        header = _HEADER.pack(self._size, log_size, len(line), dropped, returned, begun)
        try:
            os.pwrite(self.memory, header, 0)  # within a page: whole, or not at all
        except OSError:
            self._forget()
            return
        keep = self._size - len(line) - 2 * _KEPT  # the line may be followed by many a return
        if keep - self._freed > _KEPT:
            _libc.fallocate(self.memory, _PUNCH_HOLE, self._freed, keep - self._freed)
            self._freed = keep

    def _forget(self) -> None:
        self._is_kept = False
        os.ftruncate(self.memory, 0)

    def read_mark(self) -> Mark:
        header = os.pread(self.memory, _HEADER.size, 0)
        next_, log_size, length, dropped, returned, begun = _HEADER.unpack(header)
        first = max(_BEGIN, next_ - length - 2 * _KEPT)
        before = os.pread(self.memory, next_ - first, first)
        if returned:  # what ended the line's text so far
            before = before.rstrip(b"\r\n")
        return Mark(next_, log_size, before[len(before) - length :], dropped, returned, begun)

    def rest(self, mark: Mark) -> bytes:
        """All that was written behind a mark. Nobody else reads or writes any more."""
        self._size = max(_BEGIN, os.fstat(self.memory).st_size)
        os.set_blocking(self.pipe, False)
        try:
            while self.consume(1 << 16):
                pass
        except BlockingIOError:  # a process outside the replica has the pipe: not our output
            pass
        return os.pread(self.memory, self._size - mark.next, mark.next)
