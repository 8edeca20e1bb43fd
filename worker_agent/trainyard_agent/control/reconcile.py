"""The next action for each run, from the server's orders and the local state. Pure.

                          ordered to run             ordered to stop        not ordered
    not on this machine   Prepare                    GiveUp (stopped)       -
    staged by a former agent  Prepare                GiveUp (stopped)       Remove
    being staged          wait                       GiveUp (stopped)       Remove
    staged                Start (a part: below)      GiveUp (stopped)       Remove
    staging failed        GiveUp (why)               GiveUp (stopped)       Remove
    given up              wait                       wait                   Remove
    alive                 wait                       Stop                   Stop
    ended                 wait                       wait                   Remove

A part of a run over several agents that is staged:

    not placed            PlacePart
    placed                wait for the addresses of all, then AskParts
    asking                wait
    reaches the others    wait for all, then Start
    cannot, or is placed anew    GiveUp (why)

"Given up" is a run that will never have a replica here: its end is reported until the server drops its order.
All actions are idempotent: each may be repeated after a crash.
"""

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from types import MappingProxyType

from trainyard_agent.peers.parts import PartState
from trainyard_agent.staging.base import Staging
from trainyard_protocol.states import Reason
from trainyard_protocol.wire.sync import RunOrder, SpreadOrder


@dataclass(frozen=True, slots=True)
class LocalRun:
    """A run that the runtime holds. `alive`: a replica has not exited yet."""

    alive: bool
    grace_s: float


@dataclass(frozen=True, slots=True)
class Prepare:
    order: RunOrder


@dataclass(frozen=True, slots=True)
class Start:
    order: RunOrder
    staging: Staging


@dataclass(frozen=True, slots=True)
class PlacePart:
    """Reserve the addresses of a part, which are reported then."""

    order: RunOrder


@dataclass(frozen=True, slots=True)
class AskParts:
    """Connect to the other parts."""

    order: RunOrder


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Report every replica of the order as EXITED, without a code, for this reason."""

    order: RunOrder
    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class Stop:
    run_id: str
    grace_s: float


@dataclass(frozen=True, slots=True)
class Remove:
    run_id: str


Action = Prepare | PlacePart | AskParts | Start | GiveUp | Stop | Remove


def reconcile(
    orders: Iterable[RunOrder],
    local: Mapping[str, LocalRun],
    staging: Mapping[str, Staging],
    given_up: Set[str],
    parts: Mapping[str, PartState] = MappingProxyType({}),
    *,
    no_images: str,
) -> list[Action]:
    """At most one action for each run; those that free resources come first. `no_images`: why no job with an image can
    start here now, or ""."""
    ordered = {order.run_id: order for order in orders}
    unordered = sorted((local.keys() | staging.keys() | given_up | parts.keys()) - ordered.keys())
    actions: list[Action] = []
    for run_id in unordered:
        run = local.get(run_id)
        actions.append(Stop(run_id, run.grace_s) if run is not None and run.alive else Remove(run_id))
    for order in ordered.values():
        run_id = order.run_id
        if run_id in local:
            if order.target == "stop" and local[run_id].alive:
                actions.append(Stop(run_id, order.grace_s))
        elif run_id in given_up:
            continue
        elif order.target == "stop":
            actions.append(GiveUp(order, Reason.STOPPED, "It was stopped before it was started."))
        else:
            actions += _advance(order, staging.get(run_id), parts.get(run_id), no_images)
    return sorted(actions, key=lambda action: not isinstance(action, Stop | Remove))


def _advance(order: RunOrder, staging: Staging | None, part: PartState | None, no_images: str) -> list[Action]:
    if staging is None or staging.phase == "stale":
        return [_refused(order, no_images) or Prepare(order)]
    match staging.phase:
        case "preparing":
            return []
        case "ready" if order.spread is not None:
            return _advance_part(order, order.spread, staging, part)
        case "ready":
            return [Start(order, staging)]
        case "failed":
            return [GiveUp(order, staging.reason, staging.message)]


def _advance_part(order: RunOrder, spread: SpreadOrder, staging: Staging, part: PartState | None) -> list[Action]:
    if part is None and not spread.addresses:
        return [PlacePart(order)]
    if part is None:  # the other parts may have met already, and listen no more
        message = "Its agent has started again before the gang did, and the other parts wait for it no more."
        return [GiveUp(order, Reason.GIVEN_BACK, message)]
    if part.problem:
        return [GiveUp(order, part.reason, part.problem)]
    if not spread.addresses or part.is_asking:
        return []
    if any(spread.addresses[task] != address for task, address in part.addresses.items()):
        message = "Its agent has started again before the gang did: the other parts know another address."
        return [GiveUp(order, Reason.GIVEN_BACK, message)]
    if not part.reaches:
        return [AskParts(order)]
    return [Start(order, staging)] if spread.starts else []


def _refused(order: RunOrder, no_images: str) -> GiveUp | None:
    """An order that cannot start here. For a missing engine the machine is at fault: the job waits for one."""
    if order.unreadable:
        message = f"This agent does not understand its job: {order.unreadable}"
        return GiveUp(order, Reason.START_FAILED, message)
    image = order.training_input.image_uri
    if image and no_images:
        return GiveUp(order, Reason.HOST_FAILED, f"It needs the image {image}, and {no_images}.")
    return None
