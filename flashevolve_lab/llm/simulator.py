"""The simulated model server, in process: slots, queue, speed, faults; what it answers is a `Landscape`'s business.

Owns the settings (`FixedLatency`, `Batching`, `Faults`), the event-driven `Machine` and the LLM `Simulated`. It is no
language model and says so in every reply. One rule a change must keep: time is only the running loop's ``time()`` and
``call_at``, and every draw is keyed by the request's content, so that virtual, scaled and wall time see the same world.
An answer depends on nothing else; a *duration* also on how many identical requests are in the machine already, so that a second
call for a late one is as slow only by chance (under `FixedLatency`; under `Batching` a time is a length, thus the answer's own).

All requests in service progress at one common speed that depends on how many there are, as in continuous batching. So
the machine keeps one clock of *work done per request*: a request that enters at reading r with work w leaves at r + w,
and its place in a heap never changes when the speed does. Cost: O(log B) a request.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from heapq import heappop, heappush
from typing import Any, Literal, get_args

from flashevolve_lab.errors import RateLimited, SetupError, Transient
from flashevolve_lab.llm.landscapes import Draw, IndependentRules, Landscape, Role, content_key, role_of
from flashevolve_lab.llm.seam import Reply, Request

LABEL = "simulated model server (not a language model)"
Fault = Literal["rate_limited", "server_error", "hang", "malformed", "empty", "truncated"]
_FAULTS: tuple[Fault, ...] = get_args(Fault)
_ROLES: tuple[Role, ...] = get_args(Role)
_TICK_S = 1e-8  # instants nearer than this are one: above the rounding of a clock's reading, below anything visible


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedLatency:
    """Log-normal seconds per request, whatever the load; patches take as long as reflections.

    Args:
        task_s, reflection_s: Mean seconds in service.
        task_sigma, reflection_sigma: Standard deviation of the logarithm; 0 makes every request take the mean.
        slots: Requests in service at once, all roles together; the others wait by priority, then in order of arrival.
        max_waiting: Requests that may wait; one more is answered 429. None: no bound.
    """

    task_s: float = 0.25
    reflection_s: float = 2.5
    task_sigma: float = 0.6
    reflection_sigma: float = 0.6
    slots: int = 64
    max_waiting: int | None = None

    def __post_init__(self) -> None:
        _check_slots(self.slots, self.max_waiting)
        _check_least(self, 0.0, "task_s", "reflection_s", "task_sigma", "reflection_sigma")

    def output_tokens(self, role: Role, draw: Draw) -> int:
        """0: here only the text itself counts."""
        return 0

    def work(self, role: Role, reply: Reply, draw: Draw) -> float:
        """Seconds."""
        if role == "task":
            return draw.lognormal(self.task_s, self.task_sigma)
        return draw.lognormal(self.reflection_s, self.reflection_sigma)

    def rate(self, running: int) -> float:
        """A second of work a second."""
        return 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Batching:
    """Continuous batching: long-tailed output lengths, decoded at a speed per request that falls with the load.

    With B in service each decodes ``tokens_per_s / (1 + (B - 1) / half_load)`` tokens a second.

    Args:
        task_tokens, reflection_tokens: Mean output lengths (log-normal; patches like reflections).
        task_sigma, reflection_sigma: Standard deviation of the logarithm of the length.
        tokens_per_s: Decoding speed of a request alone.
        half_load: Number of *other* requests in service at which the speed has halved.
        prefill_tokens_per_s: Speed of reading the input, alone; it slows down with the load too.
        slots, max_waiting: as in `FixedLatency`.
    """

    task_tokens: float = 120.0
    reflection_tokens: float = 600.0
    task_sigma: float = 0.8
    reflection_sigma: float = 0.8
    tokens_per_s: float = 100.0
    half_load: float = 64.0
    prefill_tokens_per_s: float = 8000.0
    slots: int = 64
    max_waiting: int | None = None

    def __post_init__(self) -> None:
        _check_slots(self.slots, self.max_waiting)
        _check_least(self, 0.0, "task_tokens", "reflection_tokens", "task_sigma", "reflection_sigma")
        _check_least(self, 1e-6, "tokens_per_s", "half_load", "prefill_tokens_per_s")

    def output_tokens(self, role: Role, draw: Draw) -> int:
        """The length of the whole output; the landscape's text is its end."""
        if role == "task":
            return math.ceil(draw.lognormal(self.task_tokens, self.task_sigma))
        return math.ceil(draw.lognormal(self.reflection_tokens, self.reflection_sigma))

    def work(self, role: Role, reply: Reply, draw: Draw) -> float:
        """Output tokens, the input counted as the output tokens that take as long."""
        return reply.completion_tokens + reply.prompt_tokens * self.tokens_per_s / self.prefill_tokens_per_s

    def rate(self, running: int) -> float:
        """Tokens a second of each of ``running`` requests."""
        return self.tokens_per_s / (1.0 + max(running - 1, 0) / self.half_load)


