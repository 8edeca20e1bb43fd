"""Tars as a browser sends them: uncompressed, of plain files."""

import io
import tarfile
from collections.abc import Mapping


def tar_of(files: Mapping[str, bytes], *members: tarfile.TarInfo) -> bytes:
    """A tar of files by their names, and of `members` without content behind them."""
    body = io.BytesIO()
    with tarfile.open(fileobj=body, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
        for member in members:
            tar.addfile(member)
    return body.getvalue()
