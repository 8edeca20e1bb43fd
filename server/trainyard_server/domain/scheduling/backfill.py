"""Backfill: whether a job may start before jobs ahead of it in the queue without delaying any of them. Pure.

A job delays no job that waits ahead of it if this holds for every set of other gangs that may run when the turn of the
waiting job comes (gangs that run there now, and gangs ahead in the queue that could): where the waiting job fits beside
the set, it also fits beside the set and the new job. So it starts when it would have started, whatever ends in whatever
order. No run time is assumed.

Sets with the same sum are equal, so the sums are enumerated. If there are too many, the answer is no.
"""

from collections import Counter
from collections.abc import Iterable
from operator import add, le, sub

Amounts = tuple[int, ...]
"""Amounts of each resource. All tuples of one `Reservations` have the same length and order."""

MAX_SUMS = 4096
"""Limit of different sums: enough for any 12 gangs, and for many more where gangs are alike."""

_NONE = -1


class Reservations:
    """Capacity that gangs share, what is allocated of it, and what queued gangs reserve.

    Call it in the order of the queue. Each addition makes later answers stricter.
    """

    def __init__(self, capacity: Amounts, held: Iterable[Amounts] = ()) -> None:
        self.capacity = capacity
        self._gangs: Counter[Amounts] = Counter(held)
        self._waiting: set[Amounts] = set()
        self._in_all = tuple(map(sum, zip(*self._gangs.elements(), strict=True))) or (0,) * len(capacity)
        self.free = _difference(capacity, self._in_all)
        self._spare: Amounts | None = None
        """The resources that can be allocated without a delay of a reservation; None: not computed."""
        self._at_most: Amounts = capacity  # the last known spare: it never grows
        self._then: tuple[Amounts, Amounts] | None = None
        """A gang, and the spare capacity once it has started."""
        self._unclear = False  # a queued gang accepts devices of any type

    def fits(self, requested: Amounts) -> bool:
        return _covers(self.free, requested)  # a quota may be smaller than its present use

    def can_backfill(self, requested: Amounts, uses_devices: bool = False) -> bool:
        """Whether the start of a gang delays no reservation."""
        if not self._waiting:
            return True
        if self._unclear and uses_devices:
            return False
        if _within(_sum(self._in_all, requested), self.capacity):
            return True  # all of them fit together
        if not _covers(self._at_most, requested):
            return False
        if self._spare is None:
            self._spare = self._at_most = self._spare_with(self._gangs)
        # A later question must not exceed MAX_SUMS because of this answer.
        if not _covers(self._spare, requested):
            return False
        then = self._spare_with(self._gangs + Counter([requested]))
        self._then = (requested, then)
        return then != self._nothing

    def allocate(self, requested: Amounts) -> None:
        """Start a gang."""
        then = self._then
        self.expect(requested)
        self.free = _difference(self.free, requested)
        if then is not None and then[0] == requested:
            self._spare = self._at_most = then[1]

    def expect(self, requested: Amounts, any_devices: bool = False, count: int = 1) -> None:
        """Add equal queued gangs that may later need this capacity, but reserve nothing."""
        self._gangs[requested] += count
        self._in_all = tuple(total + count * need for total, need in zip(self._in_all, requested, strict=True))
        self._unclear = self._unclear or any_devices
        self._spare = self._then = None

    def reserve(self, requested: Amounts, any_devices: bool = False, count: int = 1) -> None:
        """Reserve for equal queued gangs: no gang behind them in the queue may delay one."""
        self.expect(requested, any_devices, count)
        self._waiting.add(requested)

    @property
    def _nothing(self) -> Amounts:
        return (_NONE,) * len(self.capacity)

    def _spare_with(self, gangs: Counter[Amounts]) -> Amounts:
        """Capacity beside every set of `gangs` and each reservation."""
        spare = self.capacity
        for waiting in self._waiting:
            room = _difference(self.capacity, waiting)
            sums = _sums(gangs - Counter([waiting]), room)
            if sums is None:
                return self._nothing
            if sums:
                most = tuple(map(max, zip(*sums, strict=True)))
                spare = tuple(map(min, spare, _difference(room, most)))
        return spare


def _sums(gangs: Counter[Amounts], room: Amounts) -> set[Amounts] | None:
    """The sums of all sets of gangs that fit into `room`; None if there are more than MAX_SUMS."""
    nothing = (0,) * len(room)
    if not _within(nothing, room):
        return set()
    sums = {nothing}
    for amounts, count in gangs.items():
        fresh = sums
        for _ in range(count if any(amounts) else 0):
            fresh = {total for shape in fresh if _within(total := _sum(shape, amounts), room)} - sums
            if not fresh:
                break
            sums = sums | fresh
            if len(sums) > MAX_SUMS:
                return None
    return sums


def _sum(amounts: Amounts, other: Amounts) -> Amounts:
    return tuple(map(add, amounts, other))


def _difference(amounts: Amounts, other: Amounts) -> Amounts:
    return tuple(map(sub, amounts, other))


def _within(amounts: Amounts, other: Amounts) -> bool:
    return all(map(le, amounts, other))


def _covers(spare: Amounts, requested: Amounts) -> bool:
    """Whether `spare` has every requested amount; amounts of 0 are ignored."""
    return all(not b or b <= a for a, b in zip(spare, requested, strict=True))
