"""`trainyard backup` and `restore` as an operator types them."""

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
