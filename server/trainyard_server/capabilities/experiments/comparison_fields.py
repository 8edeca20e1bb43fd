"""Fields of jobs that are compared, and which of them differ. Pure.

A package is its content: the hash in its address, whatever the place it was uploaded to.
"""

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trainyard_protocol.answers.comparison import ComparedField
from trainyard_protocol.answers.origin import OriginSummary
from trainyard_protocol.lines.progress import lower_is_better
from trainyard_protocol.wire.observations import ResolvedRun
from trainyard_server.domain.metrics.summary import MetricSummary, ordered

PARAMETERS, RESULTS, CONFIG, ORIGIN, ENVIRONMENT = "parameters", "results", "config", "origin", "environment"

MOST_RESULTS = 8
"""Metrics among the results, the most important."""

MOST_FIELDS = 300
"""Limit of the fields that differ, and of the equal ones."""

_SHOWN = 300  # characters of a value
_HASHED = re.compile(r"(?:staging://|gs://.+/)([0-9a-f]{64})/([^/]+)")
_APART = ("args", "env", "hyperparameters", "packageUris")

Fields = Mapping[tuple[str, str], str]
"""Values by section and name."""


def fields_of(
    training_input: Mapping[str, Any],
    labels: Mapping[str, str],
    origin: OriginSummary | None,
    resolved: ResolvedRun | None,
) -> Fields:
    """The fields of a job besides its parameters."""
    given = {name: value for name, value in training_input.items() if name not in _APART}
    fields = {(CONFIG, name): text for name, text in _leaves(given)}
    fields |= {(CONFIG, f"label {name}"): value for name, value in labels.items()}
    for number, uri in enumerate(training_input.get("packageUris", ()), 1):
        match = _HASHED.fullmatch(uri)
        fields[CONFIG, f"package {number}"] = f"{match[2]} (SHA-256 {match[1][:12]})" if match else uri
    if origin is not None and origin.has_git:
        fields[ORIGIN, "commit"] = origin.commit[:12] or "no commit"
        fields[ORIGIN, "branch"] = origin.branch or "detached HEAD"
        fields[ORIGIN, "uncommitted changes"] = _changes(origin)
    fields |= {(ENVIRONMENT, f"variable {name}"): value for name, value in training_input.get("env", {}).items()}
    if resolved is not None:
        fields |= {(ENVIRONMENT, f"image {name}"): digest for name, digest in resolved.images.items()}
        versions = (line.partition("==") for line in resolved.requirements.splitlines())
        fields |= {(ENVIRONMENT, name): version for name, _, version in versions}
    return {key: _printable(text) for key, text in fields.items()}


def compared(
    parameters: Sequence[Mapping[str, str]], fields: Sequence[Fields], metrics: Sequence[Mapping[str, MetricSummary]]
) -> tuple[list[ComparedField], list[ComparedField]]:
    """The fields in which jobs differ, with all results; and the equal ones."""
    differing: list[ComparedField] = []
    equal: list[ComparedField] = []
    names = dict.fromkeys(name for job in parameters for name in job)
    rows = [ComparedField(section=PARAMETERS, name=name, values=_row(parameters, name)) for name in names]
    keys = sorted(dict.fromkeys(key for job in fields for key in job), key=lambda key: _ORDER[key[0]])
    rows += [ComparedField(section=key[0], name=key[1], values=tuple(job.get(key) for job in fields)) for key in keys]
    for row in rows:
        (differing if len(set(row.values)) > 1 else equal).append(row)
    place = sum(row.section == PARAMETERS for row in differing)
    differing[place:place] = results(metrics)
    return differing, equal


def results(metrics: Sequence[Mapping[str, MetricSummary]]) -> Iterator[ComparedField]:
    """The last value and the best one of the most important metrics, with the places of the best."""
    for name in ordered(dict.fromkeys(name for job in metrics for name in job))[:MOST_RESULTS]:
        summaries = [job.get(name) for job in metrics]
        last = [summary and summary.last for summary in summaries]
        best = [summary and summary.best(name) for summary in summaries]
        lower = lower_is_better(name)
        yield _result(f"{name}, last", last, lower)
        if lower is not None and best != last:
            yield _result(f"{name}, best", best, lower)


def best_places(values: Sequence[float | None], *, lower: bool | None) -> tuple[int, ...]:
    """The places of the best value; none where nothing says what is better, or where all have the same."""
    finite = {value for value in values if value is not None}
    if lower is None or len(finite) < 2:
        return ()
    best = min(finite) if lower else max(finite)
    return tuple(place for place, value in enumerate(values) if value == best)


_ORDER = {section: place for place, section in enumerate((CONFIG, ORIGIN, ENVIRONMENT))}


def _result(name: str, values: Sequence[float | None], lower: bool | None) -> ComparedField:
    return ComparedField(section=RESULTS, name=name, values=tuple(values), best=best_places(values, lower=lower))


def _row(jobs: Sequence[Mapping[str, str]], name: str) -> tuple[str | None, ...]:
    return tuple(None if (value := job.get(name)) is None else _printable(value) for job in jobs)


def _leaves(value: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
    """The leaves of a training input by their paths, as texts."""
    for name, inner in value.items():
        where = f"{path}{name}"
        if isinstance(inner, Mapping):
            yield from _leaves(inner, f"{where}.")
        elif isinstance(inner, list) and all(isinstance(word, str) for word in inner):
            yield where, shlex.join(inner)
        elif isinstance(inner, list):
            yield from _leaves({f"{where}[{index}]": item for index, item in enumerate(inner)})
        else:
            yield where, inner if isinstance(inner, str) else json.dumps(inner, ensure_ascii=False)


def _changes(origin: OriginSummary) -> str:
    if not (origin.dirty or origin.untracked):
        return "none"
    files = f"{origin.changed} changed, {origin.untracked} untracked"
    return f"{files} or more" if origin.has_more else files


def _printable(text: str) -> str:
    shown = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text[: _SHOWN + 1])
    return shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}…"
