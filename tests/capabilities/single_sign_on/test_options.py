"""Settings of single sign-on that cannot be used."""

from pathlib import Path

import pytest

from unit.server.test_main import refused


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--oidc-name-claim", "na\nme"),
        ("--oidc-issuer", "http://accounts.example.com"),
        ("--oidc-issuer", "https://a:b@accounts.example.com"),
        ("--oidc-issuer", "https://["),
        ("--oidc-issuer", "https://accounts.example.com"),  # it needs more
        ("--public-url", "http://t.example.com"),
        ("--public-url", "https://t.example.com/trainyard"),
    ],
)
def test_value_out_of_its_range_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str, value: str
) -> None:
    assert option in refused(capsys, "--data-dir", tmp_path, "--port", 0, option, value)
