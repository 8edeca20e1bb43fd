"""Draft of a job: the text of a config, the values given beside it, and their problems with positions. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic.alias_generators import to_snake

from trainyard_protocol.answers.configs import Problem, Source
from trainyard_protocol.errors import MORE_VIOLATIONS, InvalidArgument, TrainyardError, Violation
from trainyard_protocol.job.config.text import (
    ConfigText,
    NotReadable,
    TextSpan,
    ValueLocation,
    position_of,
    violation_message,
)

_FIELDS: Mapping[Source, tuple[str, ...]] = {
    "job_id": ("jobId",),
    "args": ("trainingInput", "args"),
    "job_dir": ("trainingInput", "jobDir"),
    "labels": ("labels",),
    "packages": ("trainingInput", "packageUris"),
}
"""The fields of a job for the values given beside the text."""

_PATHS: Mapping[str, Source] = {
    "parent": "project",
    "job.job_id": "job_id",
    "args": "args",
    "job_dir": "job_dir",
    "job.labels": "labels",
    "labels": "labels",
    "package_uris": "packages",
}
"""The sources of values by the paths of violations."""


@dataclass(frozen=True, slots=True)
class ConfigDraft:
    """A config's text, and the values that were given beside it."""

    text: ConfigText
    beside: Mapping[Source, Any]

    def body(self) -> dict[str, Any]:
        """The body of a create request. Values beside the text replace those of the text, as flags do."""
        body = dict(self.text.data)
        training = _spelling(body, "trainingInput")
        if body.get(training) is None:
            body[training] = {}
        if isinstance(body[training], dict):
            body[training] = dict(body[training])
        for source, value in self.beside.items():
            *outside, name = _FIELDS[source]
            inner = body[training] if outside else body
            if isinstance(inner, dict):  # the validation reports what is not a mapping
                inner[_spelling(inner, name)] = value
        return body

    def replaced(self) -> Iterator[Problem]:
        """Warnings about fields of the text that a value beside it replaces."""
        for source in self.beside:
            path = _FIELDS[source]
            location: ValueLocation | None = self.text.root
            for step in path:
                location = location and (location.child(step) or location.child(to_snake(step)))
            if location is not None:
                message = f"{path[-1]}: what is given beside the config replaces this."
                yield _at(location.name, Problem(message=message, severity="warning", field=to_snake(path[-1])))

    def problems(self, error: TrainyardError) -> Iterator[Problem]:
        """The problems of a refused job, for the text and the values beside it, in the order of the text."""
        violations = error.violations or (Violation("", error.message),)
        for violation in sorted(violations, key=lambda violation: position_of(self.text.root, violation).start.line):
            source = self._source(violation)
            problem = Problem(message=violation_message(violation), field=violation.field, source=source)
            if source == "project":
                yield problem.model_copy(update={"message": violation.description})
            elif source != "config" or not (violation.field or violation.unknown):
                yield problem
            else:
                yield _at(position_of(self.text.root, violation), problem)
        if isinstance(error, InvalidArgument) and error.more:
            yield Problem(message=MORE_VIOLATIONS)

    def _source(self, violation: Violation) -> Source:
        for path, source in _PATHS.items():
            if violation.field == path or violation.field.startswith((f"{path}[", f"{path}.")):
                says_none = source == "job_id" and not self.text.root.child(_spelling(self.text.data, "jobId"))
                return source if source in self.beside or source == "project" or says_none else "config"
        return "config"


def unreadable(error: NotReadable) -> Problem:
    problem = Problem(message=f"The config {error.text}")
    return problem if error.span is None else _at(error.span, problem)


def _at(span: TextSpan, problem: Problem) -> Problem:
    return problem.model_copy(
        update={"line": span.start.line, "column": span.start.column, "end_column": span.end_column}
    )


def _spelling(mapping: Mapping[str, Any], name: str) -> str:
    """`name` (camelCase) in the spelling that the mapping uses."""
    snake = to_snake(name)
    return snake if snake in mapping and name not in mapping else name
