"""Package of a script: a wheel with the user's files as they are, and a launcher (`script_launcher`).

The launcher is a module with the script's name; it starts the script as `python FILE` does, in a writable copy of the
files. A wheel of pure Python is a zip with a list of its files, so nothing is built here or on the agent. The same
files give the same wheel.
"""

import base64
import hashlib
import stat
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from trainyard_cli.submission import script_launcher
from trainyard_cli.submission.packaging import Archive, check_archive
from trainyard_cli.submission.programs import Program
from trainyard_protocol.errors import InvalidArgument

_VERSION = "0.0.0"
_EPOCH = (1980, 1, 1, 0, 0, 0)

_CALL = """

if __name__ == "__main__":
    main({arguments})
"""


@contextmanager
def build(program: Program) -> Iterator[Archive]:
    """Build the wheel in a temporary directory. Raises InvalidArgument for a file that cannot be read."""
    with TemporaryDirectory(prefix="trainyard-package-") as scratch:
        path = Path(scratch, f"{program.module}-{_VERSION}-py3-none-any.whl")
        _write(path, program)
        yield check_archive(path)


def launcher(program: Program) -> str:
    """The source of the module that starts the script."""
    folder = f"Path(__file__).resolve().parent / {_folder(program)!r}"
    options = {
        "kind": program.kind,
        "interpreter": program.interpreter,
        "directories": program.empty,
        "passes_job_dir": program.passes_job_dir,
        "uploaded": program.uploaded,
    }
    arguments = [repr(program.entry), folder, *(f"{name}={value!r}" for name, value in options.items())]
    return Path(script_launcher.__file__).read_text(encoding="utf-8") + _CALL.format(arguments=", ".join(arguments))


def metadata(program: Program) -> str:
    """The wheel's METADATA. Pure."""
    needs = [f"Requires-Dist: {requirement}" for requirement in program.requirements]
    return "\n".join(["Metadata-Version: 2.1", f"Name: {program.module}", f"Version: {_VERSION}", *needs, ""])


def _folder(program: Program) -> str:
    return f"{program.module}_files"


def _write(path: Path, program: Program) -> None:
    info = f"{program.module}-{_VERSION}.dist-info"
    record: list[str] = []
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:

        def add(name: str, content: bytes, mode: int = 0o644) -> None:
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.external_attr = (stat.S_IFREG | mode) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            wheel.writestr(entry, content)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            quoted = '"' + name.replace('"', '""') + '"'
            record.append(f"{quoted},sha256={digest},{len(content)}")

        add(f"{program.module}.py", launcher(program).encode())
        for name in sorted(program.files):
            file = program.root / name
            try:
                add(f"{_folder(program)}/{name}", file.read_bytes(), 0o755 if file.stat().st_mode & 0o100 else 0o644)
            except OSError as error:
                raise InvalidArgument(f"{file} cannot be packaged: {error.strerror}.") from error
        add(f"{info}/METADATA", metadata(program).encode())
        wheel_file = "Wheel-Version: 1.0\nGenerator: trainyard\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        add(f"{info}/WHEEL", wheel_file.encode())
        add(f"{info}/RECORD", "".join(f"{line}\n" for line in [*record, f"{info}/RECORD,,"]).encode())
