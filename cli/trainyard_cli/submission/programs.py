"""Program of a package job: what a path and a module name come to.

A Python package keeps its layout (`packaging`). Anything else, which is one file, a directory of
scripts, a notebook exported as a script or a shell script, is packed as it is, with a launcher (`script_package`).
"""

import posixpath
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Literal

from trainyard_cli.submission import packaging, requirements, source_checks
from trainyard_protocol.errors import InvalidArgument
from trainyard_protocol.fields import did_you_mean

Kind = Literal["package", "python", "notebook", "shell"]

_MAX_LEFT_OUT = 3
_MAX_SOURCES = 100
_ENTRY_NAMES = ("task", "train", "main", "__main__")
_NO_ENTRIES = ("__init__", "setup", "conftest")
_SHELLS = ("sh", "bash", "dash", "zsh", "ksh")
_SHEBANG = re.compile(rb"#!\s*(?:/usr/bin/env\s+(?:-S\s+)?)?(?:\S*/)?(\w+)")


@dataclass(frozen=True, slots=True)
class Program:
    """A program to package. `module` is the job's pythonModule.

    For all kinds but `package`: `entry` is the file that is started and `files` are all that are packed, relative to
    `root`, and `empty` the directories without any; `interpreter` is that of a shell script; `passes_job_dir`: it gets
    the argument --job-dir. `choice` says why the entry was chosen; "" if the user named it.
    """

    kind: Kind
    path: Path
    module: str
    root: Path
    entry: str = ""
    files: tuple[str, ...] = ()
    empty: tuple[str, ...] = ()
    interpreter: str = ""
    passes_job_dir: bool = False
    requirements: tuple[str, ...] = ()
    choice: str = ""

    @property
    def shown(self) -> str:
        """The packaged files, in words."""
        others = [name for name in self.files if name != self.entry]
        if self.path.is_dir() or not others:
            return str(self.path)
        return f"{self.path} and what it imports ({', '.join(others[:3])}{', ...' if len(others) > 3 else ''})"

    @property
    def uploaded(self) -> str:
        """The packed files in words, for the error about a file that is not among them."""
        if self.path.is_dir():
            return f"{self.path.resolve().name} (hidden directories, environments and build output are left out)"
        return f"{self.entry} (--package-path with its directory uploads all that is beside it)"


def find(path: Path, module: str = "") -> Program:
    """The program at a path: a package, a directory of scripts, or one script. Without a module it is the one that
    obviously starts it.

    Raises InvalidArgument, with file and line, for one that could not run.
    """
    if path.is_dir():
        top = module.partition(".")[0]
        if (path / "__init__.py").is_file() or (top != module and top == path.resolve().name):
            return _package(path, module)
        if top != module and (path / top).is_dir() and not (path / module).is_file():
            return _package(path / top, module)
        return _directory(path, module)
    if path.is_file():
        return _script(path, module)
    raise InvalidArgument(
        f"--package-path {path} does not exist. It is a Python package, a directory of scripts, or one script "
        "(.py or .sh)."
    )


def left_out(program: Program, *directories: Path) -> Iterator[str]:
    """Sentences about files that the program names by their paths from its own directory or one of these, and that its
    replicas do not have there."""
    if program.kind == "package":
        sources = list(islice(program.path.rglob("*.py"), _MAX_SOURCES))
        missing = "which is not in the directory that a package starts in. Open data beside __file__."
    else:
        sources = [program.root / name for name in program.files if name.endswith(".py")][:_MAX_SOURCES]
        missing = "which is not uploaded. A directory is uploaded whole: --package-path DIR"
    bases = tuple(dict.fromkeys((program.root, *directories)))
    named = {
        name: f"{source}:{line} names {name}, {missing}"
        for source in sources
        for line, name in source_checks.named_files(source, bases)
        if posixpath.normpath(name) not in program.files
    }
    yield from islice(named.values(), _MAX_LEFT_OUT)


def beside(directories: Sequence[Path], module: str) -> Program | None:
    """The program of a module in one of these directories, for a job that names no package."""
    top = module.partition(".")[0]
    if not top.isidentifier():
        return None
    for directory in directories:
        package, inside = directory / top, module.split(".")[1:]
        if (package / "__init__.py").is_file() or (inside and _module_file(package, inside) is not None):
            return _package(package, module)
        for script in (directory / f"{module}.py", directory / f"{module}.sh"):
            if script.is_file():
                return _script(script, module)
    return None


def _package(path: Path, module: str) -> Program:
    packaging.check_package(path)
    resolved = path.resolve()
    parent, name = resolved.parent, resolved.name
    choice = ""
    if not module:
        entry, choice = _only_entry(path, _python_files(path))
        module = name if entry.stem == "__main__" else f"{name}.{entry.stem}"
    file = _module_file(parent, module.split("."))
    if file is not None:
        source_checks.check_module(file, module)
    elif module.partition(".")[0] == name:
        modules = [f"{name}.{file.stem}" for file in _python_files(path)]
        hint = did_you_mean(module, modules) or f"It has {', '.join(modules) or 'no modules'}."
        raise InvalidArgument(f"The module {module} is not in the package {path}. {hint}")
    elif not packaging.declares_itself(parent):
        hint = f"{name}.{module}"
        known_here = _module_file(parent, hint.split(".")) is not None
        raise InvalidArgument(
            f"The module {module} is not in the package {path}. "
            + (f"Its name is {hint}." if known_here else f"A module of it is named {name}.MODULE.")
        )
    listed = requirements.beside(path, parent)
    declared = packaging.declares_itself(parent)
    return Program(
        kind="package",
        path=path,
        module=module,
        root=parent,
        requirements=requirements.read(listed) if listed and not declared else (),
        choice=choice,
    )


