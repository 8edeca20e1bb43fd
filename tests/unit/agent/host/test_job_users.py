"""Users for runs: each its own, kept as long as it has files, and used again only when nothing of it is left."""

import os
from pathlib import Path

import pytest

from trainyard_agent.host import job_users, procfs, unix_users
from trainyard_agent.host.job_users import JobUsers, NoFreeUser
from trainyard_agent.host.process_tags import StillAlive

IDS = range(300_000, 300_003)


@pytest.fixture
def state_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The state directory of an agent that cannot become or kill other users: nothing here does. Processes of other
    tests have no user of these."""
    monkeypatch.setattr(procfs, "users", dict)
    monkeypatch.setattr(unix_users, "kill_all", lambda user: None)
    monkeypatch.setattr(unix_users, "remove_orphans", lambda user: None)
    return tmp_path


def opened(state_dir: Path) -> JobUsers:
    users = JobUsers(state_dir, IDS)
    users.open()
    return users


def test_user_is_the_runs_own_and_the_next_agent_knows_it(state_dir: Path) -> None:
    users = opened(state_dir)
    (state_dir / "runs" / "one").mkdir()
    assert [users.assign("one"), users.assign("two"), users.assign("one")] == [300_000, 300_001, 300_000]

    again = opened(state_dir)
    assert (again.of("one"), again.of("two")) == (300_000, None)  # that one had no directory
    assert JobUsers(state_dir).assign("one") == 300_000  # though new runs have the agent's user
    assert JobUsers(state_dir).assign("new") is None


def test_user_is_free_when_its_run_has_no_directory_and_used_after_all_others(state_dir: Path) -> None:
    users = opened(state_dir)
    (state_dir / "environments" / "one").mkdir()
    users.assign("one")
    users.release("one")
    assert users.of("one") == 300_000
    (state_dir / "environments" / "one").rmdir()
    users.release("one")
    users.release("one")
    assert [users.assign(run) for run in ("a", "b", "c")] == [300_001, 300_002, 300_000]
    with pytest.raises(NoFreeUser, match="each of the 3 user ids"):
        users.assign("d")


def test_user_that_cannot_be_cleared_is_not_free(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    users = opened(state_dir)
    users.assign("one")

    def hang(user: int) -> None:
        raise StillAlive("it hangs in the kernel")

    with monkeypatch.context() as broken:
        broken.setattr(unix_users, "kill_all", hang)
        users.release("one")
    assert users.of("one") == 300_000
    assert "user 300000 of run one cannot be used again yet: it hangs in the kernel" in caplog.text
    opened(state_dir)
    assert users.of("one") is None


def test_user_of_a_person_or_of_a_process_is_never_given(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_users, "is_named", lambda user: user == 300_000)
    monkeypatch.setattr(procfs, "users", lambda: {1: {0}, 2: {0, 300_001}})
    assert opened(state_dir).assign("one") == 300_002


def test_id_is_named_where_the_machine_knows_a_user_or_a_group() -> None:
    assert [job_users.is_named(user) for user in (0, 300_000)] == [True, False]


def test_state_is_closed_to_users_of_jobs(state_dir: Path) -> None:
    (state_dir / "agent.json").write_text("{}")
    (state_dir / "containers" / "run").mkdir(parents=True)
    (state_dir / "runs" / "of-the-agents-user").mkdir(parents=True)
    for path in state_dir.rglob("*"):
        path.chmod(0o777)

    opened(state_dir)

    modes = {
        str(path.relative_to(state_dir)): path.stat().st_mode & 0o777
        for path in (*state_dir.iterdir(), *state_dir.glob("runs/*"), state_dir)
    }
    assert modes == {
        ".": 0o711,
        "agent.json": 0o700,
        "containers": 0o700,
        "environments": 0o711,
        "runs": 0o711,
        "runs/of-the-agents-user": 0o700,
        "users": 0o700,
    }


@pytest.mark.parametrize("run_id", ["../other", "", "a/b", ".last"])
def test_run_that_is_no_file_name_gets_no_user(state_dir: Path, run_id: str) -> None:
    with pytest.raises(ValueError, match="is not a run id"):
        opened(state_dir).assign(run_id)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory to another group")
def test_record_that_is_damaged_leaves_the_run_its_user(state_dir: Path) -> None:
    users = opened(state_dir)
    users.assign("one")
    (state_dir / "users" / "one.json").write_text('{"user": 0}')
    assert users.of("one") is None  # nothing of it is there
    unix_users.make_passage(state_dir / "runs" / "one", 300_000)
    assert users.of("one") == 300_000
