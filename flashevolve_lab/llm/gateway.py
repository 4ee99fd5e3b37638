"""The gateway: every wait between a job and a model. One limit per server shared by all stages, priorities, deadlines, retries,
and second calls for late ones.

Owns the waiting, the retrying and the hedging; what a server can take is `llm.endpoint`'s, when a call is late `llm.hedging`'s.
Owns no budget: before each call it asks a `Ledger`, which belongs to the run. One rule a change must keep: decide synchronously,
then act; a slot is free again on every exit path, cancellation included.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Protocol

from flashevolve_lab.errors import BadReply, ModelError, RateLimited, SetupError, Transient
from flashevolve_lab.llm.endpoint import Change, Endpoint
from flashevolve_lab.llm.hedging import SHARE, Durations
from flashevolve_lab.llm.seam import LLM, Reply, Request

MAX_PAUSE_S = 300.0  # a server that asks for more is asked again then
LOSER_S = 1.0  # an answer waits this long for the end of the call that lost against it


class Ledger(Protocol):
    """What the gateway asks of the run, for one logical call."""

    async def ready(self) -> None:
        """Returns when calls may be sent at all (not while the run is paused)."""
        ...

    def begin(self, attempt: int, model: LLM, *, hedge: bool = False) -> str | None:
        """Reserve and record one call; its id, or None when it cannot go now. Raises `BudgetSpent` when it never can.

        ``hedge``: a second call of an attempt that is late. It is only an offer: None whatever stands against it, no error.
        """
        ...

    async def recorded(self) -> None:
        """Returns when what `begin` reserved is in the log: nothing is sent before."""
        ...

    async def changed(self) -> None:
        """Returns when something changed that could let `begin` succeed."""
        ...

    def end(self, call: str, outcome: Reply | BaseException) -> None:
        """Record how the call ended."""
        ...

    def draw(self, attempt: int) -> Random:
        """The random stream of the wait after this attempt."""
        ...


@dataclass(frozen=True, slots=True)
class Limits:
    """How the gateway calls.

    Args:
        concurrency: Calls in flight at each server over all stages, ≥ 1. It is lowered for a while when the server answers 429
            or misses deadlines, and rises again by itself; every change is in the log.
        deadline_s: Seconds a call may take.
        retries: Further attempts after a rate limit, a timeout, a broken connection, a 5xx or a malformed reply.
        backoff_s: Mean wait before the first retry; doubles each time, with jitter, up to a minute.
        hedge: None (the default): off. A quantile, 0.5 ≤ q < 1, e.g. 0.95: an attempt in service for longer than this quantile
            of its role's last 200 durations is late, and the same is asked a second time. The first answer counts, the other
            call is cancelled, and charged as reserved like every call whose end is unknown: hedging buys time with tokens, and
            only where slowness is the server's: an answer that is long at temperature 0 is as long the second time.
            Bounds: never before 20 durations are known nor before twice their median, at the latest after ten; one hedge an
            attempt; at most 5% of a server's limit at once (at least 1); only into a slot that is free and that nobody waits
            for, because on a saturated server a second call makes every other one later, so more of them late, so more hedges.
            The gateway sees its own limit only: set ``concurrency`` to what the server really serves at once, or calls that
            wait inside the server are taken for late ones. No room in the budget for both, or a pause: no hedge.
    """

    concurrency: int = 64
    deadline_s: float = 120.0
    retries: int = 4
    backoff_s: float = 0.5
    hedge: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.concurrency, int) or isinstance(self.concurrency, bool) or self.concurrency < 1:
            raise SetupError(f"Limits(concurrency=…): expected an integer of at least 1; got {self.concurrency!r}")
        if not isinstance(self.retries, int) or self.retries < 0:
            raise SetupError(f"Limits(retries=…): expected an integer of at least 0; got {self.retries!r}")
        for name in ("deadline_s", "backoff_s"):
            value = getattr(self, name)
            if not isinstance(value, (int, float)) or not value > 0:
                raise SetupError(f"Limits({name}=…): expected a number of seconds above 0; got {value!r}")
        if self.hedge is not None and not (isinstance(self.hedge, float) and 0.5 <= self.hedge < 1.0):
            raise SetupError(
                f"Limits(hedge=…): expected a quantile from 0.5 to below 1, e.g. 0.95, or None for no hedging; got {self.hedge!r}"
            )


@dataclass(frozen=True, slots=True)
class Line:
    """A model of a role, and the server it stands on (which several models may share)."""

    model: LLM
    endpoint: Endpoint


@dataclass(slots=True, eq=False)
class _Race:
    """An attempt that may get a second call.

    ``beaten`` is the scope of the first call: it expires when the second is answered before it.
    """

    request: Request
    ledger: Ledger
    attempt: int
    began: float
    beaten: asyncio.Timeout
    late_s: float | None = None  # seconds after which it is late
    alarm: asyncio.TimerHandle | None = None
    second: asyncio.Task[Reply] | None = None
    sent: bool = False  # whether the second's task has run at all: a task cancelled before that runs no code of its own


class Gateway:
    """Sends requests to the models of a run. Lives on one event loop.

    Args:
        models: Role ("task", "reflection") → its models; a call goes to the one whose server has the most room.
        limits: How to call.
        changed: Told when a server's effective limit moves, or it is given a pause (name, old, new, why).
    """

    def __init__(self, models: Mapping[str, Sequence[LLM]], limits: Limits, changed: Change | None = None) -> None:
        self.limits = limits
        self.endpoints: dict[object, Endpoint] = {}
        told = changed or (lambda name, old, new, why: None)
        self.lines = {role: tuple(self._line(model, told) for model in of_role) for role, of_role in models.items()}
        self._waiting: dict[str, list[tuple[float, int, asyncio.Future[Line]]]] = {role: [] for role in models}
        self._arrivals = itertools.count()
        self._alarm: asyncio.TimerHandle | None = None
        self._durations = {role: Durations() for role in models}
        self._late: list[_Race] = []  # attempts that are late and have had no second call, the longest late first
        self._seconds: set[asyncio.Task[Reply]] = set()  # keeps them alive, beyond their attempt where they end slowly

    def _line(self, model: LLM, told: Change) -> Line:
        facts = model.describe()
        key = facts.get("base_url") or id(model)
        if key not in self.endpoints:
            name, taken = str(facts.get("base_url") or facts.get("kind")), [e.name for e in self.endpoints.values()]
            unique = name if name not in taken else f"{name} ({len(taken) + 1})"
            self.endpoints[key] = Endpoint(unique, self.limits.concurrency, told)
        return Line(model, self.endpoints[key])

    @property
    def models(self) -> list[LLM]:
        """Every model, once."""
        return list({id(line.model): line.model for lines in self.lines.values() for line in lines}.values())

    @property
    def in_flight(self) -> int:
        """Calls that hold a slot, over all servers."""
        return sum(endpoint.in_flight for endpoint in self.endpoints.values())

    def resize(self, concurrency: int) -> None:
        """Change the limit of every server. Lowering it cancels nothing."""
        for endpoint in self.endpoints.values():
            endpoint.resize(concurrency)
        self._grant()

    async def complete(self, request: Request, ledger: Ledger) -> Reply:
        """The reply, after as many attempts as the limits allow. Raises the last `ModelError`, or `BudgetSpent`."""
        for attempt in range(self.limits.retries + 1):
            try:
                return await self._attempt(request, ledger, attempt)
            except (RateLimited, Transient, BadReply):
                if attempt == self.limits.retries:
                    raise
                await asyncio.sleep(self._backoff_s(attempt) * ledger.draw(attempt).uniform(0.5, 1.5))
        raise AssertionError("unreachable")

    def _backoff_s(self, attempt: int) -> float:
        return min(60.0, self.limits.backoff_s * 2.0**attempt)

    async def _attempt(self, request: Request, ledger: Ledger, attempt: int) -> Reply:
        while True:
            await ledger.ready()
            line = await self._acquire(request.role, request.priority)
            call: str | None = None
            try:
                call = ledger.begin(attempt, line.model)
            finally:
                if call is None:
                    self._release(line.endpoint)
            if call is not None and self.limits.hedge is None:
                return await self._held(request, ledger, call, line)
            if call is not None:
                began = asyncio.get_running_loop().time()
                return await self._raced(_Race(request, ledger, attempt, began, asyncio.timeout(None)), call, line)
            await ledger.changed()

    async def _held(self, request: Request, ledger: Ledger, call: str, line: Line) -> Reply:
        """One call, in a slot that it holds already and gives back."""
        try:
            return await self._send(request, ledger, call, line)
        finally:
            self._release(line.endpoint)

    async def _send(self, request: Request, ledger: Ledger, call: str, line: Line) -> Reply:
        loop = asyncio.get_running_loop()
        sent_at = loop.time()
        try:
            await ledger.recorded()
            async with asyncio.timeout(self.limits.deadline_s):
                reply = _checked(line.model, await line.model.complete(request))
        except TimeoutError as error:
            late = Transient(f"no answer within the deadline of {self.limits.deadline_s:g} s")
            ledger.end(call, TimeoutError(str(late)))
            line.endpoint.overloaded(sent_at, loop.time(), 0.0, "a deadline was missed")
            raise late from error
        except BaseException as error:
            told = error if isinstance(error, ModelError) or _from_outside(error) else _broken(line.model, error)
            ledger.end(call, told)
            self._note(line.endpoint, told, sent_at, loop.time())
            if told is error:
                raise
            raise told from error
        ledger.end(call, reply)
        line.endpoint.answered()
        return reply

    def _note(self, endpoint: Endpoint, error: BaseException, sent_at: float, now: float) -> None:
        """What a failed attempt says about the server."""
        match error:
            case RateLimited():
                wait_s = self.limits.backoff_s if error.retry_after_s is None else error.retry_after_s
                asked = f"429: asked to wait {wait_s:g} s"
                why = asked if wait_s <= MAX_PAUSE_S else f"{asked}, waiting {MAX_PAUSE_S:g} s"
                endpoint.overloaded(sent_at, now, min(wait_s, MAX_PAUSE_S), why)
            case ModelError():
                endpoint.answered()
            case _:
                pass

    # --- second calls -----------------------------------------------------------------------------------------------------

    async def _raced(self, race: _Race, call: str, line: Line) -> Reply:
        """The first answer of an attempt that gets a second call when it is late. What the second fails with only the log says."""
        race.late_s = self._durations[race.request.role].threshold_s(self.limits.hedge or 0.0)
        if race.late_s is not None:
            race.alarm = asyncio.get_running_loop().call_at(race.began + race.late_s, self._is_late, race)
        try:
            async with race.beaten:
                return await self._first(race, call, line)
        except TimeoutError:
            assert race.second is not None
            return race.second.result()
        except (RateLimited, Transient, BadReply):
            if race.second is None:
                raise
            await asyncio.wait({race.second})
            if race.second.cancelled() or race.second.exception():
                raise
            return race.second.result()
        finally:
            if race.second is not None and not race.second.done():
                race.second.cancel()
                await asyncio.wait({race.second}, timeout=LOSER_S)

    async def _first(self, race: _Race, call: str, line: Line) -> Reply:
        reply: Reply | None = None
        try:
            reply = await self._send(race.request, race.ledger, call, line)
            return reply
        finally:
            taken_s = asyncio.get_running_loop().time() - race.began
            if reply is not None or (race.late_s is not None and taken_s >= race.late_s):
                self._durations[race.request.role].add(taken_s)
            if race.alarm is not None:
                race.alarm.cancel()
            if race in self._late:
                self._late.remove(race)
            self._release(line.endpoint)

    def _is_late(self, race: _Race) -> None:
        self._late.append(race)
        self._grant()
        self._hedge()

    def _hedge(self) -> None:
        """Send second calls into slots that nobody waits for (so call `_grant` before)."""
        now = asyncio.get_running_loop().time()
        for race in tuple(self._late):
            line = self._free_line(race.request.role, now, hedge=True)
            if line is None:
                continue
            self._late.remove(race)
            call = race.ledger.begin(race.attempt, line.model, hedge=True)
            if call is None:
                continue
            line.endpoint.in_flight += 1
            line.endpoint.hedges += 1
            race.second = asyncio.create_task(self._second(race, call, line), name=f"second call {call}")
            self._seconds.add(race.second)
            race.second.add_done_callback(partial(self._second_ended, race, call, line))

    async def _second(self, race: _Race, call: str, line: Line) -> Reply:
        race.sent = True
        reply = await self._send(race.request, race.ledger, call, line)
        with suppress(RuntimeError):  # the first call has ended by now
            race.beaten.reschedule(asyncio.get_running_loop().time())
        return reply

    def _second_ended(self, race: _Race, call: str, line: Line, task: asyncio.Task[Reply]) -> None:
        self._seconds.discard(task)
        if not race.sent:
            race.ledger.end(call, asyncio.CancelledError())
        if not task.cancelled():
            task.exception()  # seen: where it matters, the attempt asks for the result
        line.endpoint.hedges -= 1
        self._release(line.endpoint)

    # --- slots ------------------------------------------------------------------------------------------------------------

    async def _acquire(self, role: str, priority: float) -> Line:
        loop = asyncio.get_running_loop()
        line = None if self._waiting[role] else self._free_line(role, loop.time())
        if line is not None:
            line.endpoint.in_flight += 1
            return line
        granted: asyncio.Future[Line] = loop.create_future()
        heapq.heappush(self._waiting[role], (priority, next(self._arrivals), granted))
        if any(endpoint.in_flight < endpoint.limit for endpoint in self.endpoints.values()):
            self._grant()
        try:
            return await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                self._release(granted.result().endpoint)
            raise

    def _free_line(self, role: str, now: float, *, hedge: bool = False) -> Line | None:
        """The role's line with the most room, or None. ``hedge``: room for a second call."""
        free = [line for line in self.lines[role] if line.endpoint.free(now) and (not hedge or _room(line.endpoint))]
        return max(free, key=lambda line: line.endpoint.limit - line.endpoint.in_flight, default=None)

    def _release(self, endpoint: Endpoint) -> None:
        endpoint.in_flight -= 1
        self._grant()
        if self._late:
            self._hedge()

    def _grant(self) -> None:
        """Hand free slots to those who wait, the smallest priority first; set an alarm for servers that asked for a pause."""
        if not any(self._waiting.values()):
            return
        loop = asyncio.get_running_loop()
        now = loop.time()
        while (served := self._next_served(now)) is not None:
            role, line = served
            granted = heapq.heappop(self._waiting[role])[2]
            line.endpoint.in_flight += 1
            granted.set_result(line)
        blocked = [e.blocked_until for e in self.endpoints.values() if e.blocked_until > now]
        if blocked and any(self._waiting.values()):
            if self._alarm is not None:
                self._alarm.cancel()
            self._alarm = loop.call_at(min(blocked), self._grant)

    def _next_served(self, now: float) -> tuple[str, Line] | None:
        heads = []
        for role, heap in self._waiting.items():
            while heap and heap[0][2].done():  # cancelled meanwhile
                heapq.heappop(heap)
            if heap and (line := self._free_line(role, now)) is not None:
                heads.append((heap[0][:2], role, line))
        if not heads:
            return None
        _, role, line = min(heads, key=lambda head: head[0])
        return role, line


def _room(endpoint: Endpoint) -> bool:
    """Whether one more second call may be there."""
    return endpoint.hedges < max(1, int(SHARE * endpoint.limit))


def _checked(model: LLM, reply: object) -> Reply:
    if not isinstance(reply, Reply) or not isinstance(reply.text, str):
        raise BadReply(f"{type(model).__name__}.complete: expected a lab.Reply with a text; it returned {type(reply).__name__}")
    return reply


def _from_outside(error: BaseException) -> bool:
    """Whether this is a cancellation of the task that runs, and not something a backend raised."""
    task = asyncio.current_task()
    return isinstance(error, (asyncio.CancelledError, GeneratorExit)) and (task is None or task.cancelling() > 0)


def _broken(model: LLM, error: BaseException) -> Transient:
    """A backend that raised what it should not: its own trouble, never the candidate's."""
    return Transient(f"{type(model).__name__}.complete raised {type(error).__name__}: {error}")
