"""The part of the agent's environment that programs of jobs get."""

from pathlib import Path

from trainyard_agent.host.environment import of_installer, of_replica

SECRETS = {
    "AWS_SECRET_ACCESS_KEY": "a",
    "TRAINYARD_TOKEN": "t",
    "GITHUB_TOKEN": "g",
    "PYTHONPATH": "/p",
    "SSH_AUTH_SOCK": "/s",
}
ALL = {"PATH": "/bin", "LC_ALL": "C", "TZ": "UTC", "https_proxy": "http://proxy", "SSL_CERT_FILE": "/c"}
OWN = {"HOME": "/home/me", "USER": "me"}
PIP = {"PIP_INDEX_URL": "https://index", "CC": "clang"}
CREDENTIALS = {"GOOGLE_APPLICATION_CREDENTIALS": "/key"}
INHERITED = {**SECRETS, **ALL, **OWN, **PIP, **CREDENTIALS}
HOME = Path("/runs/1/work")


def test_programs_of_the_agents_user_get_its_home_and_no_secret() -> None:
    assert of_replica(INHERITED, None, HOME) == {**ALL, **OWN, **CREDENTIALS}
    assert of_installer(INHERITED, None, HOME) == {**ALL, **OWN, **PIP}


def test_programs_of_another_user_get_a_home_of_their_own() -> None:
    own = {"HOME": str(HOME), "USER": "trainyard-7", "LOGNAME": "trainyard-7", "SHELL": "/bin/sh"}
    assert of_replica(INHERITED, 7, HOME) == {**ALL, **own}
    assert of_installer(INHERITED, 7, HOME) == {**ALL, **PIP, **own}
