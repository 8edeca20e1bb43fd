"""Run table of an open page, which reads again only what a change can have changed."""

from collections.abc import Collection, Sequence

from trainyard_protocol.states import JobState
from trainyard_server.context import Backend
from trainyard_server.domain.access.permissions import Visible, is_visible
from trainyard_server.services.views.job_search import JobSearchRequest, parsed
from trainyard_server.services.views.recent_jobs import RecentJobs
from trainyard_server.services.views.run_table import RunTable, RunTables
from trainyard_server.storage.db.queries import filters, value_filters
from trainyard_server.storage.db.queries.job_queries import JobList, JobListEntry, JobQuery, Order, ValueOrder
from trainyard_server.storage.events.notifier import JobChanges


class LiveTable:
    """A page of the matching jobs. One thread reads it at a time."""

    def __init__(
        self,
        backend: Backend,
        tables: RunTables,
        recent: RecentJobs,
        visible: Visible,
        question: JobSearchRequest,
        fields: Sequence[str],
    ) -> None:
        self._backend = backend
        self._tables = tables
        self._recent = recent
        self._visible = visible
        self._question = question
        self._fields = fields
        self._table: RunTable | None = None

    @property
    def table(self) -> RunTable:
        """The table as it was read last."""
        return self._table or self.read()

    def read(self) -> RunTable:
        """Search, and read what is found. Raises InvalidArgument."""
        self._table = self._tables.table(self._visible, self._question, self._fields, self._recent)
        return self._table

    def read_again(self, changes: JobChanges) -> RunTable | None:
        """The table after these changes; None if they are of no job that it shows or counts."""
        if self._table is None or changes.any_job:
            return self.read()
        shown = {job.key for job in self._table.listing.jobs}
        query, order, _ = parsed(self._question, self._backend.clock())
        moved = changes.states | changes.progress if _depends_on_progress(query, order) else changes.states
        if shown & moved:
            return self.read()
        entries = self._recent.entries(moved)
        if self._is_any_match(query, [entry for entry in entries if self._may_match(query, entry)]):
            return self.read()
        changed = shown & {*changes.keys, *(entry.study_key for entry in entries)}
        if not changed:
            return None
        self._table = self._tables.again(self._table, changed, self._recent)
        return self._table

    def _may_match(self, query: JobQuery, entry: JobListEntry) -> bool:
        """False if the job does not match, in any state, as far as its entry tells."""
        has_trials = query.trials or filters.finds_trials(query.filter)
        return (
            is_visible(entry.project, self._visible)
            and (entry.study_key is not None) is has_trials
            and query.project in ("", entry.project)
            and query.owner in ("", entry.owner)
            and query.text.lower() in entry.job_id.lower()
            and all(
                entry.labels.get(name) == value if value is not None else name in entry.labels
                for name, value in query.labels
            )
            and (query.created_after is None or entry.created_at >= query.created_after)
            and (query.created_before is None or entry.created_at <= query.created_before)
            and (query.attention_since is None or entry.attention != "" or entry.state is JobState.FAILED)
        )

    def _is_any_match(self, query: JobQuery, entries: Collection[JobListEntry]) -> bool:
        if not entries or query.filter is None:
            return bool(entries)
        with self._backend.store.read() as reader:
            return JobList(reader, self._visible).is_any_match(query, [entry.key for entry in entries])


def _depends_on_progress(query: JobQuery, order: Order | ValueOrder) -> bool:
    """Whether a job can match, or move to another place, while its state stays."""
    fields = [term.field for term in value_filters.terms(query.filter)]
    if isinstance(order, ValueOrder):
        fields.append(order.field)
    return query.attention_since is not None or any(field.startswith(value_filters.METRICS) for field in fields)
