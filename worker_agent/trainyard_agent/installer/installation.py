"""Installation of packages and of what a program declares, into an environment that is there, by a plan. All of the
plan is optional but `python`:

    python        the environment's interpreter
    uv            a program uv, which is used if it runs here; else the one on PATH
    pip           the command of a pip that installs into the environment
    libraries     a directory with `packaging` and `tomli`, such as that of pip's own
    temporary     a directory for what is not kept
    cache         a directory beside the environment for what uv fetches, which is removed; without it uv's own
    secrets       variables that tools get if a requirement file refers to them, and `hidden`: names of such variables;
                  `concealed`: names of other secret variables
    packages      `path` of archives to install first, even if the base has them; `with_base`: its setuptools builds it
    requirements  further requirements
    own           install `packages` and the program's project: themselves, without what they need
    dependencies  install what they need and the environment lacks, and what the program declares
    patience_s    how long an index that does not answer is waited for

The program is a package with its files (`manifest.PROGRAM`), which the environment has, or which is one of `packages`.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from . import declared, manifest, tools, tree
from .environment import Environment, Package, brings_framework, drop_tree, size
from .indexes import Indexes
from .output import AWAY, Failed, NoAnswer, Refused, conceal, error_excerpt, report
from .patience import PATIENCE_S, Patience
from .requirement_files import RequirementReader
from .tools import Pip, Request, Tool, Uv
from .tree import SourceTree

_OF_NO_CHECKOUT = {
    # Projects that ask git for their version: what was uploaded has no history.
    **dict.fromkeys(("SETUPTOOLS_SCM_PRETEND_VERSION", "PBR_VERSION", "PDM_BUILD_SCM_VERSION"), "0.0.0"),
    **dict.fromkeys(("POETRY_DYNAMIC_VERSIONING_BYPASS", "UV_DYNAMIC_VERSIONING_BYPASS"), "0.0.0"),
}
_POETRY = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from poetry.core.constraints.version import Version
from poetry.core.factory import Factory
package = Factory().create_poetry(Path(sys.argv[2])).package
python = ".".join(map(str, sys.version_info[:3]))
if not package.python_constraint.allows(Version.parse(python)):
    sys.exit(f"error: The program requires Python {package.python_versions} (pyproject.toml), and this is {python}.")
for need in package.requires:
    if not need.is_optional():
        print(need.to_pep_508())
"""
_LARGEST, _LEAST = 5, 1 << 20  # packages that are named, and bytes of one
PROJECT, _LOCK = "project", "lock"

_T = TypeVar("_T")


