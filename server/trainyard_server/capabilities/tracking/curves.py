"""Points that programs log through MLflow, as a source of a job's curves."""

from trainyard_server.capabilities.tracking import store
from trainyard_server.services.measurements.curves import Logged
from trainyard_server.storage.db.queries.reader import Reader
from trainyard_server.storage.job_files.event_files import Scalar

_ROWS = 1000


class LoggedCurves:
    """The source: see `services.measurements.curves.Curves`."""

    def points_after(self, reader: Reader, key: int, number: int) -> Logged:
        rows = store.points_after(reader, key, number, _ROWS)
        points = [
            (row.run, Scalar(name, step, float(value), time / 1000))
            for row in rows
            for name, step, value, time in row.points
        ]
        return Logged(points, rows[-1].number if rows else number, more=len(rows) == _ROWS)

    def lacks_points(self, reader: Reader, key: int) -> bool:
        return store.has_lost_points(reader, key)
