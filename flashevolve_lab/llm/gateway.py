"""The gateway: one shared limit of calls in flight, priorities, a deadline per attempt, and retries.

Owns every wait between a job and a model. Owns no budget: before each attempt it asks a `Ledger`, which belongs to the run.
One rule a change must keep: decide synchronously, then act; a slot is free again on every exit path, cancellation included.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Protocol

from flashevolve_lab.errors import BadReply, ModelError, RateLimited, SetupError, Transient
from flashevolve_lab.llm.seam import LLM, Reply, Request


class Ledger(Protocol):
    """What the gateway asks of the run, for one logical call."""

    async def ready(self) -> None:
        """Returns when calls may be sent at all (not while the run is paused)."""
        ...

    def begin(self, attempt: int) -> str | None:
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

    def draw(self) -> Random:
        """The random stream of this call's waiting times."""
        ...


@dataclass(frozen=True, slots=True)
class Limits:
    """How the gateway calls.

    Args:
        concurrency: Calls in flight over all stages, ≥ 1.
        deadline_s: Seconds an attempt may take.
        retries: Further attempts after a rate limit, a timeout, a broken connection or a 5xx.
        backoff_s: Mean wait before the first retry; doubles each time, with jitter, up to a minute.
    """

    concurrency: int = 64
    deadline_s: float = 120.0
    retries: int = 4
    backoff_s: float = 0.5

    def __post_init__(self) -> None:
        if not isinstance(self.concurrency, int) or self.concurrency < 1:
            raise SetupError(f"Limits(concurrency=…): expected an integer of at least 1; got {self.concurrency!r}")
        if self.retries < 0 or not self.deadline_s > 0:
            raise SetupError("Limits: expected retries of at least 0 and a deadline_s above 0")


class Gateway:
    """Sends requests to the models of a run. Lives on one event loop.

    Args:
        models: Role ("task", "reflection") → model.
    """

    def __init__(self, models: Mapping[str, LLM], limits: Limits) -> None:
        self.models = models
        self.limits = limits
        self.concurrency = limits.concurrency
        self.in_flight = 0
        self._waiting: list[tuple[float, int, asyncio.Future[None]]] = []
        self._arrivals = itertools.count()

    def resize(self, concurrency: int) -> None:
        """Change the limit. Lowering it cancels nothing."""
        self.concurrency = concurrency
        self._grant()

    async def complete(self, request: Request, ledger: Ledger) -> Reply:
        """The reply, after as many attempts as the limits allow. Raises the last `ModelError`, or `BudgetSpent`."""
        for attempt in range(self.limits.retries + 1):
            try:
                return await self._attempt(request, ledger, attempt)
            except (RateLimited, Transient, BadReply) as error:
                if attempt == self.limits.retries:
                    raise
                await asyncio.sleep(self._wait_s(error, attempt, ledger.draw()))
        raise AssertionError("unreachable")

    def _wait_s(self, error: ModelError, attempt: int, random: Random) -> float:
        backoff = min(60.0, self.limits.backoff_s * 2.0**attempt)
        asked = error.retry_after_s or 0.0 if isinstance(error, RateLimited) else 0.0
        return asked + backoff * random.uniform(0.5, 1.5)

    async def _attempt(self, request: Request, ledger: Ledger, attempt: int) -> Reply:
        while True:
            await ledger.ready()
            await self._acquire(request.priority)
            try:
                call = ledger.begin(attempt)
                if call is not None:
                    return await self._send(request, ledger, call)
            finally:
                self._release()
            await ledger.changed()

    async def _send(self, request: Request, ledger: Ledger, call: str) -> Reply:
        model = self.models[request.role]
        try:
            await ledger.recorded()
            async with asyncio.timeout(self.limits.deadline_s):
                reply = await model.complete(request)
        except TimeoutError as error:
            late = Transient(f"no answer within the deadline of {self.limits.deadline_s:g} s")
            ledger.end(call, TimeoutError(str(late)))
            raise late from error
        except BaseException as error:
            ledger.end(call, error)
            raise
        ledger.end(call, reply)
        return reply

    async def _acquire(self, priority: float) -> None:
        if self.in_flight < self.concurrency and not self._waiting:
            self.in_flight += 1
            return
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (priority, next(self._arrivals), granted))
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                self._release()
            raise

    def _release(self) -> None:
        self.in_flight -= 1
        self._grant()

    def _grant(self) -> None:
        while self._waiting and self.in_flight < self.concurrency:
            granted = heapq.heappop(self._waiting)[2]
            if not granted.done():
                self.in_flight += 1
                granted.set_result(None)
