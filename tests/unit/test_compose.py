"""docker-compose.yml without an engine: what it starts can be started, and nothing of it is open to the world."""

import re
import runpy
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

import trainyard_protocol
from beds.open_engines import agent_settings
from trainyard_agent.engines.docker.settings import DockerSettings
from trainyard_server import main as server_main
from trainyard_storage import emulator
from unit.cli.scripted_server import ok, scripted_server

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docker-compose.yml").read_text()
EXAMPLE: dict[str, str] = dict(
    line.partition("=")[::2]
    for line in (ROOT / ".env.example").read_text().splitlines()
    if line and not line.startswith("#")
)
BUILT_IN = {"COMPOSE_PROFILES", "COMPOSE_FILE"}
ONE_SHOT = {"tokens"}
_VARIABLE = re.compile(r"\$\{(\w+)(?:(:[-+])((?:[^{}]|\$\{\w+\})*))?\}")


def interpolated(text: str, variables: Mapping[str, str]) -> str:
    """Interpolate as Compose does, of what the file uses: ${A}, ${A:-default}, ${A:+replacement}."""

    def value(match: re.Match[str]) -> str:
        given, how, other = variables.get(match[1], ""), match[2], match[3] or ""
        if how == ":-":
            return given or interpolated(other, variables)
        if how == ":+":
            return interpolated(other, variables) if given else ""
        return given

    return _VARIABLE.sub(value, text)


def compose(**variables: str) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(interpolated(TEXT, variables))
    return loaded


SERVICES: dict[str, dict[str, Any]] = compose()["services"]


