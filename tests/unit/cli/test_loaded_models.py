"""Models that commands load."""

import os
import subprocess
import sys
from typing import Any

from unit.cli.scripted_server import ScriptedServer, ok


def test_commands_load_the_models_of_their_own_answers_alone(script: ScriptedServer) -> None:
    """Each model that is built costs a command milliseconds; a job's are a hundred."""
    job = {"jobId": "a", "state": "QUEUED", "trainingInput": {}}
    state = {"jobs": {}, "agents": [], "version": "0"}
    rows: dict[str, tuple[dict[str, Any], set[str]]] = {
        "jobs describe a": ({"job": job, "state": "QUEUED"}, {"jobs", "log_views", "metrics", "origin", "usage"}),
        "agents list": (state, {"agents", "cluster", "metrics", "usage", "trainyard_protocol.job.resources"}),
    }
    program = (
        "import sys, trainyard_cli.__main__;"
        "from trainyard_cli.commands import tree; from trainyard_cli.main import run;"
        "run(tree.trainyard, 'trainyard', sys.argv[1:]);"
        "models = ('trainyard_protocol.answers.', 'trainyard_protocol.job.');"
        "print(*[name for name in sys.modules if name.startswith(models)])"
    )
    wrong = {}
    environment = {**os.environ, "TRAINYARD_SERVER": script.url, "TRAINYARD_TOKEN": "secret"}
    for command, (answer, expected) in rows.items():
        script.answers = [ok(answer)]
        words = [sys.executable, "-c", program, *command.split()]
        done = subprocess.run(words, capture_output=True, text=True, check=True, env=environment)
        loaded = {name.removeprefix("trainyard_protocol.answers.") for name in done.stdout.splitlines()[-1].split()}
        if loaded != expected:
            wrong[command] = (loaded, done.stderr)
    assert not wrong
