"""How a job calls a model: the `Asker` given to programs and proposers, and the ledger kept for each of its calls.

Owns the translation between a call and the inputs the core decides on. One rule a change must keep: nothing is sent before its
`CallStarted` is in the log, and every call that was sent ends in the log.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Iterator, Sequence
from random import Random
from typing import TYPE_CHECKING, Any

from flashevolve_lab.core import Spend, draw
from flashevolve_lab.core import events as ev
from flashevolve_lab.core import inputs as on
from flashevolve_lab.core.events import CallOutcome, CallStarted
from flashevolve_lab.errors import BadReply, BudgetSpent, ModelError, RateLimited, Refused, SetupError, Transient
from flashevolve_lab.llm import LLM, Reply, Request, chat
from flashevolve_lab.llm.seam import Finish, Message

if TYPE_CHECKING:
    from flashevolve_lab.engine.shell import Shell

DEFAULT_MAX_TOKENS = 512
Price = tuple[float, float]  # dollars per million (input, output) tokens


class Patience:
    """How long a program and a metric may take on one example. Their model calls do not count: each has deadlines of its own,
    and may have to wait for a slot, a server or the end of a pause.
    """

    def __init__(self, limit_s: float) -> None:
        self._timer = asyncio.timeout(limit_s)
        self._left_s = 0.0
        self._calls = 0

    async def __aenter__(self) -> Patience:
        await self._timer.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._timer.__aexit__(*error)

    @property
    def over(self) -> bool:
        """Whether the time is up."""
        return self._timer.expired()

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """The time in here does not count."""
        loop = asyncio.get_running_loop()
        until = self._timer.when()
        if self._calls == 0 and until is not None:
            self._left_s = until - loop.time()
        self._calls += 1
        self._move(None)
        try:
            yield
        finally:
            self._calls -= 1
            if self._calls == 0:
                self._move(loop.time() + self._left_s)

    def _move(self, until: float | None) -> None:
        with contextlib.suppress(RuntimeError):  # a thread that was given up still calls
            self._timer.reschedule(until)


class JobAsker:
    """Calls a role's model on behalf of one job; ``key`` names the calls inside it."""

    def __init__(self, shell: Shell, job: str, priority: float, role: str, key: str, patience: Patience | None = None) -> None:
        self._shell = shell
        self._job = job
        self._priority = priority
        self._role = role
        self._key = key
        self._calls = 0
        self._patience = patience
        self.outage: BudgetSpent | RateLimited | Transient | None = None  # the last call that got no answer at all

    @property
    def context_tokens(self) -> int | None:
        """The smallest context of the role's models, where known."""
        sizes = [getattr(line.model, "context_tokens", None) for line in self._shell.gateway.lines[self._role]]
        return min((size for size in sizes if size), default=None)

    async def complete(
        self,
        messages: str | Sequence[Message],
        *,
        system: str | None = None,
        max_tokens: int | None = None,
        temperature: float | None = None,
        choices: Sequence[str] = (),
    ) -> Reply:
        """One call, limited, retried, charged and recorded."""
        options = {"system": system, "max_tokens": max_tokens, "temperature": temperature, "choices": choices}
        if asyncio.get_running_loop() is not self._shell.loop:  # a loop of the user's own, in a thread
            asked = asyncio.run_coroutine_threadsafe(self._asked(messages, options), self._shell.loop)
            return await asyncio.wrap_future(asked)
        request = Request(
            messages=chat(messages, system=system),
            max_tokens=max_tokens or DEFAULT_MAX_TOKENS,
            role=self._role,
            temperature=temperature,
            choices=tuple(choices),
            priority=self._priority,
        )
        self._calls += 1
        key = f"{self._key}#{self._calls}"
        ledger = CallLedger(self._shell, self._job, request, key)
        if known := self._known(key, ledger.digest):
            return known
        with self._patience.stopped() if self._patience else contextlib.nullcontext():
            try:
                return await self._shell.gateway.complete(request, ledger)
            except (BudgetSpent, RateLimited, Transient) as error:
                self.outage = error
                raise

    def _known(self, key: str, digest: str) -> Reply | None:
        """The reply that an earlier job of this item and stage already paid for (it failed, or its process died)."""
        job = self._shell.state.jobs.get(self._job)
        known = self._shell.state.answers.get((job.item, job.stage), {}).get(key) if job else None
        if known is None or known.request != digest:
            return None
        finish: Finish = known.finish if known.finish in ("stop", "length", "filter") else "unknown"  # type: ignore[assignment]
        return Reply(known.text, finish, known.prompt_tokens, known.completion_tokens, known.model)

    def ask(self, messages: str | Sequence[Message], **options: Any) -> str:
        """The same from a thread: blocks until the reply is there, and returns its text."""
        if _running_loop() is self._shell.loop:
            raise SetupError(
                "llm.ask(…) would block the engine: in an async (or quick) program write (await llm.complete(…)).text"
            )
        return asyncio.run_coroutine_threadsafe(self._asked(messages, options), self._shell.loop).result().text

    async def _asked(self, messages: str | Sequence[Message], options: dict[str, Any]) -> Reply:
        """A call made outside the loop, whose caller waits for it there. It is cancelled with its job."""
        await self._shell.places.back()
        at_once = False
        asks = self._shell.asks.setdefault(self._job, set())
        task = asyncio.current_task()
        assert task is not None
        asks.add(task)
        try:
            return await self.complete(messages, **options)
        except asyncio.CancelledError:
            at_once = True
            raise
        finally:
            asks.discard(task)
            if not asks:
                self._shell.asks.pop(self._job, None)
            await self._shell.places.left(at_once=at_once)


