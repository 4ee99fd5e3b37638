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
from flashevolve_lab.engine.calling import Patience
from flashevolve_lab.engine.clock import Clock, VirtualLoop
from flashevolve_lab.engine.places import OWNER, WATCH, Places, words
from flashevolve_lab.engine.watching import Watching
from flashevolve_lab.errors import BudgetSpent, ModelError, SetupError
from flashevolve_lab.llm import LLM, Gateway, Limits
from flashevolve_lab.tasks import Task

SHOWN = 20_000  # characters of a train example that the log keeps
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
        sample_timeout_s: Seconds of lab time that a program and a metric may take on one example, and that a proposer or a
            patcher may take, model calls not counted.
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
        self.done.set_running_or_notify_cancel()  # whoever waits for it may be cancelled; it may not
        self.error: BaseException | None = None
        self.loop = clock.loop()
        self.gateway = Gateway(models, limits, lambda *moved: self.post(ev.LimitChanged(*moved)))
        self.watching = Watching(self)
        self.places = Places(self.loop)
        self.turns: contextlib.AbstractAsyncContextManager[Any] = (
            asyncio.Semaphore(task.parallel) if task.parallel else contextlib.nullcontext()
        )
        self._inbox: list[on.Input] = []
        self._wake = asyncio.Event()
        self._change = asyncio.Event()
        self._unwritten: list[Entry] = []
        self._written = asyncio.Event()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self.asks: dict[str, set[asyncio.Task[Any]]] = {}  # job → calls that its threads wait for
        self._began = 0.0
        self._began_at = 0.0
        self._crash: BaseException | None = None  # set: nothing is written or acted upon any more
        self._log_failure: Exception | None = None
        self._deadline_s: float | None = None
        self._alarm: asyncio.TimerHandle | None = None
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
        self.send(ev.Warned("output", message))

    # --- on the engine's loop ---------------------------------------------------------------------------------------------

    def post(self, given: on.Input) -> None:
        """Put an input into the inbox (on the loop's thread)."""
        self._inbox.append(given)
        self._wake.set()

    def now(self, given: on.Input) -> list[Event]:
        """Decide and apply one input at once, without planning; returns its events. Await `written` before acting on them."""
        return self._digest([given], self.at())

    async def written(self) -> None:
        """Returns when everything decided so far is in the log."""
        if self._unwritten:
            await self._written.wait()

    async def step(self, jobs: int, stage: str) -> int:
        """Let the next jobs start although the run is paused, and wait for them; the log's position before."""
        if self.state.status != "paused":
            raise SetupError(f"step: the run is {self.state.status}, not paused; run.pause() first")
        before = self.state.seq
        self._turn([on.Step(jobs, stage)])
        while any(job.stepped for job in self.state.jobs.values()):
            await self.change()
        if self.state.step_jobs:
            self.now(on.Step(0))
        await self.written()
        self._flush()
        return before

    def shown(self, example: int) -> str:
        """A train example as the reflection and the inspector show it (its beginning, when it is very long)."""
        try:
            return str(self.task.show(self.task.train[example]))[:SHOWN]
        except Exception as error:
            return f"(it cannot be shown: {type(error).__name__}: {words(error)})"

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
            self.error = self._crash = error
            self._note_crash(error)
        finally:
            self._end()

    async def _main(self) -> None:
        self._began_at, self._began = self.state.at, self.loop.time()
        if isinstance(self.loop, VirtualLoop):
            self.loop.before_blocking = self._flush
        while self._crash is None:
            inputs, self._inbox = self._inbox, []
            self._turn(inputs)
            if self.state.status == "stopped":
                break
            if not self._inbox:
                self._wake.clear()
                await self._wake.wait()
        while self._unwritten and self._crash is None:
            await asyncio.sleep(0)
        if self._crash is not None:
            raise self._crash

    def _turn(self, inputs: list[on.Input]) -> None:
        at = self.at()  # one time for the whole turn, so that recorded inputs decided again give the same events
        self._digest(inputs, at)
        while events := plan(self.state, at, self.rules):
            self._enter(events, at)

    def _digest(self, inputs: list[on.Input], at: float) -> list[Event]:
        """Decide and apply inputs in order, up to one that ends the run; returns their events."""
        if self.recorded is not None and inputs:
            self.recorded.append((at, inputs))
        events: list[Event] = []
        for given in inputs:
            running = self.state.status != "stopped"
            decided = decide(self.state, given, at, self.rules)
            self._enter(decided, at)
            events += decided
            if running and self.state.status == "stopped":
                break
        return events

    def _enter(self, events: list[Event], at: float) -> None:
        """Apply events and queue them for the log: all of one turn of the loop are written in one transaction, then acted upon."""
        if events and not self._unwritten:
            self.loop.call_soon(self._write)
        for event in events:
            entry = Entry(self.state.seq + 1, at, event)
            apply(self.state, entry)
            self._unwritten.append(entry)

    def _write(self) -> None:
        if self._crash is not None:
            return
        entries, self._unwritten = self._unwritten, []
        try:
            self.log.append(entries)
        except Exception as error:  # disk full, file gone: the run cannot go on, and must say so
            self._log_failed(error)
            return
        for entry in entries:
            self._act(entry.event)
        self._arm_deadline()
        self.watching.called()
        for event in (self._written, self._change):
            event.set()
            event.clear()

    def _flush(self) -> None:
        try:
            self.log.flush()
        except Exception as error:
            self._log_failed(error)

    def _log_failed(self, error: Exception) -> None:
        self._crash = self._log_failure = error
        self.loop.call_soon_threadsafe(self._wake.set)  # also from inside the selector

    def _act(self, event: Event) -> None:
        match event:
            case ev.JobStarted(job):
                if job in self.state.jobs:
                    self._tasks[job] = self.loop.create_task(self._work(job), name=f"{event.stage} {job}")
            case ev.JobAbandoned(job) | ev.JobFailed(job) | ev.Proven(job):
                for task in (*filter(None, [self._tasks.get(job)]), *self.asks.get(job, ())):
                    task.cancel()
            case ev.RunStarted() | ev.RunResumed():
                self._flush()
                self.begun.set()
            case ev.SettingChanged(knob, _, new):
                if knob == "concurrency":
                    self.gateway.resize(int(new))
            case _:
                pass

    def _arm_deadline(self) -> None:
        """Wake at the deadline; but not from a pause on virtual time, where nothing else happens and it would be now."""
        state = self.state
        idle = state.status == "paused" and not any(job.stepped for job in state.jobs.values())
        wanted = None if idle and isinstance(self.loop, VirtualLoop) else state.budget.get("seconds")
        if wanted == self._deadline_s:
            return
        self._deadline_s = wanted
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = None if wanted is None else self.loop.call_later(max(0.0, wanted - self.at()), self._wake.set)

    async def _work(self, job_id: str) -> None:
        OWNER.set((self, job_id))
        job = self.state.jobs.get(job_id)
        if job is None:  # ended before its task ran at all
            self._tasks.pop(job_id, None)
            return
        patience = Patience(self.sample_timeout_s)
        bench = JobBench(self, job, self.state.items[job.item], patience)
        try:
            async with patience:
                result = dict(await self.worker.work(job.stage, bench))
            self.post(on.JobDone(job_id, result))
        except Trouble as error:
            self.post(on.JobBroke(job_id, str(error.kind), words(error), str(error.raw), error.again))
        except BudgetSpent as error:
            self.post(on.JobBroke(job_id, "budget", words(error)))
        except ModelError as error:
            self.post(on.JobBroke(job_id, error.kind, words(error), str(getattr(error, "raw", ""))))
        except asyncio.CancelledError:  # cancelled by us: its job has ended, and this is nothing
            self.post(on.JobBroke(job_id, "error", "it cancelled itself"))
            raise
        except TimeoutError as error:
            late = (
                f"{job.stage} took more than {self.sample_timeout_s:g} s beside its model calls"
                if patience.over
                else words(error)
            )
            self.post(on.JobBroke(job_id, "timeout", late))
        except BaseException as error:  # also SystemExit and its like of a user's proposer
            where = traceback.extract_tb(error.__traceback__)[-1]
            message = f"{type(error).__name__}: {words(error)} (at {where.name}, line {where.lineno})"
            self.post(on.JobBroke(job_id, "error", message))
        finally:
            self._tasks.pop(job_id, None)

    async def _cancelled(self) -> None:
        """Cancel what still runs (jobs, calls of threads, steps) and wait for it, a second at most."""
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=STOP_S)
        for model in self.gateway.models:
            close = getattr(model, "aclose", None)
            if close is not None and getattr(model, "per_loop", False):  # only what belongs to this loop (see `llm.LLM`)
                with contextlib.suppress(Exception):
                    await asyncio.wait_for(close(), STOP_S)

    def _note_crash(self, error: BaseException) -> None:
        """End the run in the log; but never after a gap in it: what could not be written leaves a log that a resume can take up."""
        if self._log_failure is not None:
            return
        stop = on.Stop("error", f"the engine failed: {type(error).__name__}: {words(error)}", self.places.held_by_threads())
        with contextlib.suppress(Exception):
            self._enter(decide(self.state, stop, self.at(), self.rules), self.at())
        with contextlib.suppress(Exception):
            self.log.append(self._unwritten)

    def _end(self) -> None:
        WATCH.end(self)
        self.watching.close()
        self.places.close()
        for ending in (self._cancelled, self.loop.shutdown_asyncgens):
            with contextlib.suppress(BaseException):
                self.loop.run_until_complete(ending())
        with contextlib.suppress(Exception):
            self.log.close()
        for model in self.gateway.models:
            with contextlib.suppress(Exception):
                getattr(model, "run_ended", lambda: None)()
        self.loop.close()
        self.begun.set()
        self.done.set_result(None)
