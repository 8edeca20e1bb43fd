"""The programs that install: uv, or pip where there is no uv."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from . import indexes
from .indexes import Indexes
from .output import Failed, Refused, report, without_credentials

_UNREACHABLE = re.compile(r"(?:Failed to fetch: `?|for url \()(https?://[^\s`)]+)")
_NO_ANSWER = re.compile(
    r"HTTP status (?:server error \(5(?!01|05)|client error \((?:408|425|429)\b)[^\n]*"
    r"|error sending request for url [^\n]*(?:\n[^\S\n]+[^\n]+)*"  # with its causes
    r"|network timeout[^\n]*|error decoding response body[^\n]*"
    r"|(?<=Retry\(total=0, )[^\n]*connection broken by [^\n]*"
)
_UNTRUSTED = re.compile(r"invalid peer certificate|CERTIFICATE_VERIFY_FAILED")
_WORKING = re.compile(r"\s*(Downloading|Building|Collecting|Preparing) (\S[^\n]*)")
_PHASE = re.compile(r"(Resolved|Prepared|Installed) \d+ packages? in (\S+)")
_PHASES = {"Resolved": "chosen", "Prepared": "fetched", "Installed": "written"}
_EMITTED_INDEX = re.compile(r"(?m)^--index-url (\S+)$")
_KEPT_OUTPUT = 1 << 18  # characters of a command's output, at its end
_QUIET = ("--no-input", "--disable-pip-version-check", "--no-warn-script-location", "--no-warn-conflicts")
_MOST_INDEXES = 8


@dataclass
class Request:
    """One installation. `arguments`: of `install`; `indexes`: None for those of the site; `directory`: where it is
    started; `variables`: further ones of it alone; `by_base`: the base's setuptools builds, and without `indexes` none
    is asked."""

    arguments: Sequence[str]
    indexes: Indexes | None = None
    directory: Path | None = None
    variables: Mapping[str, str] | None = None
    by_base: bool = False
    hashes: bool = False


class Tool(ABC):
    """uv or pip for one environment. `name`: with its version; `source`: where its last installation looked for
    packages, for the log."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.source = ""

    @cached_property
    def indexes(self) -> Indexes:
        """Those of the site. Raises Refused."""
        return indexes.of_pip(os.environ)

    @abstractmethod
    def install(self, request: Request) -> list[str]:
        """Install. Returns the times of its phases, in words. Raises Failed."""


class Uv(Tool):
    def __init__(self, program: str, name: str, python: Path) -> None:
        super().__init__(name)
        self._program = program
        self._python = python

    @cached_property
    def default_index(self) -> str:
        """The index of uv where nothing else is said, PyPI. Raises Failed."""
        command = [self._program, "pip", "compile", "-", "--python", str(self._python), "--emit-index-url"]
        command += ["--no-header", "--no-config", "--no-cache", "--quiet"]
        plain = {name: value for name, value in os.environ.items() if not name.startswith("UV_")}
        done = subprocess.run(
            command, env=plain, input=b"", stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
        )
        output = done.stdout.decode("utf-8", "replace")
        emitted = _EMITTED_INDEX.search(output)
        if emitted is None:
            raise Failed(output)
        return emitted[1]

    def install(self, request: Request) -> list[str]:
        found, first = request.indexes or (Indexes(none=True) if request.by_base else self.indexes), None
        for _ in range(_MOST_INDEXES):
            self.source = found.shown()
            code, output = self.run(self._command(request, found), request, found)
            if not code:
                return [f"{_PHASES[phase]} in {took}" for phase, took in _PHASE.findall(output)]
            first = first or Failed(output)
            # pip warns of an index that does not answer, and takes what the others have.
            failed = _UNREACHABLE.search(output)
            rest = found.without(failed[1], self.default_index) if failed and not request.by_base else None
            if rest is None:
                break
            gone, found = rest
            report(note=f"The index {gone} cannot be reached: packages come from the others")
        assert first is not None
        raise first

    def run(self, arguments: Sequence[str], request: Request, found: Indexes) -> tuple[int, str]:
        """Run a command of uv. Returns its status and output."""
        environment = {**os.environ, **found.variables(os.environ), **(request.variables or {})}
        return run([self._program, *arguments], environment, request.directory)

    def _command(self, request: Request, found: Indexes) -> list[str]:
        command = ["pip", "install", "--python", str(self._python), "--index-strategy", "unsafe-best-match"]
        command.append("--compile-bytecode")
        if request.by_base:
            command.append("--no-build-isolation")
        if found.none:
            command.append("--no-index")
        if request.hashes:
            command.append("--require-hashes")
        return [*command, *request.arguments]