Speed = FixedLatency | Batching


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """What goes wrong, as probabilities per attempt; keyed by content and attempt number, so a retry may succeed.

    Args:
        rate_limited: 429 at once, without a slot; asks to wait ``retry_after_s`` seconds.
        server_error: 500 after the whole time in service.
        hang: Takes a slot and never answers, until it is cancelled.
        malformed: A reply with a missing fence, markup and odd Unicode.
        empty: A reply without text.
        truncated: Half of the reply, with ``finish="length"``.
        retry_after_s: Seconds a 429 asks to wait; None says nothing.

    Raises:
        SetupError: for a rate outside [0, 1] or rates that add up to more than 1.
    """

    rate_limited: float = 0.0
    server_error: float = 0.0
    hang: float = 0.0
    malformed: float = 0.0
    empty: float = 0.0
    truncated: float = 0.0
    retry_after_s: float | None = 1.0

    def __post_init__(self) -> None:
        rates = {name: getattr(self, name) for name in _FAULTS}
        if min(rates.values()) < 0.0 or sum(rates.values()) > 1.0:
            raise SetupError(f"Faults: expected rates ≥ 0 that add up to at most 1; got {rates}")

    def any(self) -> bool:
        """Whether anything can go wrong."""
        return any(getattr(self, name) for name in _FAULTS)

    def drawn(self, draw: Draw) -> Fault | None:
        """What goes wrong with one attempt, or None."""
        u = draw.uniform()
        for name in _FAULTS:
            u -= getattr(self, name)
            if u < 0.0:
                return name
        return None


@dataclass(slots=True)
class Count:
    """What the server itself saw of one role. ``busy_s``: seconds in service, summed over requests that left."""

    arrived: int = 0
    finished: int = 0
    cancelled: int = 0
    rejected: int = 0
    failed: int = 0
    hung: int = 0
    in_service: int = 0
    max_in_service: int = 0
    busy_s: float = 0.0
    prompt_tokens: int = 0
    completion_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Job:
    """What a request costs: ``work`` as the `Speed` counts it (infinite: a hang), its reply for the statistics."""

    role: Role
    work: float
    reply: Reply
    fails: bool = False


@dataclass(slots=True, eq=False)
class Ticket:
    """One request in the machine. ``state`` only moves forward; ``began_s`` is the loop time it got its slot."""

    job: Job
    done: asyncio.Future[None]
    state: Literal["waiting", "running", "gone"] = "waiting"
    began_s: float = 0.0


