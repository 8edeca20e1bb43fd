"""Lines of an installer."""

import json

from trainyard_agent.installer.output import EVENT
from trainyard_agent.runtimes import installing
from trainyard_agent.runtimes.masking import Mask


def test_activity_has_no_part_of_a_secret() -> None:
    secret = "s3cret-of-the-index"
    for before in range(150, 230):
        text = f"{'x' * before}{secret}{'y' * 200}"
        output = f"{EVENT}{json.dumps({'activity': text})}\nCollecting {secret}\n"
        shown = installing.last_activity(output, Mask([secret]))
        assert "s3c" not in shown, (before, shown)
        assert len(shown) <= 200, before
    assert installing.last_activity("Collecting six\n", Mask()) == ""
