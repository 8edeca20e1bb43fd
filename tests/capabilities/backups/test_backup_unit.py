"""The systemd unit of backups: it calls the command line with its flags."""

import shlex
from pathlib import Path

from trainyard_cli.capabilities.backups.commands import backup
from unit.test_deployments import BACKUP, started


def test_unit_of_backups_calls_the_command_line_with_its_flags() -> None:
    shell, dash_c, line = started(BACKUP)
    assert (shell, dash_c) == ("/bin/sh", "-c")
    _, program, name, *words = shlex.split(line.replace("%%", "%"))
    assert (Path(program).name, name) == ("trainyard", "backup")
    given = backup.make_context(name, words).params
    assert (str(given["file"]), given["force"]) == ("$STATE_DIRECTORY/trainyard-$(date +%a).tar.gz", True)
    assert str(given["token_file"]) == "$CREDENTIALS_DIRECTORY/admin-token"
    assert "LoadCredential=admin-token:" in BACKUP.read_text()