class CallLedger:
    """The run's side of one logical call: gate, reservation, record (see `llm.gateway.Ledger`)."""

    def __init__(self, shell: Shell, job: str, request: Request, key: str) -> None:
        self._shell = shell
        self._job = job
        self._request = request
        self._key = key
        self._input_tokens = request.input_tokens_estimate()
        self._sent: dict[str, tuple[Price, Spend]] = {}  # call → the price of its model, and what is reserved for it
        self.digest = _digest(request)

    async def ready(self) -> None:
        """While the run is paused, only a stepped job may go on."""
        while self._held():
            await self._shell.change()

    def _held(self) -> bool:
        job = self._shell.state.jobs.get(self._job)
        return self._shell.state.status == "paused" and job is not None and not job.stepped

    def begin(self, attempt: int, model: LLM, *, hedge: bool = False) -> str | None:
        """Reserve and record."""
        price: Price = getattr(model, "price", None) or (0.0, 0.0)
        reserve = _cost(price, self._request.input_tokens_bound(), self._request.max_tokens)
        prompt = "" if self._request.role == "task" else _told(self._request)
        wanted = on.CallWanted(self._job, self._request.role, self._key, attempt, reserve, self.digest, prompt, hedge)
        for event in self._shell.now(wanted):
            if isinstance(event, CallStarted):
                self._sent[event.call] = price, reserve
                return event.call
        if hedge:
            return None
        if self._job not in self._shell.state.jobs:
            raise asyncio.CancelledError
        if short := self._shell.state.room(reserve, released=True):
            limit, used = self._shell.state.budget[short], getattr(self._shell.state.spent, short)
            needs = getattr(reserve, short)
            raise BudgetSpent(f"{short}: {used:,.10g} of {limit:,.10g} used, and the next call may need {needs:,.10g}")
        return None

    async def recorded(self) -> None:
        """The reservation is in the log."""
        await self._shell.written()

    async def changed(self) -> None:
        """Something ended, or a setting moved."""
        await self._shell.change()

    def end(self, call: str, outcome: Reply | BaseException) -> None:
        """Record; a reply is charged as counted by the server, a refusal by its input, an unknown end as reserved."""
        price, reserve = self._sent.pop(call)
        if isinstance(outcome, Reply):
            prompt, answer = outcome.prompt_tokens or self._input_tokens, self._answer_tokens(outcome)
            spent = _cost(price, prompt, answer)
            ended = ev.CallFinished(call, "ok", spent, prompt, answer, outcome.finish, outcome.model, outcome.text)
        else:
            kind, spent = self._charged(outcome, price, reserve)
            ended = ev.CallFinished(call, kind, spent, text=str(outcome)[:2000])
        self._shell.post(ended)

    def _answer_tokens(self, reply: Reply) -> int:
        """As counted by the server; where it does not count, all that was allowed if it was cut off there, else from its bytes."""
        if reply.completion_tokens or not reply.text:
            return reply.completion_tokens
        if reply.finish == "length":
            return self._request.max_tokens
        return min(self._request.max_tokens, 1 + len(reply.text.encode("utf-8", "replace")) // 3)

    def _charged(self, error: BaseException, price: Price, reserve: Spend) -> tuple[CallOutcome, Spend]:
        match error:
            case RateLimited():
                return "rate_limited", Spend(llm_calls=1)
            case Transient():
                return "transient", Spend(llm_calls=1)
            case Refused():
                return "refused", _cost(price, self._input_tokens, 0)
            case BadReply():
                return "bad_reply", reserve
            case TimeoutError() | ModelError():
                return "transient", reserve
            case _:
                return "cancelled", reserve

    def draw(self, attempt: int) -> Random:
        """The wait after this attempt, keyed by the call."""
        assert self._shell.state.started is not None
        return draw(self._shell.state.started.seed, self._job, self._key, "wait", attempt)


def _cost(price: Price, prompt_tokens: int, completion_tokens: int) -> Spend:
    """One call: its tokens, and dollars by the model's price."""
    dollars = (prompt_tokens * price[0] + completion_tokens * price[1]) / 1e6
    return Spend(llm_calls=1, tokens=prompt_tokens + completion_tokens, dollars=dollars)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _digest(request: Request) -> str:
    """All that is asked, in 16 hexadecimal digits."""
    messages = [(m["role"], m["content"]) for m in request.messages]
    text = repr((messages, request.max_tokens, request.temperature, request.choices))
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _told(request: Request) -> str:
    """The messages as one text, for people."""
    if len(request.messages) == 1:
        return request.messages[0]["content"]
    return "\n\n".join(f"[{m['role']}]\n{m['content']}" for m in request.messages)
