"""Records of the local storage: buckets, objects, resumable uploads, and what may be asked of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Properties = Mapping[str, Any]
"""What a client says of an object, under the names of its resource: contentType, metadata ..."""

PAGE = 1000
"""The most objects of a page."""


class Missing(Exception):
    """There is no such bucket, object or upload."""


class Taken(Exception):
    """The bucket exists already, or is not empty."""


class ConditionFailed(Exception):
    """A precondition does not hold. `unchanged`: the caller has what it asks for."""

    def __init__(self, message: str, unchanged: bool = False) -> None:
        super().__init__(message)
        self.unchanged = unchanged


@dataclass(frozen=True, slots=True)
class BucketRecord:
    name: str
    created: int
    properties: Properties = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ObjectRecord:
    """An object. Times are microseconds; its generation is when it was made."""

    bucket: str
    name: str
    generation: int
    metageneration: int
    file: str
    size: int
    md5: str
    crc32c: str
    components: int
    updated: int
    properties: Properties


@dataclass(frozen=True, slots=True)
class UploadRecord:
    """A resumable upload. `generation`: of the object that it became; 0 before."""

    id: str
    bucket: str
    name: str
    properties: Properties
    conditions: "Conditions"
    size: int | None
    generation: int = 0


@dataclass(frozen=True, slots=True)
class Conditions:
    """Preconditions; None is none."""

    generation: int | None = None
    not_generation: int | None = None
    metageneration: int | None = None
    not_metageneration: int | None = None

    def check(self, record: ObjectRecord | None, reading: bool = False) -> None:
        """Raises ConditionFailed. The generation of an object that is not there is 0."""
        generation = record.generation if record is not None else 0
        metageneration = record.metageneration if record is not None else 0
        if self.generation not in (None, generation) or self.metageneration not in (None, metageneration):
            raise ConditionFailed("At least one of the pre-conditions you specified did not hold.")
        if generation == self.not_generation or metageneration == self.not_metageneration:
            raise ConditionFailed("At least one of the pre-conditions you specified did not hold.", unchanged=reading)


@dataclass(frozen=True, slots=True)
class Listing:
    """Bounds of a listing: objects from `start` to before `end`, `after` excluded."""

    prefix: str = ""
    delimiter: str = ""
    start: str = ""
    end: str = ""
    after: bytes = b""
    most: int = PAGE
    with_trailing: bool = False


@dataclass(slots=True)
class Page:
    """A page of a listing; `next` continues it, b"" at its end."""

    items: list[ObjectRecord] = field(default_factory=list)
    prefixes: list[str] = field(default_factory=list)
    next: bytes = b""
