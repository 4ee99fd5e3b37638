"""What a user's program or metric prints: let through, up to a limit, so that a flood cannot drown a notebook.

While a run is being executed, ``sys.stdout`` and ``sys.stderr`` are watched; anything printed outside a run's own code passes
untouched. One rule a change must keep: a stream is only wrapped while some run needs it, and restored to what it was.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any, TextIO

LIMIT = 20_000  # characters a run's own code may print


class Watch:
    """Counts what the jobs of a run print, and stops passing it on beyond `LIMIT`.

    Args:
        owner: Returns the run (any hashable) on whose behalf the calling code runs, or None outside one.
    """

    def __init__(self, owner: Callable[[], object | None]) -> None:
        self._owner = owner
        self._printed: Counter[object] = Counter()
        self._told: dict[object, Callable[[int], None]] = {}
        self._lock = threading.Lock()
        self._wrappers: dict[
            int, _Watched
        ] = {}  # by stream, kept for ever: another thread may be printing through one just now

    def begin(self, run: object, flooded: Callable[[int], None]) -> None:
        """Watch this run; ``flooded`` is told the limit, once, when it is reached."""
        with self._lock:
            self._told[run] = flooded
            for name in ("stdout", "stderr"):
                stream = getattr(sys, name)
                if not isinstance(stream, _Watched):
                    setattr(sys, name, self._wrapper(stream))

    def _wrapper(self, stream: TextIO) -> _Watched:
        known = self._wrappers.get(id(stream))
        if known is None or known.stream is not stream:
            known = self._wrappers[id(stream)] = _Watched(stream, self)
        return known

    def end(self, run: object) -> None:
        """This run has ended."""
        with self._lock:
            self._told.pop(run, None)
            self._printed.pop(run, None)
            for name in ("stdout", "stderr"):
                stream = getattr(sys, name)
                if not self._told and isinstance(stream, _Watched):
                    setattr(sys, name, stream.stream)

    def passes(self, text: str) -> str:
        """What of a text may be shown."""
        run = self._owner()
        if run is None or run not in self._told:
            return text
        before = self._printed[run]
        self._printed[run] = before + len(text)
        if before < LIMIT <= before + len(text):
            self._told[run](LIMIT)
        return text[: max(0, LIMIT - before)]


class _Watched:
    """A stream that asks a `Watch` before it writes, and otherwise is the stream it wraps."""

    def __init__(self, stream: TextIO, watch: Watch) -> None:
        self.stream = stream
        self._watch = watch

    def write(self, text: str) -> int:
        shown = self._watch.passes(text)
        if shown:
            self.stream.write(shown)
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)
