"""Whether a job may pass others that wait for the same room, or the same quota, without delaying any. Pure.

A job is harmless to one that waits ahead of it if, for every set of other gangs that may hold the room when its
turn comes (of those that run there now, and of those that wait ahead and could), the waiting one fits beside the set
and the new job wherever it fits beside the set alone. So whatever ends, and in whatever order, it starts when it
would have started. Nothing is assumed of how long anything runs.

Sets with the same sum are the same, so the sums are enumerated. Where there are too many, the answer is no.
"""

from collections import Counter
from collections.abc import Iterable
from operator import add, le, sub

Amounts = tuple[int, ...]
"""How much of each thing, in an order that the ledger's owner fixes; all tuples of one ledger are of one length."""

MAX_SUMS = 4096
"""Different sums that are looked at: those of any 12 gangs, of very many where gangs are alike."""

_NONE = -1


class Ledger:
    """What there is of something that gangs share: what holds it, and who waits for it.

    It is asked in the order of the queue. What is added only ever makes later answers stricter.
    """

    def __init__(self, capacity: Amounts, held: Iterable[Amounts] = ()) -> None:
        self.capacity = capacity
        self._gangs: Counter[Amounts] = Counter(held)
        self._waiting: set[Amounts] = set()
        self._in_all = tuple(map(sum, zip(*self._gangs.elements(), strict=True))) or (0,) * len(capacity)
        self.free = _difference(capacity, self._in_all)
        self._spare: Amounts | None = None  # what may be given without delaying who waits; None: not known
        self._at_most: Amounts = capacity  # what it was when it was last known: it never grows
        self._then: tuple[Amounts, Amounts] | None = None  # a gang, and what is spare once it has started
        self._unclear = False  # a gang that waits may take devices of any type

    def fits(self, wanted: Amounts) -> bool:
        return _covers(self.free, wanted)  # a quota may have become smaller than what is in use

    def harmless(self, wanted: Amounts, takes_devices: bool = False) -> bool:
        """Whether a gang that starts now can delay nobody who waits."""
        if not self._waiting:
            return True
        if self._unclear and takes_devices:
            return False
        if _within(_sum(self._in_all, wanted), self.capacity):
            return True  # all of them fit together
        if not _covers(self._at_most, wanted):
            return False
        if self._spare is None:
            self._spare = self._at_most = self._look(self._gangs)
        # Later questions must not become too large by this answer: they would be answered otherwise than without it.
        if not _covers(self._spare, wanted):
            return False
        then = self._look(self._gangs + Counter([wanted]))
        self._then = (wanted, then)
        return then != self._nothing

    def hold(self, wanted: Amounts) -> None:
        """A gang starts."""
        then = self._then
        self.expect(wanted)
        self.free = _difference(self.free, wanted)
        if then is not None and then[0] == wanted:
            self._spare = self._at_most = then[1]

    def expect(self, wanted: Amounts, any_devices: bool = False) -> None:
        """A gang waits for something else, and may come to hold some of this. Nobody is held back for it."""
        self._gangs[wanted] += 1
        self._in_all = _sum(self._in_all, wanted)
        self._unclear = self._unclear or any_devices
        self._spare = self._then = None

    def protect(self, wanted: Amounts, any_devices: bool = False) -> None:
        """A gang waits for this, and nobody behind it may delay it."""
        self.expect(wanted, any_devices)
        self._waiting.add(wanted)

    @property
    def _nothing(self) -> Amounts:
        return (_NONE,) * len(self.capacity)

    def _look(self, gangs: Counter[Amounts]) -> Amounts:
        """How much more may be held at any time, whoever else of `gangs` holds some, by all who wait."""
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
    """The sums of all sets of gangs that are within the room, none if nothing is; None if they are too many."""
    nothing = (0,) * len(room)
    if not _within(nothing, room):
        return set()
    sums = {nothing}
    for amounts, count in gangs.items():
        fresh = sums
        for _ in range(count if any(amounts) else 0):
            fresh = {total for one in fresh if _within(total := _sum(one, amounts), room)} - sums
            if not fresh:
                break
            sums = sums | fresh
            if len(sums) > MAX_SUMS:
                return None
    return sums


def _sum(one: Amounts, other: Amounts) -> Amounts:
    return tuple(map(add, one, other))


def _difference(one: Amounts, other: Amounts) -> Amounts:
    return tuple(map(sub, one, other))


def _within(one: Amounts, other: Amounts) -> bool:
    return all(map(le, one, other))


def _covers(spare: Amounts, wanted: Amounts) -> bool:
    """As `_within`, but what is not wanted at all need not be there."""
    return all(not b or b <= a for a, b in zip(spare, wanted, strict=True))
