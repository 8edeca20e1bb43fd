"""Overview page of a study: its best trial, what runs now, and its events. study.js draws the charts and the table of
the trials from the API when `version` changes."""

import zlib
from collections.abc import Mapping
from typing import Any

from fastapi import Request

from trainyard_protocol.answers.jobs import JobDetail
from trainyard_protocol.answers.tuning import StudyCharts
from trainyard_protocol.states import FINAL_JOB_STATES
from trainyard_server.dashboard.pages.job_header import events_context, job_view
from trainyard_server.dashboard.views import View, dashboard_of
from trainyard_server.services.views.studies import by_importance
from trainyard_server.storage.events.notifier import PROGRESS_TOPIC
from trainyard_server.use_cases import UseCases

_SHOWN_LIVE = 20


def study_view(request: Request, cases: UseCases, project: str, job_id: str) -> View:
    job_cards = dashboard_of(request).job_cards
    final: list[StudyCharts] = []  # those of a study that has ended: reading 10,000 trials takes half a second

    def more(detail: JobDetail) -> Mapping[str, Any]:
        charts = final[0] if final else cases.studies.charts(project, job_id)
        if charts.state in FINAL_JOB_STATES and not final:
            final.append(charts)
        live = [trial for trial in charts.trials if trial.state not in FINAL_JOB_STATES]
        cards = [(card.template, card.context(cases, project, job_id, detail)) for card in job_cards if card.of_studies]
        return {
            "cards": [template for template, _ in cards],
            **{name: value for _, context in cards for name, value in context.items()},
            "best": next((trial for trial in charts.trials if trial.number == charts.best), None),
            "charts": charts,
            "commands": _commands(project, job_id),
            "ended": sum(count for state, count in charts.counts.items() if state in FINAL_JOB_STATES),
            "importances": by_importance(charts.parameters),
            "is_final": charts.state in FINAL_JOB_STATES,
            "live": live[:_SHOWN_LIVE],
            "live_count": sum(count for state, count in charts.counts.items() if state not in FINAL_JOB_STATES),
            "shape": cases.job_search.shape(project, job_id),
            "version": zlib.crc32(charts.model_dump_json().encode()),
            **events_context(detail),
        }

    return job_view(
        request,
        cases,
        project,
        job_id,
        tab="",
        template="job/study.html",
        more=more,
        topics=(lambda _key: PROGRESS_TOPIC,),  # that of its trials
        with_events=True,
    )


def _commands(project: str, job_id: str) -> Mapping[str, str]:
    """Commands for a terminal, by title."""
    jobs = "trainyard jobs"
    return {
        "Train with the best": f"{jobs} submit training --from-trial {job_id} --project {project}",
        "List the trials": f"{jobs} trials {job_id} --project {project}",
        "Stream its log": f"{jobs} stream-logs {job_id} --project {project}",
    }
