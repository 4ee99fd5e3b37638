"""The shell: the only room with tasks, threads and time. It runs the loop of the design and decides nothing.

inbox → `decide` → append → apply → `plan` → append → apply → start tasks. Owns the engine's thread, its event loop and the tasks
of running jobs. One rule a change must keep: what is acted upon is in the log first; a failing job is an input, never an
exception through the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

from flashevolve_lab.algorithms.bench import Trouble, Worker
from flashevolve_lab.core import Entry, Event, Rules, RunState, apply, decide, plan
from flashevolve_lab.core import events as ev
from flashevolve_lab.core import inputs as on
from flashevolve_lab.engine.benches import JobBench
from flashevolve_lab.engine.clock import Clock, VirtualLoop
from flashevolve_lab.engine.places import OWNER, WATCH, Places
from flashevolve_lab.errors import BudgetSpent, ModelError, SetupError
from flashevolve_lab.llm import LLM, Gateway, Limits
from flashevolve_lab.tasks import Task

STOP_S = 1.0  # a stop waits this long for what it cancelled


class Log(Protocol):
    """Where entries are appended (see `store.Writer`)."""

    def append(self, entries: Sequence[Entry]) -> None: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...


class Shell:
    """One run, being executed. Made on any thread; everything else happens on its own.

    Args:
        worker: The algorithm bound to its task.
        models: Role → its models.
        log: Where entries go.
        policy: Recorded description → live policy.
        state: The state so far (empty for a new run).
        sample_timeout_s: Seconds of lab time that a program and a metric may take on one example.
        record: Keep every input with its time in ``recorded`` (for replay tests).
    """

    def __init__(
        self,
        *,
        worker: Worker,
        task: Task,
        models: Mapping[str, Sequence[LLM]],
        limits: Limits,
        log: Log,
        policy: Callable[[Any], Any],
        clock: Clock,
        state: RunState | None = None,
        sample_timeout_s: float = 600.0,
        record: bool = False,
    ) -> None:
        self.worker = worker
        self.task = task
        self.state = state or RunState()
        self.rules = Rules(worker, policy)
        self.log = log
        self.clock = clock
        self.sample_timeout_s = sample_timeout_s
        self.recorded: list[tuple[float, list[on.Input]]] | None = [] if record else None
        self.done: Future[None] = Future()
        self.error: BaseException | None = None
        self.loop = clock.loop()
        self.gateway = Gateway(models, limits, lambda *moved: self.post(on.LimitMoved(*moved)))
        self.places = Places(self.loop)
        self._inbox: list[on.Input] = []
        self._wake = asyncio.Event()
        self._change = asyncio.Event()
        self._unwritten: list[Entry] = []
        self._written = asyncio.Event()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._began = 0.0
        self._began_at = 0.0
        self._crash: Exception | None = None
        self.begun = threading.Event()  # set once the first entries are in the log
        self._thread = threading.Thread(target=self._run, name="lab-engine", daemon=True)

    # --- from other threads -----------------------------------------------------------------------------------------------

    def start(self, first: Sequence[on.Input]) -> None:
        """Start the engine's thread with these first inputs."""
        WATCH.begin(self, self._flooded)
        self._inbox += first
        self._thread.start()

    def send(self, given: on.Input) -> None:
        """Hand over an input from any thread; never waits."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: the run has ended
            self.loop.call_soon_threadsafe(self.post, given)

    def stop(self, reason: str) -> None:
        """Stop the run, from any thread; never waits."""
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(lambda: self.post(on.Stop("user", reason, self.places.held_by_threads())))

    def _flooded(self, limit: int) -> None:
        message = f"the program or the metric printed more than {limit:,} characters; what it prints further is not shown"
        self.send(on.Warn("output", message))

    # --- on the engine's loop ---------------------------------------------------------------------------------------------

    def post(self, given: on.Input) -> None:
        """Put an input into the inbox (on the loop's thread)."""
        self._inbox.append(given)
        self._wake.set()

    def now(self, given: on.Input) -> list[Event]:
        """Decide and apply one input at once, without planning; returns its events. Await `written` before acting on them."""
        entries = self._digest([given])
        self._append(entries)
        return [entry.event for entry in entries]

    async def written(self) -> None:
        """Returns when everything decided so far is in the log."""
        if self._unwritten:
            await self._written.wait()

    async def step(self, jobs: int, stage: str) -> int:
        """Let the next jobs start although the run is paused, and wait for them; the log's position before."""
        if self.state.status != "paused":
            raise SetupError(f"step: the run is {self.state.status}, not paused; run.pause() first")
        before = self.state.seq
        self.post(on.Step(jobs, stage))
        await self.change()
        while any(job.stepped for job in self.state.jobs.values()):
            await self.change()
        if self.state.step_jobs:
            self.now(on.Step(0))
        await self.written()
        self.log.flush()
        return before

    async def change(self) -> None:
        """Returns after the next turn that ended something or moved a setting."""
        await self._change.wait()

    def at(self) -> float:
        """Seconds of lab time since the run began."""
        return round(self._began_at + self.loop.time() - self._began, 6)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_until_complete(self._main())
        except BaseException as error:  # our own bug: the log and the handle must say so
            self.error = error
            self._note_crash(error)
        finally:
            self._end()

    async def _main(self) -> None:
        self._began_at, self._began = self.state.at, self.loop.time()
        if isinstance(self.loop, VirtualLoop):
            self.loop.before_blocking = self.log.flush
        while self._crash is None:
            inputs, self._inbox = self._inbox, []
            self._turn(inputs)
            if self.state.status == "stopped":
                break
            if not self._inbox:
                self._wake.clear()
                await self._wake.wait()
        await self.written()
        await self._cancelled()
        if self._crash is not None:
            raise self._crash

    def _turn(self, inputs: list[on.Input]) -> None:
        entries = self._digest(inputs)
        while events := plan(self.state, self.at(), self.rules):
            entries += self._applied(events, self.at())
        self._append(entries)

    def _digest(self, inputs: list[on.Input]) -> list[Entry]:
        at = self.at()
        if self.recorded is not None and inputs:
            self.recorded.append((at, inputs))
        entries: list[Entry] = []
        for given in inputs:
            entries += self._applied(decide(self.state, given, at, self.rules), at)
        return entries

    def _applied(self, events: list[Event], at: float) -> list[Entry]:
        entries = [Entry(self.state.seq + i, at, event) for i, event in enumerate(events, 1)]
        for entry in entries:
            apply(self.state, entry)
        return entries

    def _append(self, entries: list[Entry]) -> None:
        """Queue entries for the log; all of one turn of the loop are written in one transaction, and then acted upon."""
        if entries and not self._unwritten:
            self.loop.call_soon(self._write)
        self._unwritten += entries

    def _write(self) -> None:
        entries, self._unwritten = self._unwritten, []
        try:
            self.log.append(entries)
        except Exception as error:  # disk full, file gone: the run cannot go on, and must say so
            self._crash = error
            self._wake.set()
            return
        for entry in entries:
            self._act(entry.event)
        for event in (self._written, self._change):
            event.set()
            event.clear()

    def _act(self, event: Event) -> None:
        match event:
            case ev.JobStarted(job):
                if job in self.state.jobs:
                    self._tasks[job] = self.loop.create_task(self._work(job), name=f"{event.stage} {job}")
            case ev.JobAbandoned(job) | ev.JobFailed(job):
                if (task := self._tasks.get(job)) is not None:
                    task.cancel()
            case ev.RunStarted() | ev.RunResumed():
                self._arm_deadline()
                self.log.flush()
                self.begun.set()
            case ev.SettingChanged(knob, _, new):
                if knob == "concurrency":
                    self.gateway.resize(int(new))
                elif knob == "budget":
                    self._arm_deadline()
            case _:
                pass

    def _arm_deadline(self) -> None:
        seconds = self.state.budget.get("seconds")
        if seconds is not None:
            self.loop.call_later(max(0.0, seconds - self.at()), self._wake.set)

    async def _work(self, job_id: str) -> None:
        OWNER.set((self, job_id))
        job = self.state.jobs[job_id]
        bench = JobBench(self, job, self.state.items[job.item])
        try:
            self.post(on.JobDone(job_id, dict(await self.worker.work(job.stage, bench))))
        except Trouble as error:
            self.post(on.JobBroke(job_id, error.kind, str(error), error.raw, error.again))
        except BudgetSpent as error:
            self.post(on.JobBroke(job_id, "budget", str(error)))
        except ModelError as error:
            self.post(on.JobBroke(job_id, error.kind, str(error), getattr(error, "raw", "")))
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            message = f"{type(error).__name__}: {error} (at {where.name}, line {where.lineno})"
            self.post(on.JobBroke(job_id, "error", message))
        finally:
            self._tasks.pop(job_id, None)

    async def _cancelled(self) -> None:
        """Cancel what still runs and wait for it, a second at most."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=STOP_S)
        for model in self.gateway.models:
            close = getattr(model, "aclose", None)
            if close is not None:
                with contextlib.suppress(Exception):
                    await asyncio.wait_for(close(), STOP_S)

    def _note_crash(self, error: BaseException) -> None:
        with contextlib.suppress(Exception):
            reason = f"the engine failed: {type(error).__name__}: {error}"
            self.log.append([*self._unwritten, *self._applied([ev.RunStopped("error", reason)], self.at())])

    def _end(self) -> None:
        WATCH.end(self)
        self.places.close()
        with contextlib.suppress(Exception):
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        with contextlib.suppress(Exception):
            self.log.close()
        self.loop.close()
        self.done.set_result(None)
