"""Waits for jobs of the Python client while the server is away."""

import pytest

from trainyard.client import Job, WaitTimeout
from trainyard_cli.client import Client
from trainyard_cli.settings import Server
from trainyard_cli.v1_client import RETRY_DELAYS
from unit.cli.scripted_server import CUT, scripted_server


def test_wait_is_over_in_time_also_where_the_server_does_not_answer() -> None:
    """A call by itself is tried for two minutes."""
    pauses: list[float] = []
    with scripted_server() as script, Client(Server(script.url, "t"), "p", sleep=pauses.append) as client:
        script.answers = [CUT] * 100
        with pytest.raises(WaitTimeout, match="is still RUNNING after 0 s"):
            Job(client, {"jobId": "j", "state": "RUNNING"}).wait(timeout=0)
    assert pauses == list(RETRY_DELAYS)
