"""Packing of a program that somebody else has sent, as a process of its own: `python -m trainyard_programs.packing`.

It reads a request (JSON) from standard input and writes a result to standard output. Sources are parsed, and nothing of
the program is run. The limits of the process hold for whatever its files make of a parser.
"""

import json
import resource
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainyard_programs import files, program_wheel, programs, sent_files
from trainyard_programs.programs import EntryUnclear, Program, Search
from trainyard_protocol.errors import InvalidArgument, TooLarge, TrainyardError, shown

_MEMORY, _CPU_S = 2**30, 30
_MAX_ENTRIES, _MAX_LISTED = 100, 1000
_TOP = "program"


def main() -> None:
    """Pack the program of the request: `tar` in the directory `scratch`, at most `mostBytes`, with its `entry`."""
    request = json.load(sys.stdin)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_S, _CPU_S))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        result = pack(Path(request["scratch"]), request["tar"], request["entry"], request["mostBytes"])
    except TooLarge as error:
        result = {"error": error.message, "isTooLarge": True}
    except TrainyardError as error:
        result = {"error": error.message}
    except MemoryError:
        result = {"error": "The program needs more memory to be read than the server gives to it."}
    except OSError as error:
        result = {"error": f"The server cannot store the program: {error.strerror}.", "isOfServer": True}
    json.dump(result, sys.stdout)


def pack(scratch: Path, tar: str, entry: str, most_bytes: int) -> dict[str, Any]:
    """The plan of the program in a tar, whose wheel is put beside it; or the `problem` that keeps it from running, and
    the entries that there are. Raises InvalidArgument for a tar that cannot be unpacked, TooLarge."""
    top = scratch / _TOP
    top.mkdir()
    sent_files.unpack(scratch / tar, top, most_bytes=most_bytes)
    (scratch / tar).unlink()
    children = list(top.iterdir())
    path = children[0] if len(children) == 1 and children[0].is_dir() else top
    search = Search(current_dir=path, is_foreign=True)
    entries: Sequence[str] = ()
    try:
        entries = _entries(path)
        program = _found(path, entry, entries, search)
        with program_wheel.build(program) as wheel:
            wheel.path.rename(scratch / wheel.path.name)
            return {**_plan(program, path, entries, top), "wheel": wheel.path.name}
    except InvalidArgument as error:
        return {"problem": _in_own_paths(error.message, top), "entries": entries}


def _found(path: Path, entry: str, entries: Sequence[str], search: Search) -> Program:
    if entry and entry not in entries:  # a path elsewhere would show what else is on the machine
        raise InvalidArgument(f"{shown(entry)} is not a file of the program that can be run. Choose another one.")
    try:
        return programs.find(path, entry, search)
    except EntryUnclear as error:
        if not entries:
            raise InvalidArgument(
                "There is nothing to run: no Python file (.py), shell script (.sh) or notebook (.ipynb)."
            ) from error
        if len(entries) > 1:
            raise InvalidArgument("Several files could start the program: choose the one to run.") from error
        return programs.find(path, entries[0], search)


def _entries(path: Path) -> Sequence[str]:
    """The files and modules that could start a program, those at the top first."""
    names = sorted(
        filter(programs.may_start, files.list_files(path, asks_git=False).files),
        key=lambda name: (name.count("/"), name),
    )
    return tuple(_entry(path, path / name) for name in names[:_MAX_ENTRIES])


def _entry(path: Path, file: Path) -> str:
    """The name by which `programs.find` knows a file: that of a module, for one in a package, or its path."""
    top = file.parent
    while (top / "__init__.py").is_file() and top != path.parent:
        top = top.parent
    if file.suffix != ".py" or top == file.parent or top not in (path.parent, path, path / "src"):
        return file.relative_to(path).as_posix()
    parts = file.relative_to(top).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__main__" else parts)


def _plan(program: Program, path: Path, entries: Sequence[str], top: Path) -> Mapping[str, Any]:
    listing = program.listing
    listed = [{"name": name, "size": file.size} for name, file in list(listing.files.items())[:_MAX_LISTED]]
    return {
        "module": program.module,
        "entry": _entry(path, program.file),
        "entries": entries,
        "command": program.command,
        "directory": program.directory,
        "files": listed,
        "fileCount": len(listing.files),
        "bytes": listing.size,
        "leftOut": [{"name": each.name, "reason": each.reason} for each in listing.left_out[:_MAX_LISTED]],
        "installs": program.listed,
        "notes": [_in_own_paths(note, top) for note in program.notes],
    }


def _in_own_paths(message: str, top: Path) -> str:
    """A message with the names that the sender knows, without the directory in which this process unpacked them."""
    return message.replace(f"{top}/", "").replace(str(top), "the directory")


if __name__ == "__main__":
    main()
