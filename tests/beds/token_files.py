"""Token files as servers and agents take them: long enough, and for nobody else."""

from pathlib import Path


def write_token(path: Path, token: str) -> Path:
    path.touch(0o600)
    path.chmod(0o600)
    path.write_text(f"{token}\n")
    return path


def long_token(name: str) -> str:
    return f"{name}-token-of-a-test-{name}"
