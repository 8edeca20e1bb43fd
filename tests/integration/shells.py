"""Commands of `trainyard`, typed by a user of a server behind a socket."""

import io

import pytest

from integration.api.api_support import ADMIN, Server
from trainyard_cli.commands.tree import trainyard
from trainyard_cli.main import run

OPERATOR = ADMIN["Authorization"].split()[1]


class Shell:
    """Runs commands in this process."""

    def __init__(self, api: Server, url: str, capture: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch) -> None:
        self.api = api
        self.url = url
        self._capture = capture
        self._patch = patch

    def __call__(self, words: str, stdin: str = "") -> tuple[int, str, str]:
        """Exit code, stdout and stderr."""
        self._patch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        code = run(trainyard, "trainyard", words.split())
        return (code, *self._capture.readouterr())

    def out(self, words: str, stdin: str = "") -> str:
        code, out, err = self(words, stdin)
        assert code == 0, err
        return out