def _directory(path: Path, module: str) -> Program:
    choice = ""
    if module:
        names = (f"{module}.py", f"{module}.sh", module)
        entry = next((path / name for name in names if (path / name).is_file()), None)
        if entry is None:
            stems = [file.stem for file in (*_python_files(path), *sorted(path.glob("*.sh")))]
            hint = did_you_mean(module, stems) or f"It has {', '.join(stems) or 'neither .py nor .sh files'}."
            raise InvalidArgument(f"The module {module} is not in {path}. {hint}")
    else:
        entry, choice = _only_entry(path, _python_files(path) or sorted(path.glob("*.sh")))
    files, empty = (tuple(file.relative_to(path).as_posix() for file in paths) for paths in packaging.files_of(path))
    return replace(_program(path, entry, files, choice), empty=empty)


def _script(path: Path, module: str) -> Program:
    if path.suffix == ".ipynb":
        raise InvalidArgument(
            f"{path} is a notebook. Export it as a script first: jupyter nbconvert --to script {path}"
        )
    if path.name.endswith(packaging.ARCHIVE_SUFFIXES):
        raise InvalidArgument(f"{path} is a built package: give it with --packages.")
    if module and module not in (path.stem, path.name, _module_name(path.stem)):
        raise InvalidArgument(f"{path} is one file, whose module is {path.stem}; not {module}.")
    return _program(path, path, (), "")


def _program(path: Path, entry: Path, files: tuple[str, ...], choice: str) -> Program:
    """The program of a script. Without `files` it is packed with what it imports."""
    root = entry.parent
    shell = _shell_of(entry)
    needs: tuple[str, ...] = ()
    if shell:
        _check_shell_script(entry, shell)
        kind: Kind = "shell"
        files = files or (entry.name,)
    elif entry.suffix == ".py":
        script = source_checks.script(entry)
        kind = "notebook" if script.is_notebook else "python"
        files, needs = files or script.files, script.needs
    else:
        raise InvalidArgument(f"{entry} is neither a Python file (.py) nor a shell script (.sh).")
    listed = requirements.beside(root)
    needed = (*(requirements.read(listed) if listed else ()), *needs)
    return Program(
        kind=kind,
        path=path,
        module=_module_name(entry.stem),
        root=root,
        entry=entry.name,
        files=files,
        interpreter=shell,
        requirements=tuple(dict.fromkeys(needed)),
        choice=choice,
    )


def _module_name(stem: str) -> str:
    """A module name for a file of any name, none of the standard library's."""
    name = re.sub(r"\W+", "_", stem, flags=re.ASCII).strip("_") or "program"
    name = name if name[0].isalpha() else f"program_{name}"
    return f"{name}_program" if name in (*sys.stdlib_module_names, "test") else name


def _module_file(directory: Path, parts: Sequence[str]) -> Path | None:
    """The file that `python -m` runs for a dotted name below a directory."""
    base = directory.joinpath(*parts)
    return next((file for file in (base.with_name(f"{base.name}.py"), base / "__main__.py") if file.is_file()), None)


def _python_files(directory: Path) -> list[Path]:
    return [
        file
        for file in sorted(directory.glob("*.py"))
        if file.stem not in _NO_ENTRIES and not file.stem.startswith("test_")
    ]


def _only_entry(directory: Path, files: Sequence[Path]) -> tuple[Path, str]:
    """The file that obviously starts a program, and why."""
    for candidates, why in _rules(files):
        if len(candidates) == 1:
            return candidates[0], f"{candidates[0].name}, {why}"
    names = ", ".join(file.stem for file in files)
    raise InvalidArgument(
        f"{directory} has several files that could start the program: name one with --module-name ({names})."
        if names
        else f"{directory} has neither Python files (.py) nor shell scripts (.sh), so there is nothing to run."
    )


def _rules(files: Sequence[Path]) -> Iterator[tuple[list[Path], str]]:
    yield list(files), "the only script"
    yield [file for file in files if file.stem in _ENTRY_NAMES], "by its name"
    python = [file for file in files if file.suffix == ".py"]
    yield (
        [file for file in python if source_checks.has_main_guard(file)],
        'the only one with `if __name__ == "__main__"`',
    )


def _shell_of(path: Path) -> str:
    """The interpreter of a shell script, from its first line or its name; "" for any other file."""
    if path.suffix == ".py":
        return ""
    with path.open("rb") as file:
        first = file.readline(200)
    named = _SHEBANG.match(first)
    if named and named[1].decode() in _SHELLS:
        return named[1].decode()
    return "bash" if path.suffix == ".sh" and not named else ""


def _check_shell_script(path: Path, shell: str) -> None:
    """Raises InvalidArgument for Windows line endings and, where the shell is installed here, for a syntax error."""
    if b"\r\n" in path.read_bytes():
        raise InvalidArgument(f"{path}:1: has Windows line endings (CR LF), which {shell} does not understand.")
    program = shutil.which(shell)
    if program is None:
        return
    done = subprocess.run([program, "-n", str(path)], capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        reason = "".join(c if c.isprintable() else " " for c in done.stderr.strip().partition("\n")[0])
        raise InvalidArgument(f"{path} is not a valid {shell} script: {reason}")
