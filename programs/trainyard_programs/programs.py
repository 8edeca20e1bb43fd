"""Program of a job: what a path and a module name come to.

Whatever it is, its files are packed as they are (`program_wheel`) and started as they would be in their own checkout:
`python scripts/train.py`, `python -m trainer.task`, `sh run.sh`, or a notebook.
"""

import posixpath
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from trainyard_programs import files, projects, source_checks
from trainyard_programs.archives import ARCHIVE_SUFFIXES
from trainyard_programs.files import LeftOut, ProgramListing
from trainyard_programs.projects import Project, Step
from trainyard_protocol.errors import InvalidArgument, shown
from trainyard_protocol.fields import did_you_mean, sized

Kind = Literal["python", "module", "shell", "notebook", "ipython", "dev"]
"""`python` and `shell`: a script; `module`: what `python -m` runs; `notebook`: an .ipynb; `ipython`: a script that a
notebook was exported as, with its magics; `dev`: the program of `jobs dev`, which is a file of the wheel."""

_MAX_NAMED, _MAX_SOURCES = 3, 100
_SHOWN_LEFT_OUT = 4
_ENTRY_NAMES = ("task", "train", "main", "__main__")
_NO_ENTRIES = ("__init__", "setup", "conftest")
_SUFFIXES = (".py", ".sh", ".ipynb")
_SHELLS = ("sh", "bash", "dash", "zsh", "ksh")
_SHEBANG = re.compile(rb"#!\s*(?:/usr/bin/env\s+(?:-S\s+)?)?(?:\S*/)?(\w+)")
_OF_KIND: dict[Kind, tuple[str, ...]] = {"notebook": ("nbclient", "ipykernel", "pip"), "ipython": ("ipython", "pip")}
"""What runs a program of that kind, beside what it declares."""


@dataclass(frozen=True, slots=True)
class Program:
    """A program to package. `module` is the job's pythonModule.

    `root` is the directory of the files of `listing`. `entry` is the `file` that is started, relative to it, or the
    module of `python -m`; `directory` is that in which it starts and `python_path` those that its modules are in, below
    the root. `steps` install what it needs, and are read from the files `declared`, which may name packages among the
    files (`installs_local`); `listed` says so for people. `interpreter` is that of a shell script;
    `passes_job_dir`: it gets the argument --job-dir. `choice` says why the entry was chosen; "" if the user named it.
    """

    kind: Kind
    path: Path
    module: str
    root: Path
    entry: str
    file: Path
    listing: ProgramListing
    directory: str = ""
    python_path: tuple[str, ...] = ()
    steps: tuple[Step, ...] = ()
    declared: tuple[str, ...] = ()
    listed: tuple[str, ...] = ()
    installs_local: bool = False
    interpreter: str = ""
    passes_job_dir: bool = False
    choice: str = ""
    notes: tuple[str, ...] = ()

    @property
    def command(self) -> tuple[str, ...]:
        """The command that starts it in its directory, for people."""
        name = self.entry if self.kind == "module" else posixpath.relpath(self.entry, self.directory or ".")
        first = {"module": ("python", "-m"), "shell": (self.interpreter,), "notebook": ("nbclient",)}
        return (*first.get(self.kind, ("ipython" if self.kind == "ipython" else "python",)), name)

    @property
    def is_whole(self) -> bool:
        """Whether all files of the root are sent, and not only those that a script imports."""
        return self.path.is_dir()

    @property
    def uploaded(self) -> str:
        """The packed files in words, for the error about a file that is not among them."""
        if self.is_whole:
            return f"{self.path.resolve().name}"
        return f"{posixpath.basename(self.entry)} (--package-path with its directory sends all that is beside it)"

    def plan(self) -> dict[str, Any]:
        """The files that are sent and what is done with them, as data."""
        return {
            "command": list(self.command),
            "root": str(self.root),
            "directory": self.directory,
            "files": list(self.listing.files),
            "bytes": self.listing.size,
            "leftOut": [{"name": each.name, "reason": each.reason} for each in self.listing.left_out],
            "followed": list(self.listing.followed),
            "install": list(self.steps),
        }

    def summary(self, *, names_all: bool = False) -> Iterator[str]:
        """The plan in two lines: the files, and what runs them. With `names_all` it names hidden files too."""
        count = len(self.listing.files)
        text = f"Sends {count} file{'' if count == 1 else 's'} ({sized(self.listing.size)}) of {self.root}"
        left_out = _in_words(self.listing.left_out, names_all=names_all)
        text += f". Left out: {left_out}. --include PATH sends one." if left_out else "."
        if self.listing.followed:
            text += f" Links followed: {', '.join(map(shown, self.listing.followed[:_SHOWN_LEFT_OUT]))}."
        yield text
        installs = f" after installing {', '.join(self.listed)}" if self.listed else ""
        where = f" in {shown(self.directory)}" if self.directory else ""
        yield f"Runs {shlex.join(map(shown, self.command))}{where}{installs}."


