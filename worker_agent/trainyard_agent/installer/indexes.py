"""Places that packages come from: the settings of pip, which the site and the job make, as uv takes them."""

from __future__ import annotations

import configparser
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from .output import Refused, without_credentials


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


def of_pip(environment: Mapping[str, str]) -> Indexes:
    """The settings of pip in its files and variables, as `pip config list` shows them. Raises Refused, as pip does, for
    a file that is not of its form."""
    sections: dict[str, dict[str, str]] = {"global": {}, "install": {}}  # the second wins, whatever file it is in
    for path in _files(environment):
        parser = configparser.RawConfigParser()
        try:
            parser.read(path)
        except (configparser.Error, UnicodeDecodeError) as error:
            raise Refused(f"The settings of pip in {path} cannot be read: {error}.") from error
        for section in sections.keys() & set(parser.sections()):
            sections[section].update((_normal(name), value) for name, value in parser.items(section))
    variables = {_normal(name[4:]): value for name, value in environment.items() if name.startswith("PIP_")}
    return parse({**sections["global"], **sections["install"], **variables})


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


def _files(environment: Mapping[str, str]) -> Iterator[str]:
    """Pip's files, each of which wins over those before."""
    own = environment.get("PIP_CONFIG_FILE", "")
    if own == os.devnull:
        return
    directories = (environment.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(os.pathsep)
    yield from (f"{directory}/pip/pip.conf" for directory in directories)
    yield "/etc/pip.conf"
    if not Path(own or os.curdir).is_file():
        home = environment.get("HOME") or os.path.expanduser("~")  # noqa: PTH111 - no error where a user has none
        yield f"{home}/.pip/pip.conf"
        yield f"{environment.get('XDG_CONFIG_HOME') or f'{home}/.config'}/pip/pip.conf"
    yield from filter(None, [own])


def _normal(name: str) -> str:
    return name.lower().replace("_", "-").lstrip("-")


def _is_below(url: str, index: str) -> bool:
    index = without_credentials(index).rstrip("/")
    url = without_credentials(url)
    return url == index or url.startswith(f"{index}/")
