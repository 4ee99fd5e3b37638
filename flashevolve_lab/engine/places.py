"""Where a user's code runs: on the engine's loop when it is async, in a daemon thread when it is not.

Owns the thread pool and the bridge between a thread and the loop. A thread cannot be killed: a call that is no longer wanted is
abandoned and its thread dies with the process. One rule a change must keep: nothing of a user's may block the engine's loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import queue
import threading
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from contextvars import ContextVar, copy_context
from typing import Any, Literal

from flashevolve_lab.engine.clock import VirtualLoop
from flashevolve_lab.engine.output import Watch

OWNER: ContextVar[tuple[object, str] | None] = ContextVar("lab_owner", default=None)  # (run, job) whose work is running
WATCH = Watch(lambda: None if (owner := OWNER.get()) is None else owner[0])
MAX_THREADS = 256
Where = Literal["loop", "thread", "own loop"]  # own loop: an async function that calls asyncio.run, in a thread
_NESTED = "cannot be called from a running event loop"


class Places:
    """Runs user functions without blocking the loop. Made and used on the engine's loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads = 0
        self._idle = 0
        self._count = threading.Lock()
        self._outside: Counter[str] = Counter()
        self._known: dict[int, tuple[Callable[..., Any], Where]] = {}
        self._away = 0  # pieces of work that are outside the loop; counted on virtual time only
        self._turns: deque[asyncio.Future[None]] = deque()

    async def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """The function's result, wherever it has to run. Cancelling abandons a thread, it does not stop it."""
        if getattr(function, "quick", False):
            result, failed = _outcome(function, *arguments)
            if failed is not None:
                raise failed
            return result
        where = self._where(function)
        if where == "loop":
            try:
                return await _contained(function(*arguments))
            except RuntimeError as error:
                if _NESTED not in str(error):
                    raise
                self._know(function, "own loop")
                return await self._in_thread(_run_nested, function, *arguments)
        if where == "own loop":
            return await self._in_thread(_run_nested, function, *arguments)
        result = await self._in_thread(function, *arguments)
        return await _contained(result) if inspect.isawaitable(result) else result

    def _where(self, function: Callable[..., Any]) -> Where:
        """Where it has to run; looked up once a function."""
        plain = getattr(function, "__func__", function)
        known = self._known.get(id(plain))
        if known is None or known[0] is not plain:
            return self._know(function, "loop" if _gives_coroutine(function) else "thread")
        return known[1]

    def _know(self, function: Callable[..., Any], where: Where) -> Where:
        """Remember it, a method once for all of its bound copies."""
        plain = getattr(function, "__func__", function)
        self._known[id(plain)] = (plain, where)
        return where

    def held_by_threads(self) -> frozenset[str]:
        """Jobs that have work in a thread just now, which cannot be killed."""
        return frozenset(job for job, count in self._outside.items() if count)

    async def _in_thread(self, function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            await self.left()
        except asyncio.CancelledError:
            self.arrived()
            raise
        done: asyncio.Future[Any] = self._loop.create_future()
        context = copy_context()
        owner = OWNER.get()
        job = owner[1] if owner else ""

        def settle(result: Any, error: Exception | None) -> None:
            self.arrived()
            self._outside[job] -= 1
            if done.done():
                return
            if error is None:
                done.set_result(result)
            else:
                done.set_exception(error)

        def work() -> None:
            outcome = context.run(_outcome, function, *arguments)
            with contextlib.suppress(RuntimeError):  # the loop is gone: nobody wants the result any more
                self._loop.call_soon_threadsafe(self._soon, lambda: settle(*outcome))

        self._outside[job] += 1
        self._submit(work)
        return await done

    async def left(self, *, at_once: bool = False) -> None:
        """Work leaves the loop. Virtual time then stands still, and one piece of work is out at a time, in the order of coming:
        so threads change nothing about the log. Also when cancelled, the work counts as out until `arrived`.
        """
        if not isinstance(self._loop, VirtualLoop):
            return
        if self._away > 0 and not at_once:
            turn: asyncio.Future[None] = self._loop.create_future()
            self._turns.append(turn)
            try:
                await turn
                return
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    raise
                self._go()
                raise
        self._go()

    async def back(self) -> None:
        """A caller outside waits for something on the loop: the opposite of `left`."""
        if isinstance(self._loop, VirtualLoop):
            idle: asyncio.Future[None] = self._loop.create_future()
            self._loop.call_idle(lambda: None if idle.done() else idle.set_result(None))
            await idle
        self.arrived()

    def _soon(self, callback: Callable[[], None]) -> None:
        if isinstance(self._loop, VirtualLoop):
            self._loop.call_idle(callback)
        else:
            callback()

    def arrived(self) -> None:
        """Work is back on the loop (or waits for it): virtual time may go on."""
        if not isinstance(self._loop, VirtualLoop):
            return
        self._away -= 1
        self._loop.release()
        while self._turns and self._away <= 0:
            turn = self._turns.popleft()
            if not turn.done():
                self._go()
                turn.set_result(None)

    def _go(self) -> None:
        assert isinstance(self._loop, VirtualLoop)
        self._away += 1
        self._loop.hold()

    def _submit(self, work: Callable[[], None]) -> None:
        with self._count:
            needs_thread = self._idle == 0 and self._threads < MAX_THREADS
            if needs_thread:
                self._threads += 1
            elif self._idle:
                self._idle -= 1
        self._work.put(work)
        if needs_thread:
            threading.Thread(target=self._serve, name="lab-user-code", daemon=True).start()

    def _serve(self) -> None:
        while (work := self._work.get()) is not None:
            work()
            with self._count:
                self._idle += 1

    def close(self) -> None:
        """Let idle threads end; busy ones end after their work, or with the process."""
        for _ in range(self._threads):
            self._work.put(None)


def _outcome(function: Callable[..., Any], *arguments: Any) -> tuple[Any, Exception | None]:
    """What the function returned or raised; a user's function may raise anything, SystemExit included."""
    try:
        return function(*arguments), None
    except StopIteration as error:  # cannot pass through a future
        return None, RuntimeError(f"raised StopIteration: {error}")
    except BaseException as error:
        return None, error if isinstance(error, Exception) else RuntimeError(f"raised {type(error).__name__}: {words(error)}")


def words(error: BaseException) -> str:
    """What an exception says; a user's own may fail even at that."""
    try:
        return str(error)
    except Exception:
        return "(its text cannot be shown)"


async def _contained(awaited: Awaitable[Any]) -> Any:
    """Its result. What it raises is an Exception, unless this very task is being cancelled."""
    try:
        return await awaited
    except (Exception, GeneratorExit):
        raise
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise RuntimeError("raised CancelledError") from error
    except BaseException as error:  # SystemExit and its like would end the engine's loop
        raise RuntimeError(f"raised {type(error).__name__}: {words(error)}") from error


def _gives_coroutine(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def _run_nested(function: Callable[..., Any], *arguments: Any) -> Any:
    """Run an async function that itself calls ``asyncio.run``: on a loop of its own, made re-entrant by nest-asyncio2."""
    import nest_asyncio2

    loop = asyncio.new_event_loop()
    try:
        nest_asyncio2.apply(loop)
        return loop.run_until_complete(function(*arguments))
    finally:
        loop.close()
