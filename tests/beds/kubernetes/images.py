"""Images for containerd, made of tars here: there is no registry in the bed."""

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, BinaryIO

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_PIECE = 1 << 20


@dataclass(frozen=True)
class Image:
    """Layers, lowest first, and how they are run. A layer is a tar of the root directory; it is read from its
    beginning."""

    name: str
    layers: Sequence[BinaryIO]
    config: Mapping[str, object]

    def write(self, to: IO[bytes]) -> None:
        """The archive that `docker save` writes."""
        measured = [_measured(layer) for layer in self.layers]
        config = {
            "architecture": _ARCHITECTURES[os.uname().machine],
            "os": "linux",
            "config": dict(self.config),
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}" for _, digest in measured]},
        }
        names = [f"layer-{number}.tar" for number in range(len(measured))]
        listed = [{"Config": "config.json", "RepoTags": [self.name], "Layers": names}]
        with tarfile.open(fileobj=to, mode="w|", bufsize=_PIECE) as archive:
            for name, content in {"manifest.json": listed, "config.json": config}.items():
                data = json.dumps(content).encode()
                archive.addfile(_entry(name, len(data)), io.BytesIO(data))
            for name, layer, (size, _) in zip(names, self.layers, measured, strict=True):
                layer.seek(0)
                archive.addfile(_entry(name, size), layer)


def one_program(name: str, program: Path, *arguments: str) -> Image:
    """An image of nothing but a static program."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        entry = _entry(program.name, program.stat().st_size)
        entry.mode = 0o755
        with program.open("rb") as content:
            tar.addfile(entry, content)
    return Image(name, [layer], {"Entrypoint": [f"/{program.name}", *arguments]})


def _measured(file: BinaryIO) -> tuple[int, str]:
    file.seek(0)
    digest = hashlib.file_digest(file, "sha256")  # type: ignore[arg-type] # any file that can be read
    return file.seek(0, io.SEEK_END), digest.hexdigest()


def _entry(name: str, size: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.size = size
    return entry
