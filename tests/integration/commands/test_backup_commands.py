"""`trainyard backup`, `restore` and `retention` as an operator types them."""

import json
from pathlib import Path

from integration.shells import OPERATOR, Shell


def test_backup_is_written_once_restored_once_and_for_operators_only(shell: Shell, tmp_path: Path) -> None:
    shell.out(f"login {shell.url} --token-file -", OPERATOR)
    shell.api.create("job")
    file, new = tmp_path / "b.tar.gz", tmp_path / "new"
    assert "verified. It is of 2026-11-20 12:00:00 UTC" in shell.out(f"backup {file}")
    assert file.stat().st_mode & 0o777 == 0o600
    assert "Add --force to replace it" in shell(f"backup {file}")[2]
    assert "1 job" in shell.out(f"backup {file} --force")
    assert f"trainyard up --state-dir {new}" in shell.out(f"restore {file} --state-dir {new}")
    assert "not an empty directory" in shell(f"restore {file} --state-dir {new}")[2]
    (tmp_path / "torn.tar.gz").write_bytes(file.read_bytes()[:-50])
    code, out, _ = shell(f"rehearse {tmp_path / 'torn.tar.gz'} -o json")
    assert (code, json.loads(out)["good"]) == (1, False)
    shell.out(f"login {shell.url} --token-file -", "alices-secret")
    code, _, err = shell(f"backup {tmp_path / 'mine.tar.gz'}")
    assert (code, "submitter" in err) == (1, True), err
    assert not list(tmp_path.glob("*mine*"))


def test_retention_shows_what_would_go_and_removes_nothing(shell: Shell) -> None:
    shell.out(f"login {shell.url} --token-file -", OPERATOR)
    shell.api.create("old")
    shell.api.cancel("old")
    assert "Nothing would be removed." in shell.out("retention")
    rows = [row.split() for row in shell.out("retention --keep-jobs 3d --within 7d").splitlines()]
    assert rows[0][:3] == ["PROJECT", "KEEPS", "JOBS"]
    assert [word for word in rows[1] if word in ("p", "3d", "nothing")] == ["p", "3d", "nothing"]
    assert rows[-1][:4] == ["later", "job", "p", "old"]
    shell.api.clock.advance(4 * 86400)
    data = json.loads(shell.out("retention --keep-jobs 3d -o json"))
    assert [(item["job"], item["is_now"]) for item in data["items"]] == [("old", True)]
    assert shell.api.job("old")["state"] == "CANCELLED"
