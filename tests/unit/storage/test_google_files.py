import sqlite3
from configparser import ConfigParser
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

from trainyard_protocol.answers.google import GoogleKey
from trainyard_storage.google_files import GoogleFiles

KEY = GoogleKey(
    number="1",
    key_id="k",
    private_key="secret",
    email="ann@trainyard.localhost",
    token_uri="https://oauth2.trainyard.localhost:8472/token",
    domain="trainyard.localhost:8472",
    ca="authority",
    expires_at=datetime(2027, 1, 1, tzinfo=UTC),
)


def test_gcloud_forgets_its_tokens_of_the_account_and_no_others(tmp_path: Path) -> None:
    """It would use one of a key that is revoked for an hour."""
    gcloud = tmp_path / "gcloud"
    files = GoogleFiles(tmp_path / "google", {"CLOUDSDK_CONFIG": str(gcloud)})
    files.write(KEY, "http://server", "p", local=True)
    database = gcloud / "access_tokens.db"
    with closing(sqlite3.connect(database)) as kept, kept:
        kept.execute("CREATE TABLE access_tokens (account_id TEXT PRIMARY KEY, access_token TEXT)")
        kept.executemany("INSERT INTO access_tokens VALUES (?, 'a')", [(KEY.email,), ("me@example.com",)])
    files.write(KEY, "http://server", "p", local=True)
    with closing(sqlite3.connect(database)) as kept:
        assert kept.execute("SELECT account_id FROM access_tokens").fetchall() == [("me@example.com",)]
    database.write_text("of another release")
    files.write(KEY, "http://server", "p", local=True)
    assert database.read_text() == "of another release"


def test_gcloud_finds_vertex_by_a_name_to_which_it_adds_no_region(tmp_path: Path) -> None:
    """It puts the region before a host that begins with aiplatform: a name that nothing resolves here."""
    files = GoogleFiles(tmp_path / "google", {"CLOUDSDK_CONFIG": str(tmp_path)})
    files.write(KEY, "http://server", "p", local=True)
    settings = ConfigParser()
    settings.read(tmp_path / "configurations" / "config_trainyard")
    assert settings["api_endpoint_overrides"]["aiplatform"] == "https://ml.trainyard.localhost:8472/"
