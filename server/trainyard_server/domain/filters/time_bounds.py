"""Times that bound a list, as a caller writes them."""

from datetime import datetime

from trainyard_protocol.errors import Violation
from trainyard_protocol.lines.time_parsing import parse_time


def time_bound(name: str, text: str, now: datetime, wrong: list[Violation]) -> datetime | None:
    """The time or age of the parameter `name`; None of "". Text that is neither is added to `wrong`."""
    try:
        return parse_time(text, now) if text.strip() else None
    except ValueError as error:
        wrong.append(Violation(name, f"{error}."))
        return None
