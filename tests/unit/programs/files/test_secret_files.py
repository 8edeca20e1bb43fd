"""Files that look like secrets, and those that only handle or resemble them."""

import json
from pathlib import Path

from trainyard_programs.files.secret_files import secret_in

BODY = "MIIEowIBAAKCAQEAu1SU1LfVLPHCozMxH2Mo4lgOEePzNm0tRgeLezV6ffAt0gun"
KEY = f"-----BEGIN RSA PRIVATE KEY-----\n{BODY}\n-----END RSA PRIVATE KEY-----\n"
CERTIFICATE = f"-----BEGIN CERTIFICATE-----\n{BODY}\n-----END CERTIFICATE-----\n"
ACCOUNT = json.dumps({"type": "service_account", "project_id": "p", "private_key": KEY, "client_email": "a@b"})
USER = json.dumps({"type": "authorized_user", "client_id": "1", "client_secret": "s", "refresh_token": "1//r"})
KUBE = "apiVersion: v1\nkind: Config\nclusters:\n- name: a\nusers:\n- name: b\n  user:\n    {}\n"

SECRETS = {
    "environment file": {
        ".env": "A=1",
        ".env.local": "",
        "deep/.env.production": "A=1",
        "prod.env": "export OPENAI_API_KEY='sk-1'\n",
        ".envrc": "export AWS_SECRET_ACCESS_KEY=abc\n",
    },
    "private key": {
        "id_rsa": KEY,
        "plain": KEY.replace("RSA ", ""),
        "ec.pem": "a certificate and its key\n" + CERTIFICATE + KEY.replace("RSA", "EC"),
        "server.crt": CERTIFICATE + KEY,
        "encrypted.txt": KEY.replace("RSA", "ENCRYPTED"),
        "old": KEY.replace(BODY, f"Proc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,00\n\n{BODY}"),
        "windows.key": "\ufeff" + KEY.replace("\n", "\r\n"),
        "openssh": KEY.replace("RSA", "OPENSSH"),
        "gpg.asc": KEY.replace("RSA PRIVATE KEY", "PGP PRIVATE KEY BLOCK").replace(BODY, f"\n{BODY}"),
        "exported": f"Bag Attributes\n    localKeyID: 01\nKey Attributes: <No Attributes>\n{KEY}",
        "k.ppk": "PuTTY-User-Key-File-3: ssh-rsa\nEncryption: none\nPublic-Lines: 1\nAAAA\nPrivate-Lines: 1\nAAAA\n",
        "vpn.ovpn": f"client\ndev tun\n<key>\n{KEY}</key>\n",
        "age.txt": "# created: 2024\nAGE-SECRET-KEY-1QQPQYZLWCUZDHXZCZ0DNYLQNC5J8NTUYJ2PS\n",
        "jwk.json": json.dumps({"kty": "EC", "crv": "P-256", "d": "jpsQnnGQmL-YBIffH1136cspYG6-0iY7X1fCE9-E9LI"}),
    },
    "key of a service account": {"credentials.json": ACCOUNT, "gcp": ACCOUNT},
    "cloud credentials": {
        "application_default_credentials.json": USER,
        "token.json": json.dumps({"token": "ya29.x", "refresh_token": "1//r", "client_id": "1"}),
        "client_secret_1.json": json.dumps({"installed": {"client_id": "1", "client_secret": "s"}}),
        "credentials": "[default]\naws_access_key_id = AKIA\naws_secret_access_key = wJalrXUtnFEMIK7MDENGbPx\n",
        "session.json": json.dumps({"Credentials": {"AccessKeyId": "A", "SecretAccessKey": "B"}}),
        "azure.json": json.dumps({"clientId": "1", "clientSecret": "2", "tenantId": "3"}),
        "principals.json": json.dumps([{"client_id": "1", "client_secret": "2", "tenant": "3"}]),
        ".boto": "[Credentials]\ngs_oauth2_refresh_token = 1//x\n",
        "rclone.conf": "[a]\ntype = s3\nsecret_access_key = abc\n",
    },
    "credentials of a cluster": {
        "kubeconfig": KUBE.replace("{}", "client-key-data: LS0tLS1CRUdJTg=="),
        "config.yaml": KUBE.replace("{}", "token: eyJhbGciOi"),
    },
    "credentials of an image registry": {"config.json": json.dumps({"auths": {"example.com": {"auth": "YTpi"}}})},
    "credentials of Kaggle": {"kaggle.json": json.dumps({"username": "a", "key": "b"})},
    "passwords of hosts": {".netrc": "machine api.wandb.ai\n  login user\n  password 0123\n"},
    "credentials of a package index": {
        ".pypirc": "[pypi]\nusername = __token__\npassword = pypi-abc\n",
        ".npmrc": "//example.com/:_authToken=npm_abc\n",
    },
    "credentials of git": {".git-credentials": "https://me:secret@example.com\n"},
    "passwords of a database": {".pgpass": "localhost:5432:db:me:secret\n"},
    "passwords and tokens": {".streamlit/secrets.toml": 'OPENAI_API_KEY = "sk-1"\n'},
    "token": {".huggingface/token": "hf_abcdefghijklmnopqrstuvwxyz\n", "gh.txt": f"ghp_{'a' * 36}"},
}

