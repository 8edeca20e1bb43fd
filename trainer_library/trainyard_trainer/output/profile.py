"""Traces of JAX's profiler, of some steps of the chief: job-dir/logs/train/plugins/profile, where TensorBoard looks.

`--profile 20-29` traces these steps; SIGUSR2 traces the next NEXT_STEPS. A trace is a folder: the .xplane.pb for
TensorBoard's profile plugin and XProf, the .trace.json.gz for https://ui.perfetto.dev.
"""

import signal
import tempfile
from types import FrameType

import jax

from trainyard_trainer.output.summaries import Summaries

NEXT_STEPS = 10


class StepProfiler:
    """Starts and ends traces between steps."""

    def __init__(self, summaries: Summaries, steps: tuple[int, int] | None, enabled: bool) -> None:
        """`enabled`: of the chief; in other processes SIGUSR2 has no effect."""
        self._summaries = summaries
        self._steps = steps if enabled else None
        self._requested = False
        self._tracing: tempfile.TemporaryDirectory[str] | None = None
        if hasattr(signal, "SIGUSR2"):
            signal.signal(signal.SIGUSR2, self._on_signal if enabled else signal.SIG_IGN)

    def before(self, step: int) -> None:
        """Start a trace if this step, which is not yet dispatched, is its first."""
        if self._requested and self._steps is None:
            self._requested, self._steps = False, (step, step + NEXT_STEPS - 1)
        if self._steps is not None and self._tracing is None and self._steps[0] <= step <= self._steps[1]:
            self._steps = step, self._steps[1]  # a resumed training may begin within
            self._tracing = tempfile.TemporaryDirectory()
            jax.profiler.start_trace(self._tracing.name)

    def after(self, step: int, computed: object) -> None:
        """End the trace if this step is its last; `computed` is a result of it."""
        if self._steps is not None and step >= self._steps[1]:
            if self._tracing is not None:
                jax.block_until_ready(computed)
            self.close()

    def close(self) -> None:
        """End a trace that is under way; the thread of the summaries saves it."""
        steps, self._steps = self._steps, None
        tracing, self._tracing = self._tracing, None
        if steps is None or tracing is None:
            return
        jax.profiler.stop_trace()
        self._summaries.upload(f"steps-{steps[0]}-{steps[1]}", tracing)

    def _on_signal(self, _signal: int, _frame: FrameType | None) -> None:
        self._requested = True
