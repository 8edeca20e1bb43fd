"""Package of a script: a wheel with the user's files as they are, and a launcher (`script_launcher`).

The launcher is a module with the script's name; it starts the script as `python FILE` does, in a writable copy of the
files. Nothing is built here or on the agent (`wheels`).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from trainyard_cli.submission import script_launcher, wheels
from trainyard_cli.submission.packaging import Archive, check_archive
from trainyard_cli.submission.programs import Program

_CALL = """

if __name__ == "__main__":
    main({arguments})
"""


@contextmanager
def build(program: Program) -> Iterator[Archive]:
    """Build the wheel in a temporary directory. Raises InvalidArgument for a file that cannot be read."""
    files = [wheels.WheelFile(f"{_folder(program)}/{name}", program.root / name) for name in sorted(program.files)]
    entries = [wheels.WheelFile(f"{program.module}.py", launcher(program).encode()), *files]
    with TemporaryDirectory(prefix="trainyard-package-") as scratch:
        yield check_archive(wheels.write(Path(scratch), program.module, entries, program.requirements))


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


def _folder(program: Program) -> str:
    return f"{program.module}_files"
