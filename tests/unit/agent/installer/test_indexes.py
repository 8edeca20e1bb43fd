"""Settings of pip as uv takes them, and indexes that do not answer."""

import ast
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from trainyard_agent.installer.indexes import Indexes, of_pip, parse
from trainyard_agent.installer.output import Refused
from trainyard_agent.installer.tools import no_answer

_DEFAULT = "https://uv.example/simple"


def test_settings_of_pip_are_variables_of_uv(tmp_path: Path) -> None:
    variables = {"HOME": str(tmp_path / "home"), "XDG_CONFIG_DIRS": str(tmp_path)}
    files = {
        "pip/pip.conf": """
            [global]
            index-url = https://u:p@mirror.example/simple
            extra-index-url =
              https://one.example/simple
              file:///srv/two/simple
            timeout = 15
            Find_Links = /srv/wheels
            [install]
            find-links = /srv/others
            pre = true
            """,
        "home/.config/pip/pip.conf": """
            [global]
            constraint = /etc/constraints.txt
            cert = /etc/ca.pem
            find-links = /srv/mine
            [user]
            index-url = https://nobody.example
            """,
    }
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(textwrap.dedent(content))
    found = of_pip({**variables, "PIP_TRUSTED_HOST": "one.example two.example", "PIP_TIMEOUT": "60"})
    assert found.variables({"UV_INDEX": "https://three.example", "SSL_CERT_FILE": "/its/own.pem"}) == {
        "UV_DEFAULT_INDEX": "https://u:p@mirror.example/simple",
        "UV_INDEX": "https://one.example/simple file:///srv/two/simple https://three.example",
        "UV_FIND_LINKS": "/srv/others",
        "UV_CONSTRAINT": "/etc/constraints.txt",
        "UV_INSECURE_HOST": "one.example two.example",
        "UV_HTTP_TIMEOUT": "60",
        "UV_PRERELEASE": "allow",
    }
    assert found.shown().startswith("https://mirror.example/simple, https://one.example/simple, ")
    assert not found.none
    own = tmp_path / "own.conf"
    own.write_text("[global]\nindex-url = https://own.example\n")
    assert of_pip({**variables, "PIP_CONFIG_FILE": str(own)}).constraints == []
    assert of_pip({**variables, "PIP_CONFIG_FILE": os.devnull}) == Indexes()
    only = {**variables, "PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/a /b"}
    assert of_pip(only).shown() == "/a, /b"
    own.write_text("index-url = https://own.example\n")
    with pytest.raises(Refused, match=r"own\.conf cannot be read: File contains no section headers"):
        of_pip({**variables, "PIP_CONFIG_FILE": str(own)})


def test_settings_are_those_that_pip_says_it_has(tmp_path: Path) -> None:
    (tmp_path / "pip.conf").write_text("[global]\nindex-url=https://a.example\n[install]\nno_index=true\npre=false\n")
    variables = {**os.environ, "PIP_CONFIG_FILE": str(tmp_path / "pip.conf"), "PIP_FIND_LINKS": "/srv/wheels"}
    listed = [sys.executable, "-m", "pip", "config", "list", "--disable-pip-version-check"]
    done = subprocess.run(listed, env=variables, capture_output=True, text=True, check=True)
    settings: dict[str, str] = {}
    for section in ("global", "install", ":env:"):
        lines = (line.partition("=") for line in done.stdout.splitlines() if line.startswith(f"{section}."))
        settings.update((key.rpartition(".")[2], ast.literal_eval(value)) for key, _, value in lines)
    assert of_pip(variables) == parse(settings)


def test_index_that_does_not_answer_leaves_the_others() -> None:
    several = Indexes(default="https://a.example/simple", extra=["https://u:p@b.example/simple"])
    cases: dict[str, tuple[str, str, list[str]]] = {
        "https://b.example/simple/six/": ("https://b.example/simple", "https://a.example/simple", []),
        "https://a.example/simple/six/": ("https://a.example/simple", "https://u:p@b.example/simple", []),
    }
    wrong = []
    for url, (gone, default, extra) in cases.items():
        found = several.without(url, _DEFAULT)
        if found is None or (found[0], found[1].default, found[1].extra) != (gone, default, extra):
            wrong.append((url, found))
    assert not wrong
    assert several.without("https://files.example/six.whl", _DEFAULT) is None
    assert Indexes().without(f"{_DEFAULT}/six/", _DEFAULT) is None
    alone = Indexes(links=["/srv/wheels"]).without(f"{_DEFAULT}/six/", _DEFAULT)
    assert alone is not None
    assert alone[1].none


URL = "http://10.0.0.1:8080/simple/x/"
UV = "error: Request failed after 3 retries in 4.8s\n  cause: Failed to fetch: " + URL
PIP = "WARNING: Retrying (Retry(total=0, connect=None, read=None)) after connection broken by "

OUTPUTS = {
    f"{UV}\n  cause: HTTP status server error (503 Service Unavailable) for url ({URL})\n": "503 Service Unavailable",
    f"{UV}\n  cause: HTTP status client error (429 Too Many Requests) for url ({URL})\n": "429 Too Many Requests",
    f"{UV}\n  cause: HTTP status server error (501 Unsupported method ('HEAD')) for url ({URL})\n": "",
    f"{UV}\n  cause: HTTP status client error (404 Not Found) for url ({URL})\n": "",
    f"{UV}\n  cause: error sending request for url ({URL})\n  cause: client error (Connect)\n"
    "  cause: tcp connect error\n  cause: Connection refused (os error 111)\n": ": Connection refused (os error 111)",
    f"  × Failed to fetch: `{URL}`\n  ├─▶ error sending request for url ({URL})\n  ├─▶ dns error\n"
    "  ╰─▶ failed to lookup address information\n": ": failed to lookup address information",
    f"error: Failed to fetch: {URL}\n  cause: error sending request for url ({URL})\n  cause: client error (Connect)\n"
    "  cause: invalid peer certificate: UnknownIssuer\n": "",
    "error: No solution found when resolving dependencies\n  cause: Because x was not found in the registry": "",
    f"{PIP}'ConnectionResetError(104, 'Connection reset by peer')': /simple/x/\nERROR: None found\n": "reset",
    f"{PIP.replace('total=0', 'total=4')}'ReadTimeoutError()': /simple/x/\nERROR: the build has failed\n": "",
    f"{PIP}'SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] ...'))': /simple/x/\n": "",
    "  RuntimeError: connection refused by the licence server of setup.py\n": "",
}


def test_output_of_an_installation_names_an_index_that_did_not_answer() -> None:
    found = {output: no_answer(output) for output in OUTPUTS}
    wrong = [(output, found[output]) for output, words in OUTPUTS.items() if not _fits(found[output], words)]
    assert wrong == []


def _fits(found: str, words: str) -> bool:
    return words in found if words else found == ""