@dataclass(slots=True, eq=False)
class Machine:
    """Slots, queue and work clock of one server on one event loop. Synchronous: `enter`, `leave`, and one timer.

    A request waits only while every slot is taken, and a slot that falls free is filled in the same step.
    """

    speed: Speed
    loop: asyncio.AbstractEventLoop
    counts: dict[Role, Count] = field(default_factory=lambda: {role: Count() for role in _ROLES})
    attempts: dict[str, int] = field(default_factory=dict)  # content key → attempts so far
    inside: Counter[str] = field(default_factory=Counter)  # content key → identical requests in service or waiting; none is 0
    in_service: int = 0
    max_in_service: int = 0
    waiting: int = 0
    max_waiting: int = 0
    since_s: float | None = None  # first arrival since the start or the last reset
    _queue: list[tuple[float, int, Ticket]] = field(default_factory=list)  # (priority, order); may hold gone tickets
    _running: list[tuple[float, int, Ticket]] = field(default_factory=list)  # (reading at its end, order); likewise
    _reading: float = 0.0  # the work clock, as of _at_s
    _at_s: float = 0.0
    _rate: float = 1.0
    _order: int = 0
    _timer: asyncio.TimerHandle | None = None

    @property
    def full(self) -> bool:
        """Whether one more request would have to be rejected."""
        bound = self.speed.max_waiting
        return bound is not None and self.in_service >= self.speed.slots and self.waiting >= bound

    def enter(self, job: Job, priority: float = 0.0) -> Ticket:
        """Takes a request in: into a slot at once, or into the queue. Its ``done`` is set when it has been served."""
        now = self._advance()
        self.since_s = now if self.since_s is None else self.since_s
        ticket = Ticket(job, self.loop.create_future())
        self._order += 1
        if self.in_service < self.speed.slots:
            self._start(ticket, now)
        else:
            heappush(self._queue, (priority, self._order, ticket))
            self.waiting += 1
            self.max_waiting = max(self.max_waiting, self.waiting)
        self._arm()
        return ticket

    def leave(self, ticket: Ticket) -> None:
        """Takes a cancelled request out and gives its slot on at once; nothing happens when it has been served."""
        if ticket.state == "gone":
            return
        now = self._advance()
        if ticket.state == "waiting":
            ticket.state = "gone"
            self.waiting -= 1
            self.counts[ticket.job.role].cancelled += 1
            return
        self._free(ticket, now).cancelled += 1
        self._fill(now)
        self._arm()

    def reset(self) -> None:
        """Zeroes the statistics and the attempts; requests in service stay and count from now."""
        now = self._advance()
        running = {role: count.in_service for role, count in self.counts.items()}
        self.counts = {role: Count(in_service=n, max_in_service=n) for role, n in running.items()}
        for _, _, ticket in self._running:
            ticket.began_s = now
        self.max_in_service, self.max_waiting = self.in_service, self.waiting
        self.since_s = now if self.in_service else None
        self.attempts.clear()

    def stats(self) -> dict[str, Any]:
        """The server's own truth as JSON-able values; ``elapsed_s`` runs from the first arrival to the last event."""
        until_s = self.loop.time() if self.in_service else self._at_s
        roles: dict[str, dict[str, Any]] = {role: asdict(count) for role, count in self.counts.items()}
        for _, _, ticket in list(self._running):
            if ticket.state == "running":
                roles[ticket.job.role]["busy_s"] += until_s - ticket.began_s
        elapsed_s = 0.0 if self.since_s is None else until_s - self.since_s
        load = {name: getattr(self, name) for name in ("in_service", "max_in_service", "waiting", "max_waiting")}
        return _summary(self.speed.slots, elapsed_s, roles, load)

    def _advance(self) -> float:
        now = self.loop.time()
        self._reading += (now - self._at_s) * self._rate
        self._at_s = now
        return now

    def _start(self, ticket: Ticket, now: float) -> None:
        job, count = ticket.job, self.counts[ticket.job.role]
        ticket.state, ticket.began_s = "running", now
        count.hung += job.work == math.inf
        count.prompt_tokens += job.reply.prompt_tokens
        count.in_service += 1
        count.max_in_service = max(count.max_in_service, count.in_service)
        self.in_service += 1
        self.max_in_service = max(self.max_in_service, self.in_service)
        self._rate = self.speed.rate(self.in_service)
        heappush(self._running, (self._reading + job.work, self._order, ticket))

    def _free(self, ticket: Ticket, now: float) -> Count:
        ticket.state = "gone"
        count = self.counts[ticket.job.role]
        count.in_service -= 1
        count.busy_s += now - ticket.began_s
        self.in_service -= 1
        self._rate = self.speed.rate(self.in_service)
        return count

    def _serve(self, ticket: Ticket, now: float) -> None:
        """Ends a request whose work is done; its caller may have been cancelled in this very instant."""
        count = self._free(ticket, now)
        if ticket.done.done():
            count.cancelled += 1
            return
        count.failed += ticket.job.fails
        count.finished += not ticket.job.fails
        count.completion_tokens += ticket.job.reply.completion_tokens
        ticket.done.set_result(None)

    def _fill(self, now: float) -> None:
        while self._queue and self.in_service < self.speed.slots:
            ticket = heappop(self._queue)[2]
            if ticket.state == "waiting":
                self.waiting -= 1
                self._order += 1
                self._start(ticket, now)

    def _arm(self) -> None:
        """Sets the timer to the next end. A timer that rings too early is kept: it finds nothing and is set again."""
        while self._running and self._running[0][2].state == "gone":
            heappop(self._running)
        if not self._running or self._running[0][0] == math.inf:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            return
        at = self._at_s + (self._running[0][0] - self._reading) / self._rate
        if self._timer is not None:
            if self._timer.when() <= at:
                return
            self._timer.cancel()
        self._timer = self.loop.call_at(at, self._ring)

    def _ring(self) -> None:
        self._timer = None
        now = self._advance()
        while self._running and self._running[0][0] - self._reading <= _TICK_S * self._rate:
            ticket = heappop(self._running)[2]
            if ticket.state == "running":
                self._serve(ticket, now)
                self._fill(now)
        if not self.in_service:
            self._running.clear()
            self._reading = 0.0  # keeps the clock's rounding small
        self._arm()


