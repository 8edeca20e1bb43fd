"""Thinning of logged points: of each four consecutive ones of a metric the lowest and the highest stay. Pure."""

from collections.abc import Collection, Sequence

from trainyard_server.capabilities.tracking.store import POINTS_OF_A_ROW, StoredPoint


def thinned(points: Sequence[StoredPoint], names: Collection[str] | None) -> list[StoredPoint]:
    """The points without about half of those of these metrics, or of all (None). The first and the last of each metric
    stay, and so does the order."""
    by_name: dict[str, list[int]] = {}
    for index, point in enumerate(points):
        by_name.setdefault(str(point[0]), []).append(index)
    kept: set[int] = set()
    for name, indices in by_name.items():
        kept.update(indices if names is not None and name not in names else _kept(points, indices))
    return [point for index, point in enumerate(points) if index in kept]


def rows_of(points: Sequence[StoredPoint]) -> list[Sequence[StoredPoint]]:
    """The points in rows, as they are stored."""
    return [points[at : at + POINTS_OF_A_ROW] for at in range(0, len(points), POINTS_OF_A_ROW)]


def _kept(points: Sequence[StoredPoint], indices: Sequence[int]) -> set[int]:
    kept = {indices[0], indices[-1]}
    inner = indices[1:-1]
    for at in range(0, len(inner), 4):
        four = inner[at : at + 4]
        finite = [index for index in four if isinstance(points[index][2], int | float)]
        if finite:
            kept.add(min(finite, key=lambda index: float(points[index][2])))
            kept.add(max(finite, key=lambda index: float(points[index][2])))
        else:
            kept.add(four[0])
    return kept
