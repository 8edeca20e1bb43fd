"""Use case of programs whose files somebody sends: a process of its own packs them, with limits.

The files are never run here, and no program of this machine reads them: neither git nor a shell.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from threading import BoundedSemaphore
from typing import Any

from trainyard_protocol.answers.configs import PackedProgram
from trainyard_protocol.errors import InvalidArgument, TooLarge, Unavailable
from trainyard_server.context import Backend

PROGRAM_TAR = "program.tar"

_CONCURRENT = 2
_TURN_S = 2.0
"""Programs that are packed at the same time, and the longest that another one waits for its turn."""

_TIMEOUT_S = 60.0
_LONGEST_ENTRY = 1024


class ProgramPacking:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._turns = BoundedSemaphore(_CONCURRENT)

    def pack(self, project: str, scratch: Path, entry: str) -> PackedProgram:
        """Pack the tar in a directory, which is removed, and store the package for the project. Raises InvalidArgument
        for what is no tar of plain files, TooLarge, Unavailable while too many are packed."""
        if len(entry) > _LONGEST_ENTRY:
            raise InvalidArgument(f"The entry has at most {_LONGEST_ENTRY:,} characters.")
        if not self._turns.acquire(timeout=_TURN_S):
            raise Unavailable("Too many programs are being packed at the moment: try again.")
        try:
            return self._packed(project, scratch, entry)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)  # here, in a thread: there may be thousands of files
            self._turns.release()

    def _packed(self, project: str, scratch: Path, entry: str) -> PackedProgram:
        result = self._result(scratch, entry)
        if "error" in result:
            kind = Unavailable if "isOfServer" in result else TooLarge if "isTooLarge" in result else InvalidArgument
            raise kind(result["error"])
        if "problem" in result:
            return PackedProgram(problem=result["problem"], entries=tuple(result["entries"]))
        staged = self._backend.uploads.add(project, scratch / result["wheel"])
        return PackedProgram(
            uri=staged.uri,
            **{key: result[key] for key in ("entry", "entries", "module", "command", "directory", "files", "bytes")},
            file_count=result["fileCount"],
            left_out=result["leftOut"],
            installs=result["installs"],
            notes=result["notes"],
        )

    def _result(self, scratch: Path, entry: str) -> dict[str, Any]:
        request = {
            "scratch": str(scratch.resolve()),
            "tar": PROGRAM_TAR,
            "entry": entry,
            "mostBytes": self._backend.settings.upload_limit,
        }
        process = subprocess.Popen(
            [sys.executable, "-I", "-m", "trainyard_programs.packing"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={"PATH": os.defpath, "LC_ALL": "C.UTF-8", "HOME": str(scratch), "TMPDIR": str(scratch)},
        )
        try:
            output, errors = process.communicate(json.dumps(request), _TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise InvalidArgument(f"The program was not read within {_TIMEOUT_S:.0f} s: {_ADVICE}") from None
        finally:
            if process.poll() is None:
                process.kill()
                process.communicate()
        if process.returncode in (-signal.SIGXCPU, -signal.SIGKILL, -signal.SIGSEGV):
            raise InvalidArgument(f"The files of the program could not be read: {_ADVICE}")
        if process.returncode:
            raise RuntimeError(f"the packing of a program ended with {process.returncode}: {errors[-_SHOWN:]}")
        result: dict[str, Any] = json.loads(output)
        return result


_SHOWN = 4000
_ADVICE = "leave out files that are not its source, or submit it with the command line."