def _summary(slots: int, elapsed_s: float, roles: Mapping[str, Any], load: Mapping[str, int]) -> dict[str, Any]:
    busy_s = sum(count["busy_s"] for count in roles.values())
    return {
        "simulated": True,
        "slots": slots,
        "elapsed_s": elapsed_s,
        "busy_s": busy_s,
        "mean_in_service": busy_s / elapsed_s if elapsed_s > 0.0 else 0.0,
        **load,
        "rejected": sum(count["rejected"] for count in roles.values()),
        "roles": roles,
    }


class Simulated:
    """The simulated model server as an `LLM`, in process: no network, no model, the running loop's own time.

    One instance serves any number of runs; each event loop gets a machine of its own, made at its first request.

    Args:
        landscape: What the simulated model knows; default `IndependentRules()`.
        speed: `FixedLatency` (default) or `Batching`.
        faults: What goes wrong; default nothing.
        seed: Key of the draws of durations and faults (the landscape has its own).
    """

    def __init__(
        self,
        landscape: Landscape | None = None,
        *,
        speed: Speed | None = None,
        faults: Faults | None = None,
        seed: int = 0,
    ) -> None:
        self.landscape: Landscape = IndependentRules() if landscape is None else landscape
        self.speed: Speed = FixedLatency() if speed is None else speed
        self.faults = Faults() if faults is None else faults
        self.seed = seed
        self._machines: dict[asyncio.AbstractEventLoop, Machine] = {}
        self._latest: Machine | None = None

    def __repr__(self) -> str:
        now = self._latest
        state = f"{now.in_service} in service, {now.waiting} waiting" if now else "idle"
        return f"<Simulated {type(self.landscape).__name__}, {self.speed.slots} slots, {state}; not a language model>"

    async def complete(self, request: Request) -> Reply:
        """One attempt, in the loop's time. Raises `RateLimited` or `Transient` as the `Faults` say."""
        machine = self.machine()
        role = role_of(request.role)
        key = content_key(role, request.messages)
        fault = self._fault(machine, key)
        machine.counts[role].arrived += 1
        if fault == "rate_limited" or machine.full:
            machine.counts[role].rejected += 1
            raise RateLimited("429 from the simulated server: wait and try again", self.faults.retry_after_s)
        twins = machine.inside[key]
        draw = Draw(self.seed, "work", key)
        reply = self._reply(request, role, key, draw)
        work = self.speed.work(role, reply, Draw(self.seed, "work", key, twins) if twins else draw)
        ticket = machine.enter(
            Job(role, math.inf if fault == "hang" else work, reply, fails=fault == "server_error"), request.priority
        )
        machine.inside[key] = twins + 1
        try:
            await ticket.done
        finally:
            machine.leave(ticket)
            machine.inside[key] -= 1
            if not machine.inside[key]:
                del machine.inside[key]
        if fault == "server_error":
            raise Transient("500 from the simulated server: try again")
        return _spoilt(reply, fault) if fault else reply

    async def check(self) -> None:
        """Nothing can be unreachable here."""

    def describe(self) -> dict[str, Any]:
        """JSON-able facts for the log."""
        settings = {name: facts(getattr(self, name)) for name in ("landscape", "speed", "faults")}
        names = {"kind": "Simulated", "simulated": True, "in_process": True, "label": LABEL, "model": "simulated"}
        return {**names, "seed": self.seed, **settings}

    async def seen(self) -> dict[str, float]:
        """The load of the running loop's machine."""
        machine = self.machine()
        served = sum(count.finished for count in machine.counts.values())
        return {"running": machine.in_service, "waiting": machine.waiting, "served": served}

    def stats(self) -> dict[str, Any]:
        """What the machine that was started last has seen (`Machine.stats`)."""
        if self._latest:
            return self._latest.stats()
        idle = dict.fromkeys(("in_service", "max_in_service", "waiting", "max_waiting"), 0)
        return _summary(self.speed.slots, 0.0, {role: asdict(Count()) for role in _ROLES}, idle)

    def reset(self) -> None:
        """Zeroes those statistics."""
        if self._latest:
            self._latest.reset()

    def machine(self) -> Machine:
        """The machine of the running event loop."""
        loop = asyncio.get_running_loop()
        found = self._machines.get(loop)
        if found is None:
            found = self._latest = Machine(self.speed, loop)
            open_ones = {at: machine for at, machine in self._machines.items() if not at.is_closed()}
            self._machines = {**open_ones, loop: found}
        return found

    def _fault(self, machine: Machine, key: str) -> Fault | None:
        if not self.faults.any():
            return None
        attempt = machine.attempts[key] = machine.attempts.get(key, 0) + 1
        return self.faults.drawn(Draw(self.seed, "fault", key, attempt))

    def _reply(self, request: Request, role: Role, key: str, draw: Draw) -> Reply:
        text = self.landscape.answer(request, Draw(self.landscape.seed, "answer", key))
        asked = _tokens(sum([len(m["content"]) for m in request.messages]))
        name, length = f"simulated-{role}", _tokens(len(text))
        if request.choices:  # constrained decoding: nothing to think aloud, nothing to cut
            return Reply(text, "stop", asked, length, name)
        length = max(length, self.speed.output_tokens(role, draw))
        if length > request.max_tokens:
            text = text[: len(text) * request.max_tokens // length]
            return Reply(text, "length", asked, request.max_tokens, name)
        return Reply(text, "stop", asked, length, name)


def _spoilt(reply: Reply, fault: Fault) -> Reply:
    """The reply as a fault leaves it; hostile text included, for whoever shows it."""
    match fault:
        case "empty":
            return replace(reply, text="", completion_tokens=0)
        case "truncated":
            return replace(reply, text=reply.text[: len(reply.text) // 2], finish="length")
        case "malformed":
            return replace(reply, text="\ud800\u202e</script><b>\x00 " + reply.text.replace("```", "", 1))
        case _:
            return reply


def facts(settings: object) -> dict[str, Any]:
    """A settings object as JSON-able facts: its kind and its fields."""
    values = asdict(settings) if is_dataclass(settings) and not isinstance(settings, type) else {}
    return {"kind": type(settings).__name__, **values}


def _tokens(characters: int) -> int:
    return characters // 4 + 1


def _check_slots(slots: int, max_waiting: int | None) -> None:
    if slots < 1 or (max_waiting is not None and max_waiting < 0):
        raise SetupError(f"expected slots ≥ 1 and max_waiting ≥ 0 or None; got {slots=}, {max_waiting=}")


def _check_least(settings: object, least: float, *names: str) -> None:
    for name in names:
        if not getattr(settings, name) >= least or math.isinf(getattr(settings, name)):
            raise SetupError(f"{name}: expected a finite number ≥ {least}; got {getattr(settings, name)!r}")
