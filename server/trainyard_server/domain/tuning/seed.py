"""The seed of a study: the same seed and the same measurements give the same trials. Pure."""

import re
import zlib
from collections.abc import Mapping

from trainyard_protocol.errors import InvalidArgument, Violation

SEED_LABEL = "trainyard_seed"

_SEED = re.compile(r"\d{1,9}")


def seed_of(job_id: str, labels: Mapping[str, str]) -> int:
    """The seed that the label gives, else one of the study's id. Raises InvalidArgument for a label that is none."""
    text = labels.get(SEED_LABEL)
    if text is None:
        return zlib.crc32(job_id.encode()) & 0x7FFFFFFF
    if not _SEED.fullmatch(text):
        message = f"must be a whole number of at most 9 digits; this is {text!r}."
        raise InvalidArgument(Violation(f"labels.{SEED_LABEL}", message))
    return int(text)
