"""`trainyard shell-init`: shell code that makes `jobs submit ...` run trainyard.

`jobs` is a builtin of every shell. The function defined here passes our subcommands, -h and flags such as --help to the
program, and everything else (`jobs`, `jobs -l`, `jobs %1`) to the builtin. The subcommands come from the command tree.
Another word, with which the builtin can do nothing, goes to the program: it is most likely a mistyped subcommand. The
builtin of fish has long flags of its own, and keeps them.
"""

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from trainyard_cli.output.text.safe import echo
from trainyard_cli.settings import COMPLETION_VARIABLE

SHELLS = ("bash", "zsh", "fish", "dash", "sh")

_POSIX = """\
unalias jobs 2>/dev/null || :
jobs() {{
    case "${{1-}}" in
        -h|--?*|help|{pattern}) {program} jobs "$@" ;;
        [A-Za-z_]*) command jobs "$@" 2>/dev/null || {program} jobs "$@" ;;
        *) command jobs "$@" ;;
    esac
}}
"""

_BASH = """\
unalias jobs 2>/dev/null || :
function jobs {{
    case "${{1-}}" in
        -h|--?*|help|{pattern}) {program} jobs "$@" ;;
        [A-Za-z_]*) builtin jobs "$@" 2>/dev/null || {program} jobs "$@" ;;
        *) builtin jobs "$@" ;;
    esac
}}
_trainyard_completion() {{
    local IFS=$'\\n' words="${{COMP_WORDS[*]}}" cword=$COMP_CWORD line type value
    if [[ "${{COMP_WORDS[0]}}" == jobs ]]; then
        words="trainyard${{IFS}}$words" cword=$((cword + 1))
    fi
    COMPREPLY=()
    while IFS= read -r line; do
        type="${{line%%,*}}" value="${{line#*,}}"
        case "$type" in
            dir) compopt -o dirnames 2>/dev/null ;;
            file) compopt -o default 2>/dev/null ;;
            plain) COMPREPLY+=("$value") ;;
        esac
    done < <(env COMP_WORDS="$words" COMP_CWORD="$cword" {variable}=bash_complete {program} 2>/dev/null)
    return 0
}}
if [[ $- == *i* || -n "${{TRAINYARD_COMPLETE_ALWAYS-}}" ]]; then
    complete -o nosort -F _trainyard_completion trainyard jobs 2>/dev/null ||
        complete -F _trainyard_completion trainyard jobs || :
fi
"""

_ZSH = """\
unalias jobs 2>/dev/null || :
function jobs {{
    case "${{1-}}" in
        (-h|--?*|help|{pattern}) {program} jobs "$@" ;;
        ([A-Za-z_]*) builtin jobs "$@" 2>/dev/null || {program} jobs "$@" ;;
        (*) builtin jobs "$@" ;;
    esac
}}
function _trainyard_completion {{
    local -a plain described response
    local all="${{words[*]}}" cword=$((CURRENT - 1)) type key description
    if [[ "${{words[1]}}" == jobs ]]; then
        all="trainyard $all" cword=$((cword + 1))
    fi
    response=("${{(@f)$(env COMP_WORDS="$all" COMP_CWORD="$cword" {variable}=zsh_complete {program} 2>/dev/null)}}")
    for type key description in ${{response}}; do
        case "$type" in
            (plain) if [[ "$description" == _ ]]; then plain+=("$key"); else described+=("$key:$description"); fi ;;
            (dir) _path_files -/ ;;
            (file) _path_files -f ;;
        esac
    done
    if (( ${{#described}} )); then _describe -V unsorted described -U; fi
    if (( ${{#plain}} )); then compadd -U -V unsorted -a plain; fi
    return 0
}}
if [[ -o interactive ]]; then
    (( ${{+functions[compdef]}} )) || {{ autoload -Uz compinit && compinit -u }}
    compdef _trainyard_completion trainyard jobs
fi
"""

_FISH = """\
functions --erase jobs
function jobs --description 'Trainyard jobs, and the jobs of this shell'
    switch "$argv[1]"
        case '-h' '--help' help {verbs}
            {program} jobs $argv
        case '*'
            if string match --quiet --regex '^[A-Za-z_]' -- "$argv[1]"
                builtin jobs $argv 2>/dev/null; or {program} jobs $argv
            else
                builtin jobs $argv
            end
    end
end
function _trainyard_completion
    set -l line (commandline -cp | string collect)
    if string match --quiet --regex '^\\s*jobs(\\s|$)' -- $line
        set line "trainyard $line"
    end
    set -l word (commandline -t | string collect)
    for completion in (env {variable}=fish_complete COMP_WORDS=$line COMP_CWORD=$word {program} 2>/dev/null)
        set -l item (string split --max 1 , -- $completion)
        switch $item[1]
            case dir
                __fish_complete_directories $item[2]
            case file
                __fish_complete_path $item[2]
            case plain
                echo $item[2]
        end
    end
end
complete --command trainyard --erase
complete --command jobs --erase
complete --no-files --command trainyard --arguments '(_trainyard_completion)'
complete --no-files --command jobs --arguments '(_trainyard_completion)'
"""

_TEMPLATES = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH, "dash": _POSIX, "sh": _POSIX}


@click.command()
@click.argument("shell", required=False, type=click.Choice(SHELLS))
@click.pass_context
def shell_init(context: click.Context, shell: str | None) -> None:
    """Print shell code that defines `jobs`. Usage: eval "$(trainyard shell-init)"."""
    root = context.find_root().command
    assert isinstance(root, click.Group)
    jobs = root.commands["jobs"]
    assert isinstance(jobs, click.Group)
    verbs = [name for name, command in jobs.commands.items() if not command.hidden]
    echo(script(shell or guess_shell(), this_program(), verbs, COMPLETION_VARIABLE), nl=False)


def script(shell: str, program: Sequence[str], verbs: Sequence[str], variable: str) -> str:
    """The code to evaluate. `program` runs `trainyard`; `variable` is click's completion variable."""
    quote = _fish_quote if shell == "fish" else shlex.quote
    return _TEMPLATES[shell].format(
        program=" ".join(map(quote, program)), pattern="|".join(verbs), verbs=" ".join(verbs), variable=variable
    )


def guess_shell(environment: Mapping[str, str] = os.environ, parent: str | None = None) -> str:
    """The parent process's shell (`parent` overrides its name), else a known login shell, else `sh`."""
    for name in (_parent_name() if parent is None else parent, Path(environment.get("SHELL", "")).name):
        if name.removeprefix("-") in SHELLS:
            return name.removeprefix("-")
    return "sh"


def _parent_name() -> str:
    try:
        return Path(f"/proc/{os.getppid()}/comm").read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def this_program(argv0: str = sys.argv[0]) -> list[str]:
    """The command that runs this program from any directory, and no file of that: its absolute path, or its module."""
    path = Path(argv0)
    if path.name == "trainyard" and path.is_file() and os.access(path, os.X_OK):
        return [str(path.absolute())]
    return [sys.executable, "-P", "-m", "trainyard_cli"]


def _fish_quote(word: str) -> str:
    return "'" + word.replace("\\", "\\\\").replace("'", "\\'") + "'"