class EnvironmentInstaller:
    def __init__(self, plan: dict[str, Any]) -> None:
        self._plan = plan
        self._pip: Sequence[str] = plan.get("pip") or ()
        self._environment = Environment(Path(plan["python"]))
        self._temporary = Path(plan.get("temporary") or tempfile.gettempdir())
        self._tree: SourceTree | None = None
        self._tool: Tool | None = None
        self._first: list[Package] = []
        # Those of this Python's own pip first: the agent's may be for newer ones.
        sys.path += [path for path in (declared.libraries(), plan.get("libraries")) if path]
        self._secrets: dict[str, str] = dict(plan.get("secrets") or {})
        for name in plan.get("hidden") or ():
            self._secrets[name] = os.environ.pop(name, "")
        conceal([*self._secrets.values(), *(os.environ.get(name, "") for name in plan.get("concealed") or ())])
        os.environ["UV_LINK_MODE"] = "copy"  # a program may change its files, and must not change those of others
        if plan.get("cache"):
            os.environ.update(UV_CACHE_DIR=plan["cache"], UV_LINK_MODE="hardlink")
        os.environ.update(UV_PYTHON_DOWNLOADS="never", UV_NO_PROGRESS="1", NO_COLOR="1")

    def run(self) -> None:
        """Raises Refused, Failed, NoAnswer."""
        try:
            if self._plan.get("own"):
                self._install_own()
            if self._plan.get("dependencies"):
                self._install_all_dependencies()
                drop_tree(self._environment.venv)
        finally:
            self._environment.hide_base()
            if self._plan.get("cache"):
                shutil.rmtree(self._plan["cache"], ignore_errors=True)

    def _install_own(self) -> None:
        for archive in self._plan.get("packages") or ():
            report(activity=f"installing {Path(archive['path']).name}")
            by_base = archive["with_base"] and self._environment.sees_base
            others = [Pip(self._pip)] if self._pip and isinstance(self._with, Uv) else []
            # Archives by names that say nothing of what is in them are for pip alone.
            tools_in_turn = [(tool, by_base) for tool in (self._with, *others)]
            self._patiently(partial(self._install_itself, archive["path"], tools_in_turn, {}))
        for step in self._steps:
            if step["what"] == PROJECT:
                directory = self._files.path(str(step["directory"]), "The program")
                report(activity=f"building and installing the program's project with {self._with.name}")
                by_base = self._environment.sees_base and declared.needs_setuptools_alone(directory)
                # The base's setuptools may be none, or too old for it.
                tries = [(self._with, True), (self._with, False)][0 if by_base else 1 :]
                try:
                    self._patiently(partial(self._install_itself, str(directory), tries, _OF_NO_CHECKOUT))
                except Failed as error:
                    if not step.get("optional"):
                        raise
                    reason = error_excerpt(str(error)).partition("\n")[0].rstrip(".")
                    report(note=f"WARNING: the program's project is not installed, since its build fails: {reason}")
        report(packages=[[package.name, package.version, *package.needs] for package in self._own()])

    def _install_itself(self, path: str, tries: Sequence[tuple[Tool, bool]], variables: dict[str, str]) -> None:
        """Install a package, even if the base has it, without what it needs: by the first of these that can, each with
        or without the base's setuptools."""
        failed: Failed | None = None
        for tool, by_base in tries:
            flag = "--reinstall" if isinstance(tool, Uv) else "--force-reinstall"
            try:
                tool.install(Request(["--no-deps", flag, path], None, None, variables, by_base))
            except Failed as error:
                failed = failed or error
            else:
                return
        assert failed is not None
        raise failed

    def _install_all_dependencies(self) -> None:
        project = self._environment.venv / tree.NAME
        self._first = [package for package in self._own() if not _is_from(package, project)]
        if any(step["what"] == _LOCK for step in self._steps):
            self._environment.leave_base()
        self._install_dependencies()
        if self._environment.sees_base and brings_framework(package.name for package in self._environment.packages()):
            self._environment.leave_base()
            self._environment.hide_base()
            self._install_dependencies()

    def _install_dependencies(self) -> None:
        if isinstance(self._with, Uv):
            self._environment.show_base()
        if needs := [need for package in self._first for need in package.needs]:
            self._install("what its packages need", lambda: self._listed(needs))
        if requirements := self._plan.get("requirements"):
            self._install(", ".join(requirements), lambda: self._listed(requirements))
        for step in self._steps:
            if work := self._work(step):
                self._install(*work)

    def _work(self, step: dict[str, Any]) -> tuple[str, Callable[[], list[str]]] | None:
        """The words for what a step installs, and its work; None for what goes with `own`. Raises Refused."""
        what, named = step["what"], str(step.get("file") or "")
        if what == "packages":
            packages = [str(package) for package in step["packages"]]
            return ", ".join(packages), lambda: self._listed(packages)
        if what == PROJECT:
            if not step.get("dependencies"):
                return None
            return "what the program's project needs", lambda: self._project(str(step["directory"]))
        path = self._files.path(named, "The program")
        works: dict[str, Callable[[Path], list[str]]] = {
            "requirements": self._file,
            "script": self._script,
            "pyproject": self._pyproject,
            "poetry": self._poetry,
            "conda": self._conda,
            _LOCK: self._lock,
        }
        if what not in works:
            raise Refused(f"The agent knows no installation {what!r}: it is older than the command line that sent it.")
        return f"the dependencies of {named}", lambda: works[what](path)

    def _install(self, what: str, work: Callable[[], list[str]]) -> None:
        """Do a step, and tell of it."""
        before = {package.info for package in self._own()}
        report(activity=f"installing {what} with {self._with.name}")
        began = time.monotonic()
        phases = self._patiently(work)
        took = time.monotonic() - began
        new = [package for package in self._own() if package.info not in before]
        if new:
            report(note=_installed(what, new, took, self._with, phases))

    def _patiently(self, work: Callable[[], _T]) -> _T:
        """Do it, again while an index does not answer. Raises Failed, NoAnswer."""
        patience = Patience(self._plan.get("patience_s", PATIENCE_S))
        why, waited_s = "", 0.0
        while True:
            try:
                done = work()
            except Failed as error:
                why = tools.no_answer(str(error))
                if not why:
                    raise
                pause_s = patience.pause_s()
                if not pause_s:
                    raise NoAnswer(f"A package index has not answered for {patience.waited_s:.0f} s: {why}") from error
                report(activity=f"asks a package index again: {why}")
                time.sleep(pause_s)
                waited_s = patience.waited_s
            else:
                if why:
                    report(note=f"A package index was away for {waited_s:.0f} s: {why}")
                return done

    def _own(self) -> list[Package]:
        return self._environment.packages()

    def _listed(self, requirements: Sequence[str]) -> list[str]:
        """Install requirements, which may name the tree's paths."""
        if not requirements:
            return []
        return self._file(self._write("requirements", requirements))

    def _file(self, path: Path, indexes: Indexes | None = None, options: Sequence[str] = ()) -> list[str]:
        """Install a requirement file."""
        variables = {**os.environ, **self._secrets}
        read = RequirementReader(self._files_or_none, indexes or self._with.indexes, variables).read(path)
        os.environ.update({name: self._secrets[name] for name in read.variables if name in self._secrets})
        given = read.path if isinstance(self._with, Uv) else path
        arguments = [*options, "-r", str(given)]
        request = Request(arguments, read.indexes, self._directory, hashes=read.hashes)
        try:
            return self._with.install(request)
        except Failed:
            if not read.indexes.none or not self._environment.sees_base:
                raise
            # No index has setuptools, but the base may.
            return self._with.install(replace(request, by_base=True))

    def _script(self, path: Path) -> list[str]:
        return self._declared(path, declared.script(self._files, path))

    def _pyproject(self, path: Path) -> list[str]:
        return self._declared(path, declared.pyproject(self._files, path))

    def _declared(self, path: Path, table: declared.Declaration) -> list[str]:
        """Install the dependencies of a table, which uv reads itself, with its own settings and sources."""
        self._check_python(table.requires_python, path)
        if isinstance(self._with, Uv):
            request = Request(["-r", str(path)], None, path.parent, _OF_NO_CHECKOUT)
            return self._with.install(request)
        if table.dependencies is None:
            raise Refused(f"{path.name}: its dependencies are dynamic, which needs uv, or a project that is built.")
        return self._file(self._write(path.name, table.dependencies), self._and(table.indexes))

    def _project(self, directory: str) -> list[str]:
        """Install what the program's project needs, which is installed itself."""
        root = self._files.path(directory, "The program")
        path = root / "pyproject.toml"
        if path.is_file() and isinstance(self._with, Uv):
            table = declared.pyproject(self._files, path)
            if table.dependencies is not None and "project" in declared.toml(path):
                return self._declared(path, table)
        return self._listed([need for package in self._own() if _is_from(package, root) for need in package.needs])

    def _poetry(self, path: Path) -> list[str]:
        """Install what poetry's own table declares, as poetry's own library reads it."""
        indexes = declared.pyproject(self._files, path).indexes
        library = self._temporary / "poetry-core"
        self._with.install(Request(["--target", str(library), "poetry-core"]))
        command = [str(self._environment.python), "-I", "-c", _POETRY, str(library), str(path.parent)]
        code, output = tools.run(command, os.environ, path.parent)
        if code:
            raise Failed(output)
        return self._file(self._write("poetry", output.splitlines()), self._and(indexes))

    def _conda(self, path: Path) -> list[str]:
        of_pip, others = declared.conda(path.read_text(encoding="utf-8", errors="replace"))
        if others:
            report(
                note=f"{path.name}: installed is its pip part; not installed, as packages of conda: {', '.join(others)}"
            )
        return self._file(self._write(path.name, of_pip, path.parent)) if of_pip else []

    def _lock(self, path: Path) -> list[str]:
        """Install what a lock names, and nothing else."""
        uv = self._with
        if not isinstance(uv, Uv):
            self._tool = uv = tools.bootstrap(self._pip, self._environment.python, self._temporary / "uv")
        # The site's constraints are for what is chosen here.
        found = replace(uv.indexes.copy(), constraints=[])
        if path.name != "uv.lock":
            _check_lock(self._files, path)
            return uv.install(Request(["--no-deps", "-r", str(path)], found, path.parent))
        exported = path.with_name(".trainyard-lock.txt")
        python = ["--python", str(self._environment.python)]
        export = ["export", "--frozen", "--no-emit-project", "--no-header", *python, "--output-file", str(exported)]
        code, output = uv.run(export, Request((), None, path.parent), found)
        if code:
            raise Failed(output)
        found.extra += _registries(declared.toml(path), uv.default_index)
        return self._file(exported, found, ["--no-deps"])

    def _and(self, further: Sequence[str]) -> Indexes:
        """The site's indexes and further ones."""
        found = self._with.indexes.copy()
        found.extra += further
        return found

    def _check_python(self, wanted: str, path: Path) -> None:
        version = platform.python_version()
        if wanted and not declared.requires_python(wanted, version):
            raise Refused(
                f"The program requires Python {wanted} (requires-python in {path.name}), and its environment has "
                f"{version}."
            )

    def _write(self, name: str, lines: Sequence[str], directory: Path | None = None) -> Path:
        """A requirement file of these lines, in the tree if there is one."""
        path = (directory or self._directory or self._temporary) / f".trainyard-{name}.txt"
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        return path

    @property
    def _with(self) -> Tool:
        if self._tool is None:
            self._tool = tools.choose(self._environment.python, str(self._plan.get("uv") or ""), self._pip)
        return self._tool

    @property
    def _steps(self) -> list[dict[str, Any]]:
        return manifest.steps(self._environment.site_packages)

    @property
    def _directory(self) -> Path | None:
        return self._tree.root if self._tree is not None else None

    @property
    def _files(self) -> SourceTree:
        """The program's files, which are unpacked for the first step that needs them."""
        if self._tree is None:
            root = self._environment.venv / tree.NAME
            if not root.exists():  # else it was unpacked for the project, before
                report(activity="unpacking the program")
                tree.unpack(manifest.files(self._environment.site_packages), root)
            self._tree = SourceTree(root, lambda: [link for link in self._with.indexes.links if "://" not in link])
        return self._tree

    @property
    def _files_or_none(self) -> SourceTree:
        """The tree; without one a directory with nothing of the program."""
        if self._tree is not None or any(step["what"] != "packages" for step in self._steps):
            return self._files
        return SourceTree(self._temporary)