class Pip(Tool):
    """`command`: of a pip that installs into the environment."""

    def __init__(self, command: Sequence[str]) -> None:
        super().__init__("pip")
        self._command = command

    def install(self, request: Request) -> list[str]:
        command = [*self._command, "install", *_QUIET, *(("--no-build-isolation",) if request.by_base else ())]
        environment = {**os.environ, **(request.variables or {})}
        found = request.indexes or Indexes()
        self.source = found.shown()
        further = [url for url in found.extra if url not in self.indexes.extra]
        if further:
            named = [*further, *environment.get("PIP_EXTRA_INDEX_URL", "").split(), *self.indexes.extra]
            environment["PIP_EXTRA_INDEX_URL"] = " ".join(dict.fromkeys(named))
        code, output = run([*command, *request.arguments], environment, request.directory)
        if code:
            raise Failed(output)
        return []


def no_answer(output: str) -> str:
    """The reason why an index did not answer, by the output of uv or pip that has failed; "" if that is not why."""
    found = _NO_ANSWER.search(output)
    if found is None or _UNTRUSTED.search(output):
        return ""
    causes = (re.sub(r"^\W*(?:cause: |caused by: )?", "", line, flags=re.I) for line in found[0].splitlines())
    return ": ".join(filter(None, causes)).rpartition("connection broken by ")[2]


def choose(python: Path, uv: str, pip: Sequence[str]) -> Tool:
    """uv if one runs here, the given one first; else pip. Raises Refused."""
    for program in (uv, shutil.which("uv") or ""):
        if program and (name := _version(program)):
            return Uv(program, name, python)
    if not pip:
        raise Refused("There is neither uv nor pip to install packages with.")
    return Pip(pip)


def bootstrap(pip: Sequence[str], python: Path, directory: Path) -> Uv:
    """uv, installed by pip into a directory. Raises Refused; Failed where no index answers."""
    code, output = run([*pip, "install", *_QUIET, "--target", str(directory), "uv"], dict(os.environ), None)
    program = str(directory / "bin" / "uv")
    name = "" if code else _version(program)
    if code and no_answer(output):
        raise Failed(output)
    if not name:
        raise Refused(
            "A lock is installed by uv, which is not here and cannot be installed by pip: put it into the image, or "
            f"declare what the program needs in requirements.txt. {output.strip().splitlines()[-1:]}"
        )
    return Uv(program, name, python)


def run(command: Sequence[str], environment: Mapping[str, str], directory: Path | None) -> tuple[int, str]:
    """Run a command, whose output is passed on as it comes. Returns its status and output."""
    shown = " ".join(without_credentials(word) for word in command)
    print(f"$ {shown}", flush=True)
    process = subprocess.Popen(
        command,
        env=dict(environment),
        cwd=directory,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert process.stdout is not None
    output = ""
    for raw in process.stdout:
        line = without_credentials(raw.decode("utf-8", "replace"))
        output = (output + line)[-_KEPT_OUTPUT:]
        sys.stdout.write(line)
        sys.stdout.flush()
        if working := _WORKING.match(line):
            report(activity=f"{working[1].lower()} {working[2].partition(' @ file:')[0].strip()}")
    return process.wait(), output


def _version(program: str) -> str:
    """Its name and version; "" if it does not run."""
    try:
        done = subprocess.run([program, "--version"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    except OSError:  # of another machine, or of another C library
        return ""
    words = done.stdout.decode("utf-8", "replace").split()
    return " ".join(words[:2]) if not done.returncode and words[:1] == ["uv"] else ""
