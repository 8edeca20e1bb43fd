"""Places where the event files of a job are: its directory, and what its arguments name on gs://. Pure."""

import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainyard_protocol.answers.jobs import JobDetail
from trainyard_protocol.errors import FailedPrecondition
from trainyard_protocol.net.gcs import SCHEME, problem_of

JOB_DIR = "job-dir"

_NAMES = frozenset({"logdir", "modeldir", "outputdir"})
"""Names of arguments, without hyphens and underscores."""

_CONFIGS = ("masterConfig", "workerConfig", "parameterServerConfig", "evaluatorConfig")
_ASSIGNED = re.compile(r"-{0,2}([A-Za-z][\w-]*)=(.*)", re.S)
_FLAG = re.compile(r"--?([A-Za-z][\w-]*)")


@dataclass(frozen=True, slots=True)
class EventPlace:
    """A directory or gs:// location, and what it is called beside others."""

    name: str
    location: str

    @property
    def is_remote(self) -> bool:
        return self.location.startswith(SCHEME)


def places_of(detail: JobDetail) -> list[EventPlace]:
    """The places of a job, the job-dir first; none that lies in another one. Raises FailedPrecondition where there is
    none."""
    found = [EventPlace(JOB_DIR, detail.job_dir)] if detail.job_dir else []
    found += [EventPlace(name, location) for name, location in _named(_words(detail.job.get("trainingInput", {})))]
    if not found:
        raise FailedPrecondition(
            f"Job [{detail.job.get('jobId')}] has no jobDir, and no argument such as --log_dir=gs://BUCKET/DIR: its "
            "event files cannot be located. Name their directory with --logdir, or submit the job with --job-dir."
        )
    return _distinct(found)


def chosen(logdirs: Sequence[str]) -> list[EventPlace]:
    """The places that the user names."""
    return _distinct([EventPlace("logdir", location) for location in logdirs])


def _distinct(places: Sequence[EventPlace]) -> list[EventPlace]:
    """The places without those that lie in another one, with names of their own."""
    kept: list[EventPlace] = []
    names: Counter[str] = Counter()
    for number, place in enumerate(places):
        others = [*places[:number], *(other for other in places[number + 1 :] if not _is_within(other, place))]
        if any(_is_within(place, other) for other in others):
            continue
        names[place.name] += 1
        count = names[place.name]
        kept.append(EventPlace(f"{place.name}-{count}", place.location) if count > 1 else place)
    return kept


def _is_within(place: EventPlace, other: EventPlace) -> bool:
    return f"{place.location.rstrip('/')}/".startswith(f"{other.location.rstrip('/')}/")


def _words(training_input: Mapping[str, Any]) -> Iterator[str]:
    """The words of all command lines of a job, also of those that a shell gets as one word."""
    configs = [training_input.get(name) or {} for name in _CONFIGS]
    lines = [training_input.get("args", ())]
    lines += [config.get(name, ()) for config in configs for name in ("containerCommand", "containerArgs")]
    for word in (str(word) for line in lines for word in line):
        yield from _split(word) if SCHEME in word and " " in word else (word,)


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # no line of a shell
        return text.split()


def _named(words: Iterator[str]) -> Iterator[tuple[str, str]]:
    """Names and values of arguments that name a location of gs:// for event files."""
    name = ""
    for word in words:
        assigned, flag = _ASSIGNED.fullmatch(word), _FLAG.fullmatch(word)
        before, name = name, flag[1] if flag is not None else ""
        given, value = (assigned[1], assigned[2]) if assigned is not None else (before, word)
        if re.sub("[-_]", "", given).lower() in _NAMES and value.startswith(SCHEME) and not problem_of(value):
            yield given, value
