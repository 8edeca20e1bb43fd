"""Build hook of the wheel: the completion of the shells, which click writes. It is click's text, so it is made when a
wheel is, and is not in the repository."""

from pathlib import Path
from typing import Any

from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PROGRAM, VARIABLE = "trainyard", "_TRAINYARD_COMPLETE"

SHELLS: dict[str, type[ShellComplete]] = {
    "share/bash-completion/completions/trainyard": BashComplete,
    # Named as the function that it defines: else zsh runs the whole file at each TAB.
    "share/zsh/site-functions/_trainyard_completion": ZshComplete,
    "share/fish/vendor_completions.d/trainyard.fish": FishComplete,
}
"""The shells by where each looks for its file, below the prefix of an installation."""


class CompletionHook(BuildHookInterface[Any]):
    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 - of the interface
        for path, source in write(Path(self.root) / "build").items():
            build_data["shared_data"][str(source)] = path


def write(directory: Path) -> dict[str, Path]:
    """Write the files below a directory. Returns their paths by those of an installation."""
    files = {path: directory / path for path in SHELLS}
    for path, file in files.items():
        shell = SHELLS[path](None, {}, PROGRAM, VARIABLE)  # type: ignore[arg-type]  # no command: for the script alone
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text((shell.source_template % shell.source_vars()).strip() + "\n", encoding="utf-8")
    return files
