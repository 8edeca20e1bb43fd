"""Objects of gs:// that the server can read, looked at one after the other within a time limit."""

import time
from collections.abc import Iterable, Mapping
from contextlib import closing

from trainyard_protocol.errors import FailedPrecondition, NotFound, Unavailable
from trainyard_protocol.net.gcs import CloudStorage, problem_of, split_url

_TIMEOUT_S = 8.0  # of each request
_ALL_S = 20.0


def unreadable(urls: Iterable[str], emulator: str) -> Mapping[str, str]:
    """The objects that the server cannot read, each with the reason. `emulator` is the storage's address; "": Google's
    service, with the credentials of the server's environment. Raises Unavailable."""
    storage = CloudStorage("The server", emulator)
    ends = time.monotonic() + _ALL_S
    problems: dict[str, str] = {}
    try:
        client = storage.client()
    except FailedPrecondition as error:
        return dict.fromkeys(urls, error.message)
    with closing(client):
        for url in urls:
            left_s = ends - time.monotonic()
            if left_s <= 0:
                raise Unavailable(f"Google Cloud Storage did not answer within {_ALL_S:.0f} s: try again.")
            if problem := problem_of(url):
                problems[url] = f"{url} {problem}"
                continue
            bucket, name = split_url(url)
            if not name:
                problems[url] = f"{url} names no object: gs://BUCKET/OBJECT."
                continue
            try:
                with storage.errors(url):
                    blob = client.bucket(bucket).get_blob(name, timeout=min(_TIMEOUT_S, left_s), retry=None)
            except (FailedPrecondition, NotFound) as error:
                problems[url] = error.message
            else:
                if blob is None:
                    problems[url] = f"{url} does not exist."
    return problems
