"""Places that packages come from: the settings of pip, which the site and the job make, as uv takes them."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .output import without_credentials


@dataclass
class Indexes:
    """`default`: the index, "" for that of uv and pip; `extra`: further ones; `links`: pages and directories with
    links to packages."""

    default: str = ""
    extra: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    none: bool = False
    trusted: list[str] = field(default_factory=list)
    constraints: list[str] = field(default_factory=list)
    pre: bool = False
    certificates: str = ""
    timeout: str = ""
    proxy: str = ""

    def copy(self) -> Indexes:
        lists = {name: list(getattr(self, name)) for name in ("extra", "links", "trusted", "constraints")}
        return Indexes(**{**self.__dict__, **lists})

    def without(self, url: str, default: str) -> tuple[str, Indexes] | None:
        """The index that this URL is of, and the others; None if it is of none, or nothing else is left. `default`:
        that of uv."""
        every = [self.default or default, *self.extra]
        gone = next((index for index in every if _is_below(url, index)), None)
        rest = [index for index in every if index != gone]
        if gone is None or not (rest or self.links):
            return None
        others = self.copy()
        others.default, others.extra, others.none = (rest or [""])[0], rest[1:], not rest
        return without_credentials(gone), others

    def variables(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """The variables of uv that say the same. What the site has set for uv itself stays."""
        lists = {
            "UV_INDEX": " ".join([*self.extra, inherited.get("UV_INDEX", "")]).strip(),
            "UV_FIND_LINKS": ",".join(filter(None, [*self.links, inherited.get("UV_FIND_LINKS", "")])),
            "UV_INSECURE_HOST": " ".join([*self.trusted, inherited.get("UV_INSECURE_HOST", "")]).strip(),
            "UV_CONSTRAINT": " ".join([*self.constraints, inherited.get("UV_CONSTRAINT", "")]).strip(),
        }
        single = {
            "UV_DEFAULT_INDEX": self.default,
            "SSL_CERT_FILE": self.certificates,
            "UV_HTTP_TIMEOUT": self.timeout,
            "ALL_PROXY": self.proxy,
            "UV_PRERELEASE": "allow" if self.pre else "",
        }
        single = {name: value for name, value in single.items() if value and not inherited.get(name)}
        return {**{name: value for name, value in lists.items() if value}, **single}

    def shown(self) -> str:
        """The places where packages are looked for, for the log."""
        if self.none:
            return ", ".join(map(without_credentials, self.links)) or "no index"
        return ", ".join(map(without_credentials, [self.default or "PyPI", *self.extra, *self.links]))


def of_pip(pip: Sequence[str], environment: Mapping[str, str]) -> Indexes:
    """The settings of that pip: its variables and files. Those of its variables alone where it cannot say."""
    return parse(_listed(pip, environment))


def parse(settings: Mapping[str, str]) -> Indexes:
    """The same out of its settings by name."""

    def words(name: str) -> list[str]:
        return settings.get(name, "").split()

    def is_on(name: str) -> bool:
        return settings.get(name, "").lower() in ("1", "true", "yes", "on", "y", "t")

    return Indexes(
        default=settings.get("index-url", ""),
        extra=words("extra-index-url"),
        links=words("find-links"),
        none=is_on("no-index"),
        trusted=words("trusted-host"),
        constraints=words("constraint"),
        pre=is_on("pre"),
        certificates=settings.get("cert", ""),
        timeout=settings.get("timeout", "") or settings.get("default-timeout", ""),
        proxy=settings.get("proxy", ""),
    )


def parse_listed(text: str) -> dict[str, str]:
    """The settings by name out of the lines of `pip config list`. A variable wins over a section's file, and `install`
    over `global`."""
    found: dict[str, tuple[int, str]] = {}
    for line in text.splitlines():
        key, _, value = line.partition("=")
        section, _, name = key.rpartition(".")
        rank = {"global": 1, "install": 2, ":env:": 3}.get(section, 0)
        if rank and rank >= found.get(name, (0, ""))[0]:
            try:
                found[name] = (rank, str(ast.literal_eval(value)))
            except (ValueError, SyntaxError):
                continue
    return {name: value for name, (_, value) in found.items()}


def _listed(pip: Sequence[str], environment: Mapping[str, str]) -> Mapping[str, str]:
    # The agent's may be for other Pythons than this one.
    for program in filter(None, (list(pip), [sys.executable, "-m", "pip"])):
        command = [*program, "config", "list", "--disable-pip-version-check"]
        done = subprocess.run(
            command, env=dict(environment), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False
        )
        if not done.returncode:
            return parse_listed(done.stdout.decode("utf-8", "replace"))
    return {
        name[len("PIP_") :].lower().replace("_", "-"): value
        for name, value in environment.items()
        if name.startswith("PIP_")
    }


def _is_below(url: str, index: str) -> bool:
    index = without_credentials(index).rstrip("/")
    url = without_credentials(url)
    return url == index or url.startswith(f"{index}/")
