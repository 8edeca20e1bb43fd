"""Views of experiments: saved views of the table of jobs, and notes."""

from datetime import datetime

from trainyard_protocol.message import Wire


class SavedView(Wire):
    """An address of the table of jobs that a project has given a name: `query` is its query."""

    project: str
    name: str
    query: str
    saved_by: str
    saved_at: datetime


class SavedViewList(Wire):
    views: tuple[SavedView, ...]


class SavedViewRequest(Wire):
    query: str


class NoteRequest(Wire):
    """A note of people about a job; "" removes it."""

    note: str


class JobNote(Wire):
    note: str
