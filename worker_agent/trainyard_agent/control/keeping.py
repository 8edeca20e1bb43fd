"""Command that keeps a replica for a while after its program has failed. Pure.

A shell starts the program, and waits in its place after its failure: in the same container, pod, task or supervised
process, so that its files and resources stay. Then it ends with the program's code. A stop ends the wait at once.
"""

from collections.abc import Sequence

from trainyard_agent.runtimes.base import KEPT, Keep

SHELL = "/bin/sh"

_STARTS = """\
stopped= child=
end() { stopped=1; [ -z "$child" ] || kill -TERM "$child" 2>/dev/null; }
trap end TERM
"""

_IN_GROUP = """\
"$@"
code=$?
"""
"""The shell waits, and its trap runs after the program."""

_ALONE = """\
"$@" &
child=$!
[ -z "$stopped" ] || kill -TERM "$child" 2>/dev/null
wait "$child"
code=$?
while [ -n "$stopped" ] && kill -0 "$child" 2>/dev/null; do wait "$child"; code=$?; done
child=
"""
"""The signal ends `wait`: the program's own end is waited for."""

_WAITS = """\
case " {ends} " in *" $code "*) ;; *)
  if [ -z "$stopped" ]; then
    echo "The program ended with exit code $code. {says}"
    sleep {seconds} &
    child=$!
    [ -n "$stopped" ] || wait "$child" 2>/dev/null
    kill -TERM "$child" 2>/dev/null
  fi
esac
trap - TERM
[ "$code" -ne 137 ] || kill -KILL $$
exit "$code"
"""
"""The wait, and the program's code. 137 is a kill, as for want of memory: some engines look at the signal."""


def kept(words: Sequence[str], keep: Keep | None, task: str, *, alone: bool) -> tuple[str, ...]:
    """The command `words`, which keeps its replica. `alone`: a stop signals the first process alone, which passes the
    signal on; else it reaches all of its group."""
    if keep is None:
        return tuple(words)
    commands = f"jobs shell {keep.job} {task} opens a shell there; jobs cancel {keep.job} ends it."
    ends = " ".join(map(str, (0, *keep.retried_codes)))
    waits = _WAITS.format(ends=ends, says=f"{KEPT} {keep.seconds} s: {commands}", seconds=keep.seconds)
    return (SHELL, "-c", _STARTS + (_ALONE if alone else _IN_GROUP) + waits, "trainyard", *words)
