"""Folders of templates and static files: the dashboard's, and those of each capability, whose names begin with its own:
`compare.html` of `experiments` is `experiments/compare.html`."""

from collections.abc import Mapping
from pathlib import Path

_DASHBOARD = Path(__file__).parent
_CAPABILITIES = _DASHBOARD.parent / "capabilities"


def folders(kind: str) -> Mapping[str, Path]:
    """The folders of `templates` or `static` files, by the first part of the files' names; "" is the dashboard's."""
    return {"": _DASHBOARD / kind} | {folder.parent.name: folder for folder in _CAPABILITIES.glob(f"*/{kind}")}