def _registries(lock: dict[str, Any], default: str) -> list[str]:
    """The indexes that a uv.lock names beside uv's default one, for which the site's stands. It has the hashes of all
    packages."""
    sources = [package.get("source") for package in lock.get("package") or () if isinstance(package, dict)]
    named = [str(source["registry"]) for source in sources if isinstance(source, dict) and "registry" in source]
    return [url for url in dict.fromkeys(named) if url.startswith(("http://", "https://")) and url != default]


def _check_lock(files: SourceTree, path: Path) -> None:
    """Raises Refused for a pylock.toml with paths that lead out of the tree."""
    for package in declared.toml(path).get("packages") or ():
        for value in package.values() if isinstance(package, dict) else ():
            for entry in value if isinstance(value, list) else [value]:
                if isinstance(entry, dict) and "path" in entry:
                    files.path(str(entry["path"]), path.name, path.parent)


def _is_from(package: Package, directory: Path) -> bool:
    """Whether a package was installed from a directory, or one in it."""
    origin = package.info / "direct_url.json"
    return origin.is_file() and Path(os.path.realpath(directory)).as_uri() in origin.read_text(encoding="utf-8")


def _installed(what: str, new: Sequence[Package], took: float, tool: Tool, phases: Sequence[str]) -> str:
    """A sentence on what a step has installed."""
    sizes = sorted(((size(package), package) for package in new), reverse=True)
    shown = [
        f"{package.name} {package.version}" + (f" ({size / 1e6:.0f} MB)" if size >= _LEAST else "")
        for size, package in sizes[:_LARGEST]
    ]
    further = ", ..." if len(new) > _LARGEST else ""
    times = f" ({', '.join(phases)})" if phases else ""
    number = f"{len(new)} package" + "s" * (len(new) != 1)
    return (
        f"Installed {number} for {what} in {took:.1f} s{times} with {tool.name} from {tool.source}: "
        f"{', '.join(shown)}{further}"
    )


def main(plan: dict[str, Any]) -> int:
    """Install. Returns the exit status."""
    try:
        EnvironmentInstaller(plan).run()
    except (Refused, Failed) as error:
        reason = f"ERROR: {error}" if isinstance(error, Refused) else str(error)
        report(failed=error_excerpt(reason))
        return 1
    except NoAnswer as error:
        report(failed=str(error))
        return AWAY
    return 0
