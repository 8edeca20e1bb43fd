"""Page of a comparison: differences of jobs, their curves, and their parameters. comparison.js draws the charts from
the API, again when `version` changes."""

import zlib
from collections.abc import Mapping
from itertools import groupby
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import Query, Request

from trainyard_protocol.answers.comparison import ComparedJob, ComparisonView
from trainyard_server.api.dependencies import Cases, caller_of
from trainyard_server.api.routing import Router
from trainyard_server.capabilities.experiments.comparison_fields import PARAMETERS
from trainyard_server.capabilities.experiments.comparisons import FEWEST_JOBS, Comparisons, job_names
from trainyard_server.dashboard.views import View, add_page
from trainyard_server.domain.access.route_access import Access
from trainyard_server.services.views.studies import by_importance
from trainyard_server.storage.events.notifier import job_topic

router = Router()

COLUMNS = 8
"""Jobs that are columns of the table; more are its rows."""

MOST_COLUMNS = 60
"""Columns of a table whose rows are jobs."""

_BEST_PARAMETERS = 4
_EVERY_S = 10.0


def compare_view(
    request: Request, cases: Cases, job: Annotated[tuple[str, ...], Query()] = (), metric: str = ""
) -> View:
    names = job_names(caller_of(request), job)

    def read() -> Mapping[str, Any]:
        view = cases.of(Comparisons).view(names, metric)
        existing = [f"{compared.project}/{compared.job_id}" for compared in view.jobs]
        as_columns = len(view.jobs) <= COLUMNS
        shown = view.differing if as_columns else view.differing[:MOST_COLUMNS]
        best = None if view.best is None else view.jobs[view.best]
        return {
            "addresses": {name: _without(existing, name) for name in existing},
            "as_columns": as_columns,
            "best": best,
            "best_parameters": [] if best is None else _most_important(view, best),
            "best_value": None if best is None else best.metrics[view.metric].best,
            "importances": by_importance(view.axes),
            "left_out": view.left_out + len(view.differing) - len(shown),
            "names": existing,
            "now": cases.backend.clock(),
            "sections": [(title, list(rows)) for title, rows in groupby(shown, lambda row: row.section)],
            "several_projects": len({compared.project for compared in view.jobs}) > 1,
            "version": zlib.crc32(view.model_dump_json(include={"jobs", "axes", "metric", "best"}).encode()),
            "view": view,
        }

    topics = tuple(job_topic(key) for key in cases.of(Comparisons).keys(names))
    return View("experiments/compare.html", read, topics, every_s=_EVERY_S)


def _most_important(view: ComparisonView, job: ComparedJob) -> list[tuple[str, str]]:
    """The parameters of a job in which the jobs differ, the most important first."""
    differing = [row.name for row in view.differing if row.section == PARAMETERS]
    names = [axis.name for axis in (*by_importance(view.axes), *view.axes)] or differing
    given = [(name, job.parameters[name]) for name in dict.fromkeys(names) if name in job.parameters]
    return given[:_BEST_PARAMETERS]


def _without(names: list[str], name: str) -> str:
    """The address of the comparison without one of its jobs; "" where too few would remain."""
    remaining = [("job", other) for other in names if other != name]
    return f"/compare?{urlencode(remaining)}" if len(remaining) >= FEWEST_JOBS else ""


add_page(router, "/compare", Access.PERSON, "jobs beside each other, with their curves", compare_view)
