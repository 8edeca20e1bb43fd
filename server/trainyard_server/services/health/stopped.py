"""The finding of `trainyard doctor` about the database of a server that does not run, by a process of its own."""

import os
from contextlib import closing

from trainyard_protocol.answers.health import Finding
from trainyard_protocol.errors import FailedPrecondition
from trainyard_protocol.fields import sized
from trainyard_server.config.settings import Settings
from trainyard_server.storage.db.base import engine
from trainyard_server.storage.db.base.engine import SQLITE_FILE, UnusableUrl
from trainyard_server.storage.db.base.probes import DatabaseFacts, DatabaseProbe, Unwritable
from trainyard_server.storage.failures import RESTORE_DATABASE, DatabaseError, failure_detail, failure_of

_MEANING = "The server does not start on it, or accepts no jobs."
_ANEW = "The next start makes an empty one, which knows none of the jobs."
_AGAIN = "Then: trainyard up."


def database_finding(settings: Settings) -> Finding:
    """The state of the database, without a change of it; may take seconds."""
    file = settings.data_dir / SQLITE_FILE
    where = "the database" if settings.database else str(file)
    if not settings.database and not os.path.lexists(file):
        return _without(settings)
    try:
        url = engine.examined(settings.database or engine.sqlite_url(settings.data_dir))
        with closing(DatabaseProbe(url)) as probe:
            return of_database(probe.facts())
    except (FailedPrecondition, UnusableUrl) as error:
        return _problem(f"{where} cannot be used: {error}")
    except Unwritable as error:
        return _problem(f"{where} answers, but {error}.", f"Make it writable. {_AGAIN}")
    except DatabaseError as error:
        failure = failure_of(error)
        if failure is None:
            raise
        return _problem(f"{where}: {failure.reason} ({failure_detail(error)}).", failure.remedy_of_stopped(_AGAIN))


def of_database(facts: DatabaseFacts) -> Finding:
    """The finding about a database that answers."""
    if facts.damage:
        found = f"SQLite finds its file damaged: {'; '.join(facts.damage)}."
        meaning = "The data in the damaged part is lost; some jobs may be unreadable."
        return _problem(found, RESTORE_DATABASE, meaning)
    what = f"{facts.kind}, {sized(facts.size_bytes)}, answers in {facts.latency_s * 1000:.1f} ms"
    whole = ", whole" if facts.kind == "SQLite" else ""
    return Finding(check="database", status="ok", found=f"{what}{whole}, schema {facts.schema}.")


def _without(settings: Settings) -> Finding:
    """The finding where there is no file of SQLite."""
    logs = settings.data_dir / "logs"
    if not logs.is_dir() or not any(logs.iterdir()):
        return Finding(check="database", status="ok", found="There is no database yet.")
    found = f"{settings.data_dir / SQLITE_FILE} is gone, and logs of its jobs are there."
    return _problem(found, "Put it back, or restore a backup.", _ANEW)


def _problem(found: str, advice: str = "", meaning: str = _MEANING) -> Finding:
    sentence = f"{found[:1].upper()}{found[1:]}"
    return Finding(check="database", status="problem", found=sentence, meaning=meaning, advice=advice)
