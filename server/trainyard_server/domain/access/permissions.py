"""Permissions: roles, callers, and the projects that a caller sees. Pure. `route_access` has what each request needs.

Viewers, submitters and admins are people; each role includes the one before, in one project or in all. An operator is
an admin of all projects. Agents have a role of their own, and so has a monitoring system.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from trainyard_protocol.errors import InvalidArgument, PermissionDenied

SAFE_METHODS = frozenset({"GET", "HEAD"})
"""HTTP methods without side effects."""

ALL_PROJECTS = "*"
"""The name of all projects together, for a role that holds in each."""

NAME_RULE = "letters, digits, '_', '.', '@', '+' and '-', at most 128"
"""The characters of a caller's name."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@+-]{0,127}")

Visible = frozenset[str] | None
"""The projects that somebody may see; None for all."""


class Role(StrEnum):
    """A role of people in a project, or that of agents, or of a monitoring system."""

    VIEWER = "viewer"  # sees everything of the project, changes nothing
    SUBMITTER = "submitter"  # submits jobs, and changes its own
    ADMIN = "admin"  # changes all jobs of the project, and who may do what there
    AGENT = "agent"  # worker agents: /agent/v1 and nothing else
    METRICS = "metrics"  # a monitoring system: /metrics and nothing else

    def includes(self, role: "Role") -> bool:
        """Whether this role may do what `role` may."""
        if self not in PEOPLE or role not in PEOPLE:
            return self is role
        return PEOPLE.index(self) >= PEOPLE.index(role)


PEOPLE = (Role.VIEWER, Role.SUBMITTER, Role.ADMIN)
"""The roles of people; each includes those before it."""

_MACHINES = {Role.AGENT: "a worker agent", Role.METRICS: "a monitoring system"}


@dataclass(frozen=True, slots=True)
class Need:
    """The need of a request: a role in a project. A role of None is anybody who has signed in."""

    role: Role | None
    project: str = ALL_PROJECTS


@dataclass(frozen=True, slots=True)
class Caller:
    """The maker of a request. `name` is the owner of the jobs that it submits; `grants` are its roles by project.
    `is_run`: it is a run, with the token of its own."""

    name: str
    grants: Mapping[str, Role]
    is_run: bool = False

    @classmethod
    def everywhere(cls, role: Role, name: str) -> "Caller":
        """A caller with one role in all projects, or an agent."""
        return cls(name, {ALL_PROJECTS: role})

    @property
    def is_agent(self) -> bool:
        return self.grants.get(ALL_PROJECTS) is Role.AGENT

    @property
    def is_person(self) -> bool:
        """Whether it is neither an agent nor a monitoring system."""
        return not self.machine

    @property
    def machine(self) -> str:
        """The kind of program that calls, "" for a person."""
        role = self.grants.get(ALL_PROJECTS)
        return _MACHINES.get(role, "") if role is not None else ""

    @property
    def is_operator(self) -> bool:
        return self.may(Role.ADMIN, ALL_PROJECTS)

    @property
    def role(self) -> Role | None:
        """The role in all projects, else the highest one in any; None without one."""
        if everywhere := self.grants.get(ALL_PROJECTS):
            return everywhere
        return max(self.grants.values(), key=PEOPLE.index, default=None)

    @property
    def visible(self) -> Visible:
        """The projects whose jobs it may see."""
        return None if ALL_PROJECTS in self.grants else frozenset(self.grants)

    def sees(self, project: str) -> bool:
        return is_visible(project, self.visible)

    def check_sees(self, project: str) -> None:
        """Raises PermissionDenied, with the same text for a project that does not exist."""
        if not self.sees(project):
            raise PermissionDenied(
                f"You are {self.described_in(project)}, who has no role in the project {project} "
                "(or it does not exist)."
            )

    def role_in(self, project: str) -> Role | None:
        """Its role in the project, or in all projects if that is higher."""
        roles = [self.grants[key] for key in {project, ALL_PROJECTS} if key in self.grants]
        return max(roles, key=list(Role).index, default=None)

    def may(self, role: Role, project: str) -> bool:
        """Whether it has that role, or one that includes it, in the project."""
        own = self.role_in(project)
        return own is not None and own.includes(role)

    def may_anywhere(self, role: Role) -> bool:
        """Whether it has that role in any project."""
        return any(own.includes(role) for own in self.grants.values())

    def includes(self, other: "Caller") -> bool:
        """Whether it has every role that `other` has."""
        return all(self.may(role, project) for project, role in other.grants.items())

    def may_change(self, project: str, owner: str) -> bool:
        """Whether it may cancel, relabel and delete a job of that owner in the project."""
        return self.may(Role.ADMIN, project) or (self.may(Role.SUBMITTER, project) and self.name == owner)

    def meets(self, need: Need) -> bool:
        if need.role is None:
            return self.is_person
        if need.role is Role.METRICS and self.is_operator:
            return True
        return self.may(need.role, need.project)

    def described_in(self, project: str) -> str:
        """The caller with its role there, for people."""
        if everywhere := self.grants.get(ALL_PROJECTS):
            return f"the {everywhere}" if self.name == everywhere else f"{self.name} ({everywhere})"
        role = self.grants.get(project)
        return f"{self.name} ({role} of {project})" if role else self.name

    def __str__(self) -> str:
        return self.described_in(ALL_PROJECTS)


@dataclass(frozen=True, slots=True)
class Token:
    """A secret from a file of the operator, with a role in all projects. A caller may have several, such as an old one
    and its successor."""

    role: Role
    name: str
    secret: str = field(repr=False)

    @property
    def caller(self) -> Caller:
        return Caller.everywhere(self.role, self.name)

    @property
    def credential(self) -> str:
        """Identifies the token, its role and its name without revealing the secret."""
        text = f"{self.role}\n{self.name}\n{self.secret}"
        return f"file:{hashlib.sha256(text.encode()).hexdigest()[:32]}"


def is_visible(project: str, visible: Visible) -> bool:
    return visible is None or project in visible


def is_name(text: str) -> bool:
    """Whether the text is a valid name of a caller: see NAME_RULE."""
    return _NAME.fullmatch(text) is not None


def check_tokens(tokens: Iterable[Token]) -> None:
    """Raises InvalidArgument for an invalid name, and for a secret of two callers."""
    holders: dict[str, Token] = {}
    for token in tokens:
        if not is_name(token.name):
            raise InvalidArgument(f"{token.name!r} cannot be the name of a {token.role} token: {NAME_RULE}.")
        other = holders.setdefault(token.secret, token)
        if other is not token:
            raise InvalidArgument(f"{other.caller} and {token.caller} have the same token: each needs one of its own.")