def dependencies(name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    yield from SERVICES[name].get("depends_on", {}).items()


def test_example_environment_says_the_defaults_of_every_variable() -> None:
    used = {match[1]: match[3] for match in _VARIABLE.finditer(TEXT) if match[2] != ":+"}
    used |= dict.fromkeys(re.findall(r"\$\{(\w+):\+", TEXT), "")
    assert set(EXAMPLE) - BUILT_IN == set(used)
    assert {name: EXAMPLE[name] for name in used} == used
    assert compose(**EXAMPLE) == compose()


def test_every_service_that_stays_is_restarted_and_has_a_health_check() -> None:
    for name, service in SERVICES.items():
        if name in ONE_SHOT:
            assert "restart" not in service
            assert service["healthcheck"] == {"disable": True}
        else:
            assert service["restart"] == "unless-stopped"
            is_of_image = service["image"] == SERVICES["server"]["image"] and service["environment"]["HEALTH_ADDRESS"]
            assert is_of_image or service["healthcheck"]["test"][0] == "CMD", name


def test_dependencies_are_there_and_can_be_met() -> None:
    for name in SERVICES:
        for other, how in dependencies(name):
            finished = how["condition"] == "service_completed_successfully"
            assert finished == (other in ONE_SHOT)
            assert how.get("required", True) == ("profiles" not in SERVICES[other])
    waited_for = {other for name in SERVICES for other, _ in dependencies(name)}
    assert waited_for >= ONE_SHOT, "`docker compose up --wait` would take its end for a failure"


def test_no_port_is_open_to_the_world() -> None:
    assert not any("ports" in service for service in SERVICES.values())
    assert options_of_server()["host"] == ["127.0.0.1"]
    assert options_of_storage()["for_containers"] == "172.17.0.1"  # besides, it listens on loopback
    assert SERVICES["postgres"]["network_mode"] == "none"


def test_no_service_is_privileged_and_only_the_agent_has_the_engine() -> None:
    for name, service in SERVICES.items():
        assert "privileged" not in service
        assert "no-new-privileges:true" in service["security_opt"]
        assert any("docker.sock" in volume for volume in service.get("volumes", [])) == (name == "agent")


def test_volumes_are_declared() -> None:
    named = {
        volume.split(":")[0]
        for service in SERVICES.values()
        for volume in service.get("volumes", [])
        if not volume.startswith("/")
    }
    assert named == set(compose()["volumes"])


def options_of_server(**variables: str) -> dict[str, Any]:
    words = shlex.split(compose(**variables)["services"]["server"]["command"])
    return vars(server_main.READER.parser().parse_args(words))


def options_of_storage(**variables: str) -> dict[str, Any]:
    words = shlex.split(compose(**variables)["services"]["storage"]["command"])
    return vars(emulator._parser().parse_args(words))


def test_command_of_the_server_is_one_that_it_takes() -> None:
    given = options_of_server(SERVER_PORT="9000")
    assert given["port"] == ["9000"]
    assert given["data_dir"] == ["/data"]
    assert given["token_file"] == ["admin=/tokens/admin", "agent=/tokens/agent"]
    more = options_of_server(TOKEN_OPTIONS="--token-file submitter:alice=/tokens/alice")
    assert more["token_file"] == [*given["token_file"], "submitter:alice=/tokens/alice"]
    assert options_of_server(ALLOWED_HOST="trains.example")["allowed_host"] == ["trains.example"]


def test_database_is_the_one_that_is_started_unless_another_is_named() -> None:
    own = "postgresql+psycopg://trainyard@/trainyard?host=/run/postgresql"
    assert options_of_server()["database"] == [own]
    assert dict(dependencies("server"))["postgres"] == {"condition": "service_healthy"}
    assert options_of_server(DATABASE="postgresql+psycopg://u@h/d")["database"] == ["postgresql+psycopg://u@h/d"]


def test_command_of_the_agent_is_one_that_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:4443/s3cret")  # by its entrypoint
    agent = compose(TRAINYARD_DIR="/srv/trainyard")["services"]["agent"]
    given = agent_settings(*shlex.split(agent["command"]))
    assert given.runtime == "docker"
    assert given.replica_env == (("STORAGE_EMULATOR_HOST", "http://127.0.0.1:4443/s3cret"),)
    assert "/srv/trainyard:/srv/trainyard" in agent["volumes"]  # containers beside it mount from there
    for directory in (given.state_dir, *given.of(DockerSettings).job_dir_root):
        assert directory.is_relative_to("/srv/trainyard")
    assert agent["pid"] == "host"


def test_addresses_of_the_storage_are_one() -> None:
    variables = {"BRIDGE_ADDRESS": "10.0.0.1", "STORAGE_PORT": "5000"}
    given, services = options_of_storage(**variables), compose(**variables)["services"]
    assert (given["port"], given["for_containers"]) == (5000, "10.0.0.1")
    assert services["storage"]["environment"] == {"HEALTH_ADDRESS": "tcp://10.0.0.1:5000"}
    for name in ("server", "agent"):
        script = services[name]["entrypoint"][2]
        assert f"STORAGE_EMULATOR_HOST=http://127.0.0.1:5000/$$(cat {given['secret_file']})" in script


def test_each_image_of_ours_is_built_once_from_a_target_that_is_there() -> None:
    dockerfile = (ROOT / "docker/Dockerfile").read_text()
    targets = set(re.findall(r"^FROM .* AS (\w+)$", dockerfile, re.MULTILINE))
    release = ".".join(trainyard_protocol.__version__.split(".")[:2])
    ours = [service for service in SERVICES.values() if service["image"].startswith("trainyard/")]
    built = {service["image"]: service["build"]["target"] for service in ours if "build" in service}
    assert sorted(built.values()) == ["agent", "server"]
    assert all(target in targets and image == f"trainyard/{target}:{release}" for image, target in built.items())
    assert {service["image"] for service in ours} == built.keys()
    assert all(service["pull_policy"] == "never" for service in ours), "anybody may push an image of that name"


def test_gpus_are_added_to_a_service_that_is_there() -> None:
    assert set(yaml.safe_load((ROOT / "compose/gpu.yml").read_text())["services"]) <= set(SERVICES)


# docker/chores.py


def chores(*words: str) -> int:
    main = runpy.run_path(str(ROOT / "docker/chores.py"))["main"]
    code: int = main(list(words))
    return code


def test_tokens_are_made_once_and_private(tmp_path: Path) -> None:
    assert chores("tokens", str(tmp_path), "admin", "agent") == 0
    admin, agent = (tmp_path / "admin").read_text(), (tmp_path / "agent").read_text()
    assert len(admin.strip()) > 40
    assert admin != agent
    assert {path.name for path in tmp_path.iterdir()} == {"admin", "agent"}
    assert (tmp_path / "admin").stat().st_mode & 0o777 == 0o600
    (tmp_path / "agent").write_text("")  # cut short by a full disk
    assert chores("tokens", str(tmp_path), "admin", "agent") == 0
    assert (tmp_path / "admin").read_text() == admin
    assert (tmp_path / "agent").read_text().strip()


def test_reach_tells_what_answers_and_a_chore_that_is_none_is_wrong_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with scripted_server() as server:
        server.answers = [ok({})]
        assert chores("reach", f"{server.url}/healthz", server.url.replace("http:", "tcp:")) == 0
    socket = f"unix://{tmp_path}/docker.sock"
    for away in ("http://127.0.0.1:1/healthz", "tcp://127.0.0.1:1", "tcp://127.0.0.1", socket):
        assert chores("reach", away) == 1, away
    assert "docker.sock: " in capsys.readouterr().err
    assert chores("nothing") == 2
    assert "chores.py CHORE" in capsys.readouterr().err
