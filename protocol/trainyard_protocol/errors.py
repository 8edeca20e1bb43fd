"""The error hierarchy of all user-visible errors.

TrainyardError
├── InvalidArgument      400 INVALID_ARGUMENT     never valid; has a violation for each invalid field
├── FailedPrecondition   400 FAILED_PRECONDITION  not possible in the current state
├── Unauthenticated      401 UNAUTHENTICATED      no token, or an unknown one
├── PermissionDenied     403 PERMISSION_DENIED    the role of the token does not allow it
├── NotFound             404 NOT_FOUND
├── AlreadyExists        409 ALREADY_EXISTS
├── Aborted              409 ABORTED              concurrent update (a stale etag): read again, then retry
├── TooLarge             413 INVALID_ARGUMENT
├── ResourceExhausted    429 RESOURCE_EXHAUSTED   exceeds a quota; retrying does not help
│   └── TooManyRequests                           has a Retry-After header: nothing was done, try again then
├── Internal             500 INTERNAL             a bug in Trainyard
├── Unimplemented        501 UNIMPLEMENTED        of another service's API, and not built here
└── Unavailable          503 UNAVAILABLE          transient: try again later; also: the server does not answer

`trainyard_server.api.errors` translates it to HTTP, `trainyard_cli.main` to exit codes. The envelope
is Google's (AIP-193), as clients of the v1 API parse it.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

_UNKNOWN = re.compile(r'Invalid JSON payload received\. Unknown name "(.*?)".*?: Cannot find field\. ?(.*)', re.S)
MAX_VIOLATIONS = 20
"""Violations of one error. Beyond that, a job is not mistyped but something else."""

MORE_VIOLATIONS = f"There are more; these are the first {MAX_VIOLATIONS}."
_MAX_NAME = 100
_MAX_DESCRIPTION = 2000
_BAD_REQUEST = "type.googleapis.com/google.rpc.BadRequest"


@dataclass(frozen=True, slots=True)
class Violation:
    """An invalid field.

    `field` is the proto path in the v1 API (`worker_count`, `master_config.image_uri`, `job.job_id`, `args[2]`);
    `description` has the reason and what is allowed. `unknown` is the name of an unknown field; `field` is then the
    message that contains it.
    """

    field: str
    description: str
    unknown: str | None = None

    @property
    def shown_name(self) -> str:
        """The unknown name, cut, its unprintable characters as escapes."""
        return shown(self.unknown or "")

    @property
    def message(self) -> str:
        if self.unknown is not None:
            at = f" at '{self.field}'" if self.field else ""
            hint = f" {self.description}" if self.description else ""
            return f'Invalid JSON payload received. Unknown name "{self.shown_name}"{at}: Cannot find field.{hint}'
        return f"Field: {self.field} Error: {self.description}" if self.field else self.description


def shown(text: str, most: int = _MAX_NAME) -> str:
    """A text of a user for a message: at most so many characters, unprintable ones as escapes."""
    cut = text if len(text) <= most else f"{text[:most]}..."
    return cut if cut.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in cut)


def nearest(word: str, names: Iterable[str]) -> str:
    """The name that a user probably meant; "" without a close one."""
    import difflib  # for a message alone: no command loads it at its start

    return next(iter(difflib.get_close_matches(word, list(names), n=1)), "")


def quoted(value: object) -> str:
    """A value of a user for a message, as Python writes it, cut."""
    text = repr(value)
    return text if len(text) <= _MAX_NAME else f"{text[:_MAX_NAME]}..."


class TrainyardError(Exception):
    """The base class. `http_status` and `status` are those of the envelope; `message` is for users."""

    http_status: ClassVar[int] = 500
    status: ClassVar[str] = "INTERNAL"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    @property
    def violations(self) -> tuple[Violation, ...]:
        return ()


class InvalidArgument(TrainyardError):
    """Has all violations, so that a config can be corrected at once: the first MAX_VIOLATIONS, each cut at a length, so
    that no answer is much larger than its request. `more`: there were others."""

    http_status = 400
    status = "INVALID_ARGUMENT"

    def __init__(self, violations: Sequence[Violation] | Violation | str) -> None:
        if isinstance(violations, str):
            violations = Violation("", violations)
        if isinstance(violations, Violation):
            violations = (violations,)
        kept = tuple(map(_cut, violations[:MAX_VIOLATIONS]))
        self.more = len(violations) > len(kept)
        rest = [MORE_VIOLATIONS] if self.more else []
        super().__init__("\n".join([*(violation.message for violation in kept), *rest]))
        self._violations = kept

    @property
    def violations(self) -> tuple[Violation, ...]:
        return self._violations


def _cut(violation: Violation) -> Violation:
    text = violation.description
    is_short = len(text) <= _MAX_DESCRIPTION and len(violation.field) <= _MAX_DESCRIPTION
    if is_short or not violation.field:  # without a field it is a text of our own
        return violation
    return replace(
        violation,
        field=violation.field[:_MAX_DESCRIPTION],
        description=text if len(text) <= _MAX_DESCRIPTION else f"{text[:_MAX_DESCRIPTION]}...",
    )


class FailedPrecondition(InvalidArgument):
    status = "FAILED_PRECONDITION"


class Unauthenticated(TrainyardError):
    http_status = 401
    status = "UNAUTHENTICATED"


class PermissionDenied(TrainyardError):
    http_status = 403
    status = "PERMISSION_DENIED"


class NotFound(TrainyardError):
    http_status = 404
    status = "NOT_FOUND"


class AlreadyExists(InvalidArgument):
    http_status = 409
    status = "ALREADY_EXISTS"


class Aborted(TrainyardError):
    http_status = 409
    status = "ABORTED"


class TooLarge(InvalidArgument):
    http_status = 413


class ResourceExhausted(TrainyardError):
    http_status = 429
    status = "RESOURCE_EXHAUSTED"


class TooManyRequests(ResourceExhausted):
    """The caller may try again after `retry_after_s` seconds."""

    def __init__(self, message: str, retry_after_s: int) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Unimplemented(TrainyardError):
    http_status = 501
    status = "UNIMPLEMENTED"


class Internal(TrainyardError):
    pass


class Unavailable(TrainyardError):
    http_status = 503
    status = "UNAVAILABLE"


def to_body(error: TrainyardError) -> dict[str, Any]:
    """The envelope: `{"error": {"code", "message", "status", "details"?}}`."""
    body: dict[str, Any] = {"code": error.http_status, "message": error.message, "status": error.status}
    fields = [
        {"field": v.field, "description": v.description if v.unknown is None else v.message}
        for v in error.violations
        if v.field or v.unknown
    ]
    if fields:
        body["details"] = [{"@type": _BAD_REQUEST, "fieldViolations": fields}]
    return {"error": body}


def from_body(http_status: int, body: object) -> TrainyardError:
    """Parse the error from the envelope of a response; without an envelope, by the HTTP status."""
    error = body.get("error") if isinstance(body, Mapping) else None
    if not isinstance(error, Mapping):
        return _by_http_status(http_status)(f"The server answered {http_status} without an error message.")
    message = str(error.get("message", f"The server answered {http_status}."))
    kind = _KINDS.get((http_status, str(error.get("status")))) or _by_http_status(http_status)
    if not issubclass(kind, InvalidArgument):
        return kind(message)
    violations = [
        _violation(str(f.get("field", "")), str(f.get("description", "")))
        for detail in error.get("details", ())
        if detail.get("@type") == _BAD_REQUEST
        for f in detail.get("fieldViolations", ())
    ]
    refusal = kind(violations or message)
    refusal.more = refusal.more or message.endswith(MORE_VIOLATIONS)
    return refusal


def _violation(field: str, description: str) -> Violation:
    unknown = _UNKNOWN.match(description)
    return Violation(field, unknown[2], unknown[1]) if unknown else Violation(field, description)


_KINDS: dict[tuple[int, str], type[TrainyardError]] = {
    (kind.http_status, kind.status): kind
    for kind in (
        InvalidArgument,
        FailedPrecondition,
        Unauthenticated,
        PermissionDenied,
        NotFound,
        AlreadyExists,
        Aborted,
        TooLarge,
        ResourceExhausted,
        Internal,
        Unavailable,
    )
}


STATUSES: Sequence[str] = sorted({status for _, status in _KINDS} | {"UNIMPLEMENTED"})
"""All values of `status` in the envelope."""


def _by_http_status(http_status: int) -> type[TrainyardError]:
    if http_status in (429, 502, 503, 504):
        return Unavailable
    matches = (kind for (code, _), kind in _KINDS.items() if code == http_status)
    return next(matches, Internal)
