"""Placeholders of a tutorial that were not filled in, such as `gcr.io/{path/to/image}:{tag}`. Pure."""

import re

_ANYWHERE = re.compile(
    r"\{[^{}]*\}|<[^<>]*>|\[[^\[\]]*\]"  # {tag}, <PROJECT>, [PROJECT_ID]
    r"|\$\{?\w+\}?|\$\([^()]*\)"  # $PROJECT_ID, which only a shell expands
    r"|\b(?:your|YOUR|Your)[-_ ][\w-]+"
)
_CAPITALS = re.compile(r"\b[A-Z][A-Z0-9]*(?:[_-][A-Z0-9]+)+\b|\b(?:PROJECT|BUCKET|IMAGE|REPOSITORY|TAG)\b")


def in_image(uri: str) -> list[str]:
    """The placeholders in the name of an image. Its repository has no capitals, so words in capitals are some too."""
    repository, _, tag = uri.partition("@")[0].rpartition(":")
    path = repository if repository and "/" not in tag else uri
    return _found(uri, path)


def in_address(address: str) -> list[str]:
    """The placeholders in a path or a gs:// URL, whose bucket has no capitals."""
    bucket = address.removeprefix("gs://").partition("/")[0] if address.startswith("gs://") else ""
    return _found(address, bucket)


def _found(text: str, without_capitals: str) -> list[str]:
    marked = _ANYWHERE.findall(text)
    rest = _ANYWHERE.sub(" ", without_capitals)
    return list(dict.fromkeys([*marked, *_CAPITALS.findall(rest)]))
