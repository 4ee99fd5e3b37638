"""The gateway: every wait between a job and a model. One limit per server shared by all stages, priorities, deadlines, retries.

Owns the waiting and the retrying; what a server can take is `llm.endpoint`'s. Owns no budget: before each attempt it asks a
`Ledger`, which belongs to the run. One rule a change must keep: decide synchronously, then act; a slot is free again on every
exit path, cancellation included.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

from flashevolve_lab.errors import BadReply, ModelError, RateLimited, SetupError, Transient
from flashevolve_lab.llm.endpoint import Change, Endpoint
from flashevolve_lab.llm.seam import LLM, Reply, Request

MAX_PAUSE_S = 300.0  # a server that asks for more is asked again then


class Ledger(Protocol):
    """What the gateway asks of the run, for one logical call."""

    async def ready(self) -> None:
        """Returns when calls may be sent at all (not while the run is paused)."""
        ...

    def begin(self, attempt: int, model: LLM) -> str | None:
        """Reserve and record one attempt; its id, or None when it cannot go now. Raises `BudgetSpent` when it never can."""
        ...

    async def recorded(self) -> None:
        """Returns when what `begin` reserved is in the log: nothing is sent before."""
        ...

    async def changed(self) -> None:
        """Returns when something changed that could let `begin` succeed."""
        ...

    def end(self, call: str, outcome: Reply | BaseException) -> None:
        """Record how the attempt ended."""
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
        deadline_s: Seconds an attempt may take.
        retries: Further attempts after a rate limit, a timeout, a broken connection, a 5xx or a malformed reply.
        backoff_s: Mean wait before the first retry; doubles each time, with jitter, up to a minute.
    """

    concurrency: int = 64
    deadline_s: float = 120.0
    retries: int = 4
    backoff_s: float = 0.5

    def __post_init__(self) -> None:
        if not isinstance(self.concurrency, int) or isinstance(self.concurrency, bool) or self.concurrency < 1:
            raise SetupError(f"Limits(concurrency=…): expected an integer of at least 1; got {self.concurrency!r}")
        if not isinstance(self.retries, int) or self.retries < 0:
            raise SetupError(f"Limits(retries=…): expected an integer of at least 0; got {self.retries!r}")
        for name in ("deadline_s", "backoff_s"):
            value = getattr(self, name)
            if not isinstance(value, (int, float)) or not value > 0:
                raise SetupError(f"Limits({name}=…): expected a number of seconds above 0; got {value!r}")


@dataclass(frozen=True, slots=True)
class Line:
    """A model of a role, and the server it stands on (which several models may share)."""

    model: LLM
    endpoint: Endpoint


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

    def _line(self, model: LLM, told: Change) -> Line:
        facts = model.describe()
        key = facts.get("base_url") or id(model)
        if key not in self.endpoints:
            self.endpoints[key] = Endpoint(str(facts.get("base_url") or facts.get("kind")), self.limits.concurrency, told)
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
            try:
                call = ledger.begin(attempt, line.model)
                if call is not None:
                    return await self._send(request, ledger, call, line)
            finally:
                self._release(line.endpoint)
            await ledger.changed()

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

    def _free_line(self, role: str, now: float) -> Line | None:
        """The role's line with the most room, or None."""
        free = [line for line in self.lines[role] if line.endpoint.free(now)]
        return max(free, key=lambda line: line.endpoint.limit - line.endpoint.in_flight, default=None)

    def _release(self, endpoint: Endpoint) -> None:
        endpoint.in_flight -= 1
        self._grant()

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
