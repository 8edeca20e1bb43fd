"""Origin of a job: the commit, the changes and the versions that it was submitted from, as its client recorded them.

`PUT /trainyard/v1/projects/P/jobs/J/origin` stores a `JobOrigin` once, `GET` answers it with the diff and with what the
last run has resolved.
"""

import re
from typing import Annotated

from pydantic import AfterValidator, Field

from trainyard_protocol.fields import validation_error
from trainyard_protocol.message import Many, Wire
from trainyard_protocol.wire.observations import ResolvedRun

MAX_DIFF = 2**20
"""Characters of a diff."""

MAX_FILES = 1000
"""Names of changed files, and of untracked ones."""

MAX_PACKAGES = 100

MAX_BODY = 8 * 2**20
"""Bytes of an origin as JSON, which may escape each character of the diff."""

_SHORT = 7  # characters of a commit for people


def _matching(pattern: str, rule: str) -> AfterValidator:
    def check(value: str) -> str:
        if not re.fullmatch(pattern, value, re.S):
            raise validation_error(rule)
        return value

    return AfterValidator(check)


_WITHOUT_NUL = _matching(r"[^\0]*", "must not hold a NUL character.")
_IS_COMMIT = _matching(
    "(?:[0-9a-f]{40}|[0-9a-f]{64})?", 'must be the 40 or 64 hexadecimal digits of a commit, or "" without one.'
)
_IS_SHA256 = _matching("[0-9a-f]{64}", "must be the 64 hexadecimal digits of a SHA-256.")
_Word = Annotated[str, Field(max_length=256), _WITHOUT_NUL]
_Text = Annotated[str, Field(max_length=4096), _WITHOUT_NUL]
_Commit = Annotated[str, Field(max_length=64), _IS_COMMIT]
_Sha256 = Annotated[str, Field(max_length=64), _IS_SHA256]
_Diff = Annotated[str, Field(max_length=MAX_DIFF), _WITHOUT_NUL]
_Files = Annotated[Many[_Text], Field(max_length=MAX_FILES)]


class GitOrigin(Wire):
    """The commit of a working tree, and how the tree differed from it.

    `commit` is "" before the first one, `branch` "" for a detached HEAD. `remote` is a URL without credentials, or "".
    `dirty`: tracked files were changed. `changed` and `untracked` are names below the top directory, of which
    `more_files` were left out. `diff` is that of `git diff HEAD`; `diff_note` says why it is not whole, or missing.
    """

    commit: _Commit = ""
    branch: _Word = ""
    remote: _Text = ""
    dirty: bool = False
    changed: _Files = ()
    untracked: _Files = ()
    more_files: Annotated[int, Field(ge=0, le=10**9)] = 0
    diff: _Diff = Field(default="", repr=False)
    diff_note: _Word = ""


class JobOrigin(Wire):
    """The origin of a job. `git` is None where the program was in no repository. `packages` are SHA-256 by package URI,
    as far as its client knew them. `client` and `python` are the versions of what submitted it. `rerun_of` is the job
    whose config it repeats, and whose `git` it has then, unless its program was packaged anew."""

    git: GitOrigin | None = None
    packages: Annotated[dict[_Text, _Sha256], Field(max_length=MAX_PACKAGES)] = Field(default_factory=dict)
    client: _Word = ""
    python: _Word = ""
    rerun_of: _Word = ""

    def summary(self) -> "OriginSummary":
        git = self.git or GitOrigin()
        return OriginSummary(
            commit=git.commit,
            branch=git.branch,
            has_git=self.git is not None,
            dirty=git.dirty,
            changed=len(git.changed),
            untracked=len(git.untracked),
            has_more=bool(git.more_files),
            has_diff=bool(git.diff),
            rerun_of=self.rerun_of,
        )


class OriginView(JobOrigin):
    """An origin as it is read: with what the job's last run resolved, as its agent reported it, and the number of that
    run; None and 0 where nothing is known."""

    resolved: ResolvedRun | None = None
    run: int = 0


class OriginSummary(Wire):
    """The origin of a job in short. `changed` and `untracked` are numbers of files; `has_more`: at least so many."""

    commit: str = ""
    branch: str = ""
    has_git: bool = False
    dirty: bool = False
    changed: int = 0
    untracked: int = 0
    has_more: bool = False
    has_diff: bool = False
    rerun_of: str = ""

    @property
    def text(self) -> str:
        """The commit and its changes for people: `3f2a1c9 (main, dirty, 3 files)`; "" without a repository."""
        if not self.has_git:
            return ""
        some = " or more" if self.has_more else ""
        details = [self.branch or "detached HEAD"]
        if self.dirty:
            details += ["dirty", f"{self.changed}{some} file{'' if self.changed == 1 else 's'}"]
        if self.untracked:
            details.append(f"{self.untracked}{some} untracked")
        return f"{self.commit[:_SHORT] or 'no commit'} ({', '.join(details)})"