@dataclass(frozen=True, slots=True)
class _Entry:
    """The start of a program, before it is known what belongs to it."""

    kind: Kind
    file: Path
    module: str
    modules: Path | None = None  # the directory that a module's top package is in
    interpreter: str = ""
    choice: str = ""
    needs: tuple[str, ...] = ()
    imported: tuple[Path, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Search:
    """Files to `include` though a rule leaves them out, and the directory that the user is in. `is_foreign`: the files
    came from somebody else, so that neither git nor a shell reads them."""

    include: tuple[Path, ...] = ()
    current_dir: Path = field(default_factory=Path.cwd)
    is_foreign: bool = False


class EntryUnclear(InvalidArgument):
    """No file, or several, could start the program."""


def find(path: Path, module: str = "", search: Search | None = None) -> Program:
    """The program at a path: a package, a directory of scripts, or one script. Without a module it is the one that
    obviously starts it.

    Raises InvalidArgument, with file and line, for one that could not run.
    """
    search = search or Search()
    if path.is_dir():
        return _complete(path, _in_directory(path, module), search)
    if path.is_file():
        return _complete(path, _script(path, module), search)
    raise InvalidArgument(
        f"--package-path {path} does not exist. It is a Python package, a directory of scripts, or one script "
        "(.py, .sh or .ipynb)."
    )


def beside(directories: Sequence[Path], module: str, search: Search | None = None) -> Program | None:
    """The program of a module in one of these directories, for a job that names no package. Raises InvalidArgument for
    a module that is the name of a file, and is not there."""
    is_file = module.endswith(_SUFFIXES)
    top, *inside = [module] if is_file else module.split(".")
    for directory in directories if top else ():
        for modules in (directory, directory / "src"):
            package = modules / top
            if (package / "__init__.py").is_file() or (inside and _module_file(package, inside) is not None):
                return find(package, module, search)
        scripts = (directory / module,) if is_file else (directory / f"{module}{suffix}" for suffix in _SUFFIXES)
        for script in scripts:
            if script.is_file():
                return find(script, "", search)
    if is_file:
        where = " or ".join(dict.fromkeys(map(str, directories)))
        raise InvalidArgument(f"--module-name {module}: there is no such file in {where}. Name it with --package-path.")
    return None


def waiting(directory: Path, module: str, entry: str, needs: Sequence[str]) -> Program:
    """The program of `jobs dev`, which is no file of the directory, with what the directory's project declares. Raises
    InvalidArgument."""
    directory = directory.resolve()
    project = projects.find(_upwards(directory, _top(directory, Path.cwd().resolve(), asks_git=True)))
    root = project.root if project is not None else directory
    start = _Entry("dev", directory / entry, module, needs=tuple(needs))
    steps, declared, listed = _steps(root, start, project)
    below = ("",) if project is not None and project.is_whole else declared
    return Program(
        kind="dev",
        path=directory,
        module=module,
        root=root,
        entry=entry,
        file=directory / entry,
        listing=files.list_files(root, below=below),
        steps=steps,
        declared=declared,
        listed=listed,
        installs_local=project is not None and project.is_local,
    )


def named_and_left_out(program: Program, *directories: Path) -> Iterator[str]:
    """Sentences about files that the program names by their paths from its own directory or one of these, and that its
    replicas do not have there."""
    sources = [name for name in program.listing.files if name.endswith(".py")][:_MAX_SOURCES]
    start = program.root / program.directory
    missing = (
        "which is not sent." if program.is_whole else "which is not sent. --package-path DIR sends a directory whole."
    )
    bases = tuple(dict.fromkeys((start, *directories)))
    sent = {posixpath.relpath(name, program.directory or ".") for name in program.listing.files}
    named = {
        name: f"{program.root / source}:{line} names {name}, {missing}"
        for source in sources
        for line, name in source_checks.named_files(program.root / source, bases)
        if posixpath.normpath(name) not in sent
    }
    yield from islice(named.values(), _MAX_NAMED)


def _in_words(left_out: Sequence[LeftOut], *, names_all: bool) -> str:
    """Files that are left out, by their reasons; hidden ones are counted, unless all are named."""
    by_reason: dict[str, list[str]] = {}
    for each in left_out:
        by_reason.setdefault(each.reason, []).append(each.name)
    parts = []
    for reason, names in by_reason.items():
        visible = [name for name in names if names_all or not posixpath.basename(name).startswith((".", "__"))]
        hidden = len(names) - len(visible)
        words = list(map(shown, visible if names_all else visible[:_SHOWN_LEFT_OUT]))
        if len(visible) > len(words):
            words.append(f"{len(visible) - len(words)} more")
        if hidden:
            words.append(f"{hidden} hidden" if words else f"{hidden} hidden file{'' if hidden == 1 else 's'}")
        parts.append(f"{', '.join(words)} ({reason})")
    return "; ".join(parts)


def _in_directory(path: Path, module: str) -> _Entry:
    """The entry of a directory: a file in it, a module of it, or a module of the package that it is."""
    if module and (file := _file_in(path, module)) is not None:
        return _entry_of_file(file)
    name = path.resolve().name
    top = module.partition(".")[0]
    is_package = (path / "__init__.py").is_file()
    if is_package or (module and top == name and not (path / name).is_dir()):
        return _module(path, module)
    if module:
        for modules in (path, path / "src"):
            if _module_file(modules, module.split(".")) is not None:
                return _module_entry(modules, module)
        stems = [file.stem for file in (*_python_files(path), *sorted(path.glob("*.sh")))]
        hint = did_you_mean(module, stems) or f"It has {', '.join(stems) or 'neither .py nor .sh files'}."
        raise InvalidArgument(f"The module {module} is not in {path}. {hint}")
    if (path / "__main__.py").is_file() and not _python_files(path):
        return _module(path, module)
    candidates = _python_files(path) or sorted(path.glob("*.sh")) or sorted(path.glob("*.ipynb"))
    entry, choice = _only_entry(path, candidates)
    return replace(_entry_of_file(entry), choice=choice)


def _file_in(path: Path, name: str) -> Path | None:
    """The file that a name means in a directory: of `scripts/train.py` that path, of `train` train.py."""
    if name.endswith(_SUFFIXES) or "/" in name:
        names: tuple[str, ...] = (name,)
    else:
        names = (*(f"{name}{suffix}" for suffix in _SUFFIXES), name)
    file = next((path / each for each in names if (path / each).is_file()), None)
    if file is None and "/" in name:
        raise InvalidArgument(f"{path / name} does not exist. --module-name names a module, or a file below {path}.")
    if file is not None and not file.resolve().is_relative_to(path.resolve()):
        raise InvalidArgument(f"{file} is outside {path}, and only {path} is sent.")
    is_module = (path / "__init__.py").is_file() and "/" not in name and not name.endswith(_SUFFIXES)
    return None if is_module else file


def _module(path: Path, module: str) -> _Entry:
    """The entry of a package, which is a directory."""
    resolved = path.resolve()
    parent, name = resolved.parent, resolved.name
    choice = ""
    if not module:
        entry, choice = _only_entry(path, _python_files(path) or [path / "__main__.py"])
        module = name if entry.stem == "__main__" else f"{name}.{entry.stem}"
    if _module_file(parent, module.split(".")) is None:
        if module.partition(".")[0] == name:
            modules = [f"{name}.{file.stem}" for file in _python_files(path)]
            hint = did_you_mean(module, modules) or f"It has {', '.join(modules) or 'no modules'}."
        else:
            is_known = _module_file(parent, f"{name}.{module}".split(".")) is not None
            hint = f"Its name is {name}.{module}." if is_known else f"A module of it is named {name}.MODULE."
        raise InvalidArgument(f"The module {module} is not in the package {path}. {hint}")
    return replace(_module_entry(parent, module), choice=choice)


def _module_entry(modules: Path, module: str) -> _Entry:
    file = _module_file(modules, module.split("."))
    assert file is not None
    source = source_checks.module(file, module)
    imported = tuple(each.resolve() for each in source.files)
    return _Entry("module", file, module, modules, imported=imported, notes=tuple(source.notes))


def _script(path: Path, module: str) -> _Entry:
    if path.name.endswith(ARCHIVE_SUFFIXES):
        raise InvalidArgument(f"{path} is a built package: give it with --packages.")
    if module and module not in (path.stem, path.name, _module_name(path.stem)):
        raise InvalidArgument(f"{path} is one file, whose module is {path.stem}; not {module}.")
    return _entry_of_file(path)


def _entry_of_file(file: Path) -> _Entry:
    shell = _shell_of(file)
    if shell:
        return _Entry("shell", file, _module_name(file.stem), interpreter=shell, imported=(_resolved(file),))
    if file.suffix == ".ipynb":
        needs = source_checks.notebook(file)
        return _Entry("notebook", file, _module_name(file.stem), needs=needs, imported=(_resolved(file),))
    if file.suffix != ".py":
        raise InvalidArgument(f"{file} is no Python file (.py), shell script (.sh) or notebook (.ipynb).")
    script = source_checks.script(file)
    kind: Kind = "ipython" if script.has_magics else "python"
    imported = tuple(_resolved(file).parent / each.relative_to(file.parent) for each in script.files)
    module, needs, notes = _module_name(file.stem), tuple(script.needs), tuple(script.notes)
    return _Entry(kind, file, module, needs=needs, imported=imported, notes=notes)


def _complete(path: Path, entry: _Entry, search: Search) -> Program:
    """The program of an entry: where it starts, its project, its root, and its files."""
    if entry.kind == "shell":
        _check_shell_script(entry.file, entry.interpreter, parses=not search.is_foreign)
    named, file = _resolved(path), _resolved(entry.file)
    modules = entry.modules.resolve() if entry.modules is not None else None
    here = search.current_dir.resolve()
    # A package is run from the directory that has it; what else is named is a directory, or a script in one.
    base = named if named.is_dir() else named.parent
    if modules is not None and not modules.is_relative_to(base):
        base = modules
    top = _top(base, here, asks_git=not search.is_foreign)
    own = projects.of_script(file) if entry.kind in ("python", "ipython") else None
    project = own or projects.find(_upwards(file.parent, top))
    start = base
    if modules == base and project is not None and base.is_relative_to(project.root):
        start = project.root
    elif not named.is_dir() and base.is_relative_to(here) and here.is_relative_to(top):
        start = here
    root = project.root if project is not None and start.is_relative_to(project.root) else start
    include = tuple(each if each.is_absolute() else here / each for each in search.include)
    steps, declared, listed = _steps(root, entry, project)
    return Program(
        kind=entry.kind,
        path=path,
        module=entry.module,
        root=root,
        entry=entry.module if modules is not None else file.relative_to(root).as_posix(),
        file=file,
        listing=files.list_files(
            root, include=include, below=_below(root, named, entry, project), asks_git=not search.is_foreign
        ),
        directory=_relative(start, root),
        python_path=_python_path(root, start, modules, project),
        steps=steps,
        declared=declared,
        listed=listed,
        installs_local=project is not None and project.is_local,
        interpreter=entry.interpreter,
        passes_job_dir=entry.kind == "module",
        choice=entry.choice,
        notes=entry.notes,
    )


def _resolved(path: Path) -> Path:
    """The path without links; of a file its directory's, since a linked file belongs to where the link is."""
    return path.resolve() if path.is_dir() else path.parent.resolve() / path.name


def _top(base: Path, here: Path, *, asks_git: bool) -> Path:
    """The directory up to which a program's project may be declared: that of its checkout, or else the current one."""
    checkout = files.checkout_of(base) if asks_git else None
    if checkout is not None:
        return checkout
    if base.is_relative_to(here):
        return here
    return base.parent if base.name == "src" else base


def _upwards(directory: Path, top: Path) -> list[Path]:
    return [each for each in (directory, *directory.parents) if each.is_relative_to(top)] or [directory]


def _below(root: Path, named: Path, entry: _Entry, project: Project | None) -> tuple[str, ...]:
    """The files and directories of the root that are sent; "" is all of it."""
    sent = [named] if named.is_dir() else []
    if project is not None:
        sent += [project.root] if project.is_whole else [project.root / name for name in project.files]
    return tuple(dict.fromkeys(_relative(each, root) for each in (*sent, *entry.imported)))


def _steps(
    root: Path, entry: _Entry, project: Project | None
) -> tuple[tuple[Step, ...], tuple[str, ...], tuple[str, ...]]:
    """The steps of the installation with paths from the root, the files that they read, and these for people."""
    own = (*_OF_KIND.get(entry.kind, ()), *entry.needs)
    steps: list[Step] = [{"what": "packages", "packages": list(dict.fromkeys(own))}] if own else []
    listed = list(dict.fromkeys(own))
    if project is None:
        return tuple(steps), (), tuple(listed)
    prefix = _relative(project.root, root)

    def moved(name: str) -> str:
        return posixpath.normpath(posixpath.join(prefix, name))

    # A lock is installed to the letter, so what runs the program is added behind it.
    locked = [step for step in project.steps if step["what"] == "lock"]
    others = [step for step in project.steps if step["what"] != "lock"]
    ordered = [*locked, *steps, *others]
    result = []
    for step in ordered:
        places = {name: moved(step[name]) for name in ("file", "directory") if name in step}
        # What needs no more than its files runs where its project cannot be built, as it does in its checkout.
        is_optional = step["what"] == "project" and (entry.kind != "module" or not step["dependencies"])
        result.append({**step, **places, **({"optional": True} if is_optional else {})})
    return tuple(result), tuple(map(moved, project.files)), (*project.listed, *listed)


def _python_path(root: Path, start: Path, modules: Path | None, project: Project | None) -> tuple[str, ...]:
    """The directories of modules that `python` would not find from the working directory: that of the module, and those
    of a project that is installed, as an editable install has them."""
    paths = [modules] if modules is not None else []
    if project is not None and project.is_built:
        source = project.root / "src"
        paths.append(source if source.is_dir() else project.root)
    # `python -m` looks in the working directory, `python FILE` in that of the file.
    found = (path for path in paths if path.is_relative_to(root) and not (path == start and modules is not None))
    return tuple(dict.fromkeys(_relative(path, root) or "." for path in found))


def _relative(path: Path, root: Path) -> str:
    name = path.relative_to(root).as_posix()
    return "" if name == "." else name


def _module_name(stem: str) -> str:
    """A module name for a file of any name, none of the standard library's."""
    name = re.sub(r"\W+", "_", stem, flags=re.ASCII).strip("_") or "program"
    name = name if name[0].isalpha() else f"program_{name}"
    return f"{name}_program" if name in (*sys.stdlib_module_names, "test") else name


def _module_file(directory: Path, parts: Sequence[str]) -> Path | None:
    """The file that `python -m` runs for a dotted name below a directory."""
    if not all(parts):
        return None
    base = directory.joinpath(*parts)
    return next((file for file in (base.with_name(f"{base.name}.py"), base / "__main__.py") if file.is_file()), None)


def may_start(name: str) -> bool:
    """Whether a program may begin with a file of that name: a source or a notebook, and no part of a package, its setup
    or its tests."""
    base = posixpath.basename(name)
    stem = posixpath.splitext(base)[0]
    return base.endswith(_SUFFIXES) and stem not in _NO_ENTRIES and not stem.startswith("test_")


def _python_files(directory: Path) -> list[Path]:
    return [file for file in sorted(directory.glob("*.py")) if may_start(file.name)]


def _only_entry(directory: Path, candidates: Sequence[Path]) -> tuple[Path, str]:
    """The file that obviously starts a program, and why."""
    for found, why in _rules(candidates):
        if len(found) == 1:
            return found[0], f"{found[0].name}, {why}"
    names = ", ".join(file.stem for file in candidates)
    raise EntryUnclear(
        f"{directory} has several files that could start the program: name one with --module-name ({names})."
        if names
        else f"{directory} has neither Python files (.py) nor shell scripts (.sh), so there is nothing to run. "
        "--module-name names a file in a directory below, such as scripts/train.py."
    )


def _rules(candidates: Sequence[Path]) -> Iterator[tuple[list[Path], str]]:
    yield list(candidates), "the only script"
    yield [file for file in candidates if file.stem in _ENTRY_NAMES], "by its name"
    python = [file for file in candidates if file.suffix == ".py"]
    yield (
        [file for file in python if source_checks.has_main_guard(file)],
        'the only one with `if __name__ == "__main__"`',
    )


def _shell_of(path: Path) -> str:
    """The interpreter of a shell script, from its first line or its name; "" for any other file."""
    if path.suffix in (".py", ".ipynb"):
        return ""
    with path.open("rb") as file:
        first = file.readline(200)
    named = _SHEBANG.match(first)
    if named and named[1].decode() in _SHELLS:
        return named[1].decode()
    return "bash" if path.suffix == ".sh" and not named else ""


def _check_shell_script(path: Path, shell: str, *, parses: bool) -> None:
    """Raises InvalidArgument for Windows line endings and, where the shell `parses` it here, for a syntax error."""
    if b"\r\n" in path.read_bytes():
        raise InvalidArgument(f"{path}:1: has Windows line endings (CR LF), which {shell} does not understand.")
    program = shutil.which(shell) if parses else None
    if program is None:
        return
    done = subprocess.run([program, "-n", str(path)], capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        reason = "".join(c if c.isprintable() else " " for c in done.stderr.strip().partition("\n")[0])
        raise InvalidArgument(f"{path} is not a valid {shell} script: {reason}")
