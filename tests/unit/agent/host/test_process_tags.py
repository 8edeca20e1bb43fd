"""Tags of processes, which anybody can set."""

import os
import subprocess

import pytest

from trainyard_agent.host import process_tags

RUN = "run"
USER, OTHER = 320_000, 320_001


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start programs of other users")
def test_tag_that_another_user_has_set_does_not_count_for_a_run_with_a_user_of_its_own() -> None:
    tag = process_tags.tag(RUN, "master-replica-0")
    own, forged = (
        subprocess.Popen(["sleep", "1000"], env=tag, user=user, group=user, extra_groups=[]) for user in (USER, OTHER)
    )
    with own, forged:
        try:
            assert process_tags.tagged(RUN, user=USER) == [own.pid]
            assert set(process_tags.tagged(RUN)) == {own.pid, forged.pid}
            process_tags.kill_tagged(RUN, user=USER)
            assert process_tags.tagged(RUN) == [forged.pid]
        finally:
            own.kill()
            forged.kill()
