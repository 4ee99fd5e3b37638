"""The handle of a run: what a notebook touches, whether the run is being executed here, elsewhere, or is finished.

Owns the thread-safe ways to look (always through the log) and to command (always through the inbox). One rule a change must
keep: nothing here waits for the run except `step`, `wait` and ``await run``.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import time
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flashevolve_lab.core import Entry, RunState
from flashevolve_lab.core import inputs as on
from flashevolve_lab.core.events import JobStarted
from flashevolve_lab.errors import RunError, SetupError
from flashevolve_lab.policies import Policies
from flashevolve_lab.runs.budget import Budget, check_prices
from flashevolve_lab.runs.knobs import UNCHANGED, Unchanged, given, recorded
from flashevolve_lab.runs.snapshot import copied
from flashevolve_lab.runs.status import Best, Status, best_of, status_of
from flashevolve_lab.store import Reader

if TYPE_CHECKING:
    import pandas as pd

    from flashevolve_lab.engine import Shell
    from flashevolve_lab.plots import Figures
    from flashevolve_lab.views import Tables
    from flashevolve_lab.widgets import Dashboard, Inspector

POLL_S = 0.2  # how often a run of another process is looked at while one waits for it
_FAILED = ("failures", "error")


class Run:
    """One run. Returned by `start` (being executed in this process) and by `open` (read from its file)."""

    _dashboard: Dashboard | None = None  # made when first shown, see `runs.showing`

    def __init__(self, path: Path, shell: Shell | None = None, policies: Policies | None = None) -> None:
        self.path = path
        self._shell = shell
        self._policies = policies or Policies()
        self._reader = Reader(path)
        self._lock = threading.Lock()
        self._state = RunState()
        self._given_out = False  # somebody has `_state`: further entries are folded into a copy
        self._tables: Tables | None = None
        self._tabled = 0  # entries that the tables have
        self._entries: list[Entry] = []

    # --- looking ----------------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The run's name."""
        return self.path.stem

    @property
    def entries(self) -> list[Entry]:
        """The log so far, oldest first. A copy of the list; the entries are frozen."""
        with self._lock:
            return list(self._read())

    @property
    def state(self) -> RunState:
        """The log so far, folded: the state at this moment. It stays as it is; ask again for what happened since."""
        with self._lock:
            self._read()
            self._given_out = True
            return self._state

    @property
    def status(self) -> Status:
        """State, stop reason, proposals, scores and what was spent, now."""
        with self._lock:
            self._read()
            return status_of(self._state, self.name, self._alive())

    @property
    def best(self) -> Best | None:
        """The committed artifact with the highest mean validation score; None before the seed is scored."""
        with self._lock:
            self._read()
            return best_of(self._state)

    def frame(self, name: str = "jobs") -> pd.DataFrame:
        """A table of the log so far: jobs, calls, artifacts, items, staleness, budget, settings, slots, scores, failures, …"""
        import pandas as pd

        from flashevolve_lab.views import Tables

        with self._lock:
            self._read()
            self._tables = self._tables or Tables()
            self._tables.feed(self._entries[self._tabled :])
            self._tabled = len(self._entries)
            columns = self._tables.columns(name)
        return pd.DataFrame(columns)

    def gepa_result(self) -> Any:
        """The run so far as a ``gepa.GEPAResult`` (or an object of the same fields, where gepa is not installed): candidates, parents,
        scores, ``best_candidate``, ``to_dict()``. Provisional artifacts are not in it.

        Raises:
            SetupError: the seed is not scored yet.
        """
        from flashevolve_lab.runs.exporting import gepa_result

        with self._lock:
            entries = self._read()
            return gepa_result(self._state, entries, str(self.path))

    @property
    def figures(self) -> Figures:
        """Figures of the log so far: ``figures.score()``, ``figures.gantt()``, ``figures.gaps()``, each with ``.export(path)``."""
        from flashevolve_lab.plots import Figures

        return Figures(lambda: self.entries, self.name)

    def __repr__(self) -> str:
        return f"<Run {self.status}>"

    def inspect(self, id: str) -> Inspector:
        """The inspector of an item ("p3"), an artifact ("a5") or a job ("j7"): beside the current version, with its evidence."""
        from flashevolve_lab.runs.showing import inspector

        return inspector(self, id)

    def _ipython_display_(self) -> None:
        from flashevolve_lab.runs.showing import display_run

        display_run(self)

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        from flashevolve_lab.runs.showing import static_bundle

        return static_bundle(self)

    def _read(self) -> list[Entry]:
        fresh = self._reader.entries(after=self._state.seq)
        if fresh and self._given_out:
            self._state, self._given_out = copied(self._state), False
        self._state.apply_all(fresh)
        self._entries += fresh
        return self._entries

    def _alive(self) -> bool:
        return self._reader.being_written if self._shell is None else not self._shell.done.done()

    def close(self) -> None:
        """Close the file: this handle shows no more. The run itself is not touched; `open` makes another handle."""
        with self._lock:
            self._reader.close()

    # --- what live views use (see `widgets.live`) --------------------------------------------------------------------------

    def after(self, seq: int, limit: int = 100_000) -> list[Entry]:
        """Entries numbered above ``seq``, at most ``limit``, straight from the file."""
        with self._lock:
            return self._reader.entries(seq, limit)

    @property
    def growing(self) -> bool:
        """Whether some process is writing the log."""
        return self._alive()

    @property
    def available(self) -> bool:
        """Whether this process executes the run, so that commands reach it."""
        return self._shell is not None and not self._shell.done.done()

    # --- commanding -------------------------------------------------------------------------------------------------------

    def pause(self) -> Run:
        """Start no further job and no further call; what is in flight finishes."""
        self._live().send(on.Pause())
        return self

    def resume(self) -> Run:
        """The opposite of `pause`."""
        self._live().send(on.Continue())
        return self

    def set(
        self,
        *,
        schedule: Any = UNCHANGED,
        staleness: Any = UNCHANGED,
        acceptance: Any = UNCHANGED,
        completion: Any = UNCHANGED,
        workers: Any = UNCHANGED,
        slots: Mapping[str, int] | Unchanged = UNCHANGED,
        concurrency: int | Unchanged = UNCHANGED,
        max_failures: int | Unchanged = UNCHANGED,
        budget: Budget | Unchanged = UNCHANGED,
        why: str = "",
    ) -> Run:
        """Change settings mid-run. Each change is recorded, and governs what starts, or is judged, from then on.

        Args:
            schedule: `Sequential`, `Batched(p, n)`, `Pipelined(depth)` or one of your own.
            staleness: `Full`, `Guarded(max_gap)`, `Reflective` or an object with ``judge(item)``.
            completion: `Complete`, `Speculative` or an object with ``judge(partial)``.
            workers: `Fixed`, `RateBalanced`, `ServerAware` or an object with ``judge(load)``. What the one before had changed of
                the slots is given back.
            acceptance: `Strict`, `Tolerant(margin)`, `Repeated(times)` or an object with ``judge(gate)``.
            slots: Worker slots by stage; a stage that is left out has as many as ``workers`` gives it, by default the
                schedule's depth. No policy changes those that are named here.
            concurrency: Calls in flight at each server; a worker policy may lower it, and raises it no further than this.
            max_failures: Failures in a row, of one kind, that end the run (at least twice the depth).
            budget: All limits anew; never below what is spent or promised.
            why: Kept with the change.

        Raises:
            SetupError: a value that a knob does not accept; nothing was changed.
        """
        shell = self._live()
        knobs = given(
            schedule=schedule,
            staleness=staleness,
            acceptance=acceptance,
            completion=completion,
            workers=workers,
            slots=slots,
            concurrency=concurrency,
            max_failures=max_failures,
            budget=budget,
        )
        if isinstance(budget, Budget) and budget.dollars is not None:
            check_prices(shell.gateway.models)
        shell.send(on.SetKnobs(recorded(knobs, self._policies, shell.worker.graph.names), "user", str(why)))
        return self

    def stop(self, reason: str = "stopped by the user") -> Run:
        """End the run: finished work is kept, the rest is cancelled within a second. Does not wait."""
        if self._shell is None or not self._shell.done.done():  # else it has ended by itself meanwhile
            self._live().stop(str(reason))
        return self

    def judge(self, item: str, action: str, *, reason: str = "decided by hand") -> Run:
        """Accept (whatever the policy says later) or discard an item in flight, by hand; recorded as a person's act.

        Args:
            item: Its id, e.g. ``"p12"``.
            action: ``"accept"`` or ``"discard"``.
            reason: Kept with the verdict.
        """
        if action not in ("accept", "discard"):
            raise SetupError(f"judge(action): expected 'accept' or 'discard'; got {action!r}")
        if item not in self.state.items:
            raise SetupError(
                f"judge(item): {item!r} is not in flight; frame('items') lists all. An ended one: run.inject(its text)"
            )
        self._live().send(on.JudgeByHand(item, action, str(reason)))
        return self

    def inject(self, components: Mapping[str, str] | str, *, parent: str | None = None) -> Run:
        """Let a text of your own enter at the gate, as a child of ``parent`` (an artifact of the pool; by default the best).

        Args:
            components: Component name → text; a plain string when there is one component.
        """
        shell, state = self._live(), self.state
        best = state.pool.best()
        if best is None:
            raise SetupError("inject: the seed is not scored yet, so there is no pool to join; try again in a moment")
        parent = parent or best.id
        if parent not in state.pool.members:
            raise SetupError(f"inject(parent=…): {parent!r} is not in the pool, which has {', '.join(state.pool.members)}")
        names = list(state.artifacts[parent].components)
        given = {names[0]: components} if isinstance(components, str) and len(names) == 1 else components
        if not isinstance(given, Mapping) or set(given) != set(names) or not all(isinstance(t, str) for t in given.values()):
            raise SetupError(
                f"inject(components): expected texts for exactly {', '.join(names)}; got {type(components).__name__}"
            )
        if not any(text.strip() for text in given.values()):
            raise SetupError("inject(components): the text is empty")
        shell.send(on.Inject(parent, dict(given)))
        return self

    def step(self, n: int = 1, *, stage: str | None = None, timeout: float | None = None) -> list[Entry]:
        """While paused: run the ``n`` jobs that would be next (of ``stage``), wait for them, and stay paused.

        Returns:
            The entries they wrote; empty when nothing could start.

        Raises:
            SetupError: the run is not paused, or there is no such stage.
            TimeoutError: they took longer than ``timeout`` seconds; they go on.
        """
        shell = self._live()
        seen = self.state.seq
        stepping = self._stepping(n, stage or "")
        either: list[concurrent.futures.Future[Any]] = [stepping, shell.done]
        try:
            concurrent.futures.wait(either, timeout, concurrent.futures.FIRST_COMPLETED)
        except KeyboardInterrupt:
            shell.send(on.Pause())  # takes back what the step still allows
            raise
        if not stepping.done() and not shell.done.done():
            raise TimeoutError(
                f"the step took longer than {timeout} s; it goes on (run.pause() takes back what has not started)"
            )
        before = stepping.result() if stepping.done() and not stepping.cancelled() else seen  # the run ended meanwhile
        written = [entry for entry in self.entries if entry.seq > before]
        return written if any(isinstance(entry.event, JobStarted) for entry in written) else []

    def step_soon(self, n: int = 1, stage: str = "") -> Run:
        """Like `step`, but returns at once."""
        self._stepping(n, stage)
        return self

    def _stepping(self, n: int, stage: str) -> concurrent.futures.Future[int]:
        """The step, under way."""
        shell = self._live()
        stages = shell.worker.graph.names
        if stage and stage not in stages:
            raise SetupError(f"step(stage=…): there is no stage {stage!r}; the stages are {', '.join(stages)}")
        if not isinstance(n, int) or isinstance(n, bool) or n < 1:
            raise SetupError(f"step(n): expected an integer of at least 1; got {n!r}")
        return asyncio.run_coroutine_threadsafe(shell.step(n, stage), shell.loop)

    def wait(self, timeout: float | None = None) -> Status:
        """Wait until the run has ended, here or in another process, at most ``timeout`` seconds; returns the status either way.

        Raises:
            RunError: it ended by failures; the reason is in the message, and everything finished is kept.
            SetupError: ``timeout`` is no number of seconds.
        """
        if timeout is not None and (not isinstance(timeout, (int, float)) or isinstance(timeout, bool) or timeout != timeout):
            raise SetupError(f"wait(timeout): expected a number of seconds, or None to wait until the end; got {timeout!r}")
        if self._shell is not None:
            concurrent.futures.wait([self._shell.done], timeout)
            return self._ended()
        until = float("inf") if timeout is None else time.monotonic() + timeout
        while self.growing and (left_s := until - time.monotonic()) > 0:
            time.sleep(min(POLL_S, left_s))
        return self._ended()

    def __await__(self) -> Generator[Any, None, Status]:
        return self._awaited().__await__()

    async def _awaited(self) -> Status:
        if self._shell is not None:
            await asyncio.wrap_future(self._shell.done)
        while self.growing:
            await asyncio.sleep(POLL_S)
        return self._ended()

    def _ended(self) -> Status:
        status = self.status
        cause = self._shell.error if self._shell else None
        if status.kind in _FAILED or cause is not None:
            reason = status.reason or f"the log could not be written: {type(cause).__name__}: {cause}"
            raise RunError(f"{reason}. What was finished is kept in {self.path}") from cause
        return status

    def _live(self) -> Shell:
        if self._shell is None:
            how = "steer it where it runs" if self.growing else f"lab.resume({str(self.path)!r}, task=…, llm=…) goes on with it"
            raise SetupError(f"{self.name} is not executed by this process, so it can only be looked at: {how}")
        if self._shell.done.done():
            more = ", budget=<a larger one>" if self.status.kind == "budget" else ""
            again = f"lab.resume({str(self.path)!r}, task=…, llm=…{more}) goes on with it"
            raise SetupError(f"{self.name} has ended ({self.status.reason}): {again}, or start a new run")
        return self._shell
