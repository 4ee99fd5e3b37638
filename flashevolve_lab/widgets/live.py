"""Live views: a poller reads the log by cursor a few times a second and feeds every view of a dashboard.

Owns the thread, the cursor and the containment of a failing view. Owns no pixels and no run: it gets a `Source` to read and
`Commands` to hand back, so the same widgets show a running run, a finished one, and one that another process is writing. One rule
a change must keep: the engine never waits for a view, and an error in a view shows in that view and nowhere else.
"""

from __future__ import annotations

import contextlib
import threading
import traceback
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from flashevolve_lab.core import Entry

PERIOD_S = 0.2  # five updates a second
CHUNK = 20_000  # entries read at once


class Source(Protocol):
    """A run's log, as a view reads it."""

    def after(self, seq: int, limit: int) -> Sequence[Entry]:
        """Entries numbered above ``seq``, at most ``limit``."""
        ...

    @property
    def growing(self) -> bool:
        """Whether some process is still writing it."""
        ...


class Commands(Protocol):
    """What a control may order. Each returns at once; what became of it is read back from the log."""

    @property
    def available(self) -> bool:
        """Whether this process executes the run (otherwise every control is shown disabled)."""
        ...

    def pause(self) -> Any: ...

    def resume(self) -> Any: ...

    def step_soon(self, n: int = 1, stage: str = "") -> Any: ...

    def stop(self, reason: str = ...) -> Any: ...

    @property
    def set(self) -> Callable[..., Any]:
        """Changes knobs, named as keywords, and ``why``."""
        ...

    def judge(self, item: str, action: str, *, reason: str = ...) -> Any: ...

    def inject(self, components: Mapping[str, str] | str, *, parent: str | None = None) -> Any: ...


class View(Protocol):
    """A live view."""

    def take(self, entries: Sequence[Entry]) -> None:
        """Further entries of the log, each once and in order (called on the poller's thread).

        Once more without any when nobody writes the log any more: the run has ended, or its process is gone.
        """
        ...

    def fail(self, message: str) -> None:
        """Show that this view has failed; it gets no further entries."""
        ...


class Poller:
    """Feeds views from a source until the run has ended and all was read, or it is closed.

    The first read happens in the constructor, so that a view is drawn with what is there already.
    """

    def __init__(self, source: Source, views: Sequence[View], period_s: float = PERIOD_S) -> None:
        self._source = source
        self._views = list(views)
        self._period_s = period_s
        self._seq = 0
        self._closed = threading.Event()
        self._feeding = threading.Lock()
        self.poll()
        self._thread = threading.Thread(target=_follow, args=(weakref.ref(self),), name="lab-view", daemon=True)
        self._thread.start()

    @property
    def seq(self) -> int:
        """The last entry fed."""
        return self._seq

    def poll(self) -> bool:
        """Feed what is new; whether there may be more later."""
        with self._feeding:
            growing = self._source.growing
            while entries := self._source.after(self._seq, CHUNK):
                self._seq = entries[-1].seq
                self._feed(entries)
            if not growing:
                self._feed([])
            return growing

    def _feed(self, entries: Sequence[Entry]) -> None:
        for view in list(self._views):
            try:
                view.take(entries)
            except Exception as error:  # a view must never harm the others, nor the run
                self._views.remove(view)
                _tell(view, f"this view failed: {_worded(error)}")

    def give_up(self, error: Exception) -> None:
        """The log cannot be read any more: every view shows it, so that none looks as if the run stood still."""
        for view in self._views:
            _tell(view, f"the log could not be read any more, so this shows the run as of entry {self._seq}: {_worded(error)}")

    def close(self) -> None:
        """Stop following."""
        self._closed.set()


def _follow(poller: Callable[[], Poller | None]) -> None:
    """Poll until closed, until the run has ended, or until nobody holds the poller any more."""
    while (alive := poller()) is not None:
        if alive._closed.wait(alive._period_s):
            return
        try:
            if not alive.poll():
                return
        except Exception as error:  # of the source: this thread is its last reader
            alive.give_up(error)
            return
        del alive


def _tell(view: View, message: str) -> None:
    with contextlib.suppress(Exception):  # a view that cannot even say so must not end the others
        view.fail(message)


def _worded(error: Exception) -> str:
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({where.name}, line {where.lineno})"
