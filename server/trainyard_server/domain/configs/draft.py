"""A job before it is sent: a config's text with what was given beside it, and what is wrong, where. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic.alias_generators import to_snake

from trainyard_protocol.config_text import ConfigText, NotReadable, Place, Span, place_of, sentence
from trainyard_protocol.config_views import Problem, Source
from trainyard_protocol.errors import TrainyardError, Violation

_FIELDS: Mapping[Source, tuple[str, ...]] = {
    "job_id": ("jobId",),
    "args": ("trainingInput", "args"),
    "job_dir": ("trainingInput", "jobDir"),
    "labels": ("labels",),
    "packages": ("trainingInput", "packageUris"),
}
"""Where a job holds what is given beside the text."""

_PATHS: Mapping[str, Source] = {
    "parent": "project",
    "job.job_id": "job_id",
    "args": "args",
    "job_dir": "job_dir",
    "job.labels": "labels",
    "labels": "labels",
    "package_uris": "packages",
}
"""The same as violations call it."""


@dataclass(frozen=True, slots=True)
class Draft:
    """`beside` has only what was given."""

    text: ConfigText
    beside: Mapping[Source, Any]

    def body(self) -> dict[str, Any]:
        """Of a create request. What was given beside the text replaces what the text says, as flags do."""
        body = dict(self.text.data)
        training = _spelling(body, "trainingInput")
        if body.get(training) is None:
            body[training] = {}
        if isinstance(body[training], dict):
            body[training] = dict(body[training])
        for source, value in self.beside.items():
            *outside, name = _FIELDS[source]
            inner = body[training] if outside else body
            if isinstance(inner, dict):  # what is no mapping is left to the validation, which names it
                inner[_spelling(inner, name)] = value
        return body

    def replaced(self) -> Iterator[Problem]:
        """Warnings: what the text says in vain."""
        for source in self.beside:
            path = _FIELDS[source]
            place: Place | None = self.text.root
            for step in path:
                place = place and (place.child(step) or place.child(to_snake(step)))
            if place is not None:
                said = f"{path[-1]}: what is given beside the config replaces this."
                yield _at(place.name, Problem(message=said, severity="warning", field=to_snake(path[-1])))

    def problems(self, error: TrainyardError) -> Iterator[Problem]:
        """What a refusal means for the text and for what was given beside it, in the order of the text."""
        violations = error.violations or (Violation("", error.message),)
        for violation in sorted(violations, key=self._line):
            source = self._source(violation)
            said = Problem(message=sentence(violation), field=violation.field, source=source)
            if source == "project":
                yield said.model_copy(update={"message": violation.description})
            elif source != "config" or not (violation.field or violation.unknown):
                yield said
            else:
                yield _at(place_of(self.text.root, violation), said)

    def _source(self, violation: Violation) -> Source:
        for path, source in _PATHS.items():
            if violation.field == path or violation.field.startswith((f"{path}[", f"{path}.")):
                says_none = source == "job_id" and not self.text.root.child(
                    _spelling(self.text.data, "jobId")
                )
                return source if source in self.beside or source == "project" or says_none else "config"
        return "config"

    def _line(self, violation: Violation) -> int:
        return place_of(self.text.root, violation).start.line


def unreadable(error: NotReadable) -> Problem:
    said = Problem(message=f"The config {error.text}")
    return said if error.span is None else _at(error.span, said)


def _at(span: Span, problem: Problem) -> Problem:
    return problem.model_copy(
        update={"line": span.start.line, "column": span.start.column, "end_column": span.end_column}
    )


def _spelling(mapping: Mapping[str, Any], name: str) -> str:
    """`name` (camelCase) as the mapping has it already, in snake_case or not."""
    snake = to_snake(name)
    return snake if snake in mapping and name not in mapping else name