NO_SECRETS = {
    ".env.example": "API_KEY=1",
    ".env.local.sample": "API_KEY=1",
    ".env.template": "",
    "example.env": "API_KEY=changeme",
    "names.env": "BATCH_SIZE=3\nMODEL=big\n",
    "defaults.env": "TOKEN=a",
    "environment.py": "A = 1",
    "keys.py": f'KEY = """\n{KEY}"""\n',
    "test_tls.sh": f"cat <<EOF\n{KEY}EOF\n",
    "README.md": f"Write your key:\n\n{KEY}",
    "notes.txt": f"The server wants a key such as\n{KEY}",
    "data.jsonl": ACCOUNT,
    "ca.pem": CERTIFICATE,
    "id_rsa.pub": "ssh-rsa AAAAB3NzaC1yc2E= me@host\n",
    "public.pem": KEY.replace("RSA PRIVATE", "PUBLIC"),
    "template.pem": "-----BEGIN PRIVATE KEY-----\n...\n-----END PRIVATE KEY-----\n",
    "federated.json": json.dumps({"type": "external_account", "audience": "a", "credential_source": {"file": "/x"}}),
    "empty.json": json.dumps({"type": "service_account", "private_key": ""}),
    "place.json": json.dumps({"client_id": "1", "client_secret": "${CLIENT_SECRET}"}),
    "annotations.json": json.dumps({"username": "a", "key": "b"}),
    "config.json": json.dumps({"auths": {}, "credsStore": "desktop", "tokenizer": "x", "hidden_size": 1}),
    "tokenizer_config.json": json.dumps({"bos_token": "<s>", "pad_token": "<pad>", "token": "x"}),
    "deployment.yaml": "apiVersion: v1\nkind: ConfigMap\ndata:\n  token: abc\n",
    "skaffold.yaml": "apiVersion: skaffold/v4\nkind: Config\nbuild: {}\n",
    "kubeconfig": KUBE,
    ".npmrc": "//example.com/:_authToken=${NPM_TOKEN}\nengine-strict=true\n",
    ".netrc": "machine example.com login me\n",
    ".pypirc": "[distutils]\nindex-servers = pypi\n",
    ".pgpass": "# nothing\n",
    "config.yaml": "password: null\nlr: 0.1\ntoken_dim: 3\n",
    "credentials": "[default]\nregion = eu\n",
    "bad.json": "{" * 5000,
    "binary": "\0" * 30 + KEY,
    "large.json": ACCOUNT + " " * 70_000,
}


def found(root: Path, name: str, text: str) -> str:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())
    return secret_in(str(path), path.stat())


def test_secrets_are_recognised_and_what_resembles_them_is_not(tmp_path: Path) -> None:
    rows = [(name, text, kind) for kind, files in SECRETS.items() for name, text in files.items()]
    rows += [(name, text, "") for name, text in NO_SECRETS.items()]
    problems = []
    for number, (name, text, kind) in enumerate(rows):
        if (answer := found(tmp_path / str(number), name, text)) != kind:
            problems.append(f"{name} is {answer!r}, not {kind!r}")
    assert not problems, "\n".join(problems)


def test_key_in_utf_16_and_in_a_container_are_recognised(tmp_path: Path) -> None:
    (tmp_path / "a.key").write_bytes(KEY.encode("utf-16"))
    (tmp_path / "a.p12").write_bytes(b"\x30\x82\x0a\x00" + b"\0" * 100)
    (tmp_path / "credentials.db").write_bytes(b"SQLite format 3\0" + b"\0" * 100)
    kinds = [secret_in(str(path), path.stat()) for path in sorted(tmp_path.iterdir())]
    assert kinds == ["private key", "private key", "cloud credentials"]


def test_changed_file_is_read_again(tmp_path: Path) -> None:
    assert found(tmp_path, "file", "harmless text") == ""
    assert found(tmp_path, "file", KEY) == "private key"
