"""What to do next, from what the server wants and what is here. Pure.

                          ordered to run             ordered to stop        not ordered
    nothing here          Prepare                    GiveUp (stopped)       -
    left by another agent Prepare                    GiveUp (stopped)       Remove
    being prepared        wait                       GiveUp (stopped)       Remove
    prepared              Start                      GiveUp (stopped)       Remove
    could not be prepared GiveUp (why)               GiveUp (stopped)       Remove
    given up              wait                       wait                   Remove
    alive                 wait                       Stop                   Stop
    ended                 wait                       wait                   Remove

"Given up" is a run that will never have a replica here: its end is reported until the server lets it go.
Each action may be repeated after a crash: all of them are idempotent.
"""

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass

from trainyard_agent.control.launch import wants_image
from trainyard_agent.staging.base import Staging
from trainyard_protocol.errors import InvalidArgument
from trainyard_protocol.states import Reason
from trainyard_protocol.sync import RunOrder


@dataclass(frozen=True, slots=True)
class Held:
    """A run that the runtime has. `alive`: some replica has not exited yet."""

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


Action = Prepare | Start | GiveUp | Stop | Remove


def reconcile(
    orders: Iterable[RunOrder],
    held: Mapping[str, Held],
    staging: Mapping[str, Staging],
    given_up: Set[str],
    *,
    runs_images: bool,
) -> list[Action]:
    """At most one action for each run: those that free something come first."""
    wanted = {order.run_id: order for order in orders}
    unwanted = sorted((held.keys() | staging.keys() | given_up) - wanted.keys())
    actions: list[Action] = [_let_go(run_id, held.get(run_id)) for run_id in unwanted]
    for order in wanted.values():
        run_id = order.run_id
        if run_id in held:
            if order.target == "stop" and held[run_id].alive:
                actions.append(Stop(run_id, order.grace_s))
        elif run_id in given_up:
            continue
        elif order.target == "stop":
            actions.append(GiveUp(order, Reason.STOPPED, "It was stopped before it was started."))
        else:
            actions += _towards_start(order, staging.get(run_id), runs_images)
    return sorted(actions, key=lambda action: not isinstance(action, Stop | Remove))


def _let_go(run_id: str, held: Held | None) -> Action:
    if held is not None and held.alive:
        return Stop(run_id, held.grace_s)
    return Remove(run_id)


def _towards_start(order: RunOrder, staging: Staging | None, runs_images: bool) -> list[Action]:
    if staging is None or staging.phase == "left":
        trouble = _impossible(order, runs_images)
        return [GiveUp(order, Reason.START_FAILED, trouble) if trouble else Prepare(order)]
    match staging.phase:
        case "preparing":
            return []
        case "ready":
            return [Start(order, staging)]
        case "failed":
            return [GiveUp(order, staging.reason, staging.message)]


def _impossible(order: RunOrder, runs_images: bool) -> str:
    try:
        image = wants_image(order)
    except InvalidArgument as error:
        return f"This agent does not understand its job: {error.message}"
    if image and not runs_images:
        return f"It needs the image {image}, and this agent has no container engine."
    return ""
