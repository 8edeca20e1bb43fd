"""Variables of a job that look like secrets, by name and value: who sees the job sees them."""

import re
from collections.abc import Mapping

_NAMES = re.compile(r"(?:^|_)(?:API_?KEY|KEY|SECRET|TOKEN|PASSWORD|PASSWD|CREDENTIALS?)$", re.I)
_SECRET = re.compile(r"(?=[^/])[\w+/=.~-]{12,}", re.A)
"""A value that may be a key: one long word, no path."""

_KNOWN = re.compile(
    r"(?:hf_|sk-|ghp_|github_pat_|glpat-|xox[abp]-|AKIA|AIza|ya29\.|eyJ[\w-]+\.eyJ)[\w.-]{8,}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY"
)
"""Beginnings of keys: Hugging Face, OpenAI, GitHub, GitLab, Slack, Amazon, Google, JSON web tokens, PEM."""


def hint(env: Mapping[str, str]) -> str:
    """A sentence about the variables that look like secrets; "" without any."""
    names = [name for name, value in env.items() if _looks_secret(name, value)]
    if not names:
        return ""
    first = names[0]
    looks = "looks like a secret" if len(names) == 1 else "look like secrets"
    return (
        f"{', '.join(names)} {looks}, which everybody sees who sees the job. To hide and mask one: trainyard secrets "
        f"set {first}, and --set-secrets {first}={first} in place of the variable."
    )


def _looks_secret(name: str, value: str) -> bool:
    if _KNOWN.match(value):
        return True
    return _NAMES.search(name) is not None and _SECRET.fullmatch(value) is not None
