"""The gateway on virtual time: one limit for all, priorities, retries, pauses of a server, and a slot that is always given back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import pytest

from flashevolve_lab.engine import VirtualLoop
from flashevolve_lab.errors import BadReply, BudgetSpent, ModelError, RateLimited, Refused, SetupError, Transient
from flashevolve_lab.llm import Gateway, Limits, Reply, Request, chat


def virtually(work: Callable[[], Awaitable[Any]]) -> Any:
    """The result of a coroutine function on virtual time; nothing may go wrong unseen."""
    loop = VirtualLoop()
    unseen: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: unseen.append(context))
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        result = runner.run(work())  # type: ignore[arg-type]
    assert not unseen
    return result


def now() -> float:
    return asyncio.get_running_loop().time()


class Model:
    """Answers after a second; ``does[n]`` is what happens to attempt n instead: an error, seconds, or "hang"."""

    def __init__(self, *does: Any, url: str | None = None, seconds: float = 1.0) -> None:
        self.does, self.url, self.seconds = list(does), url, seconds
        self.began: list[float] = []
        self.asked: list[str] = []
        self.now = self.most = self.cancelled = 0

    async def complete(self, request: Request) -> Reply:
        what = self.does[len(self.began)] if len(self.began) < len(self.does) else self.seconds
        self.began.append(now())
        self.asked.append(request.messages[0]["content"])
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await asyncio.sleep(1e9 if what == "hang" else what if isinstance(what, (int, float)) else 0.0)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.now -= 1
        if isinstance(what, BaseException):
            raise what
        return what if isinstance(what, Reply) else Reply("ok")

    async def check(self) -> None: ...

    def describe(self) -> dict[str, Any]:
        return {"kind": "model", **({"base_url": self.url} if self.url else {})}


class Book:
    """A ledger that allows everything unless told otherwise, and remembers."""

    def __init__(self) -> None:
        self.attempts: list[int] = []
        self.outcomes: list[Any] = []
        self.go = asyncio.Event()
        self.go.set()
        self.moved = asyncio.Event()
        self.room: list[Any] = []  # answers of `begin`, before it starts to allow
        self.slow_record_s = 0.0

    async def ready(self) -> None:
        await self.go.wait()

    def begin(self, attempt: int, model: Any) -> str | None:
        answer = self.room.pop(0) if self.room else "c"
        if isinstance(answer, BaseException):
            raise answer
        if answer is not None:
            self.attempts.append(attempt)
        return answer  # type: ignore[no-any-return]

    async def recorded(self) -> None:
        await asyncio.sleep(self.slow_record_s)

    async def changed(self) -> None:
        await self.moved.wait()
        self.moved.clear()

    def end(self, call: str, outcome: Any) -> None:
        self.outcomes.append(outcome)

    def draw(self, attempt: int) -> Random:
        return Random(attempt)


def gateway(*models: Model, moves: list[Any] | None = None, **limits: Any) -> Gateway:
    return Gateway(
        {"task": models, "reflection": models},
        Limits(**limits),
        (lambda *move: moves.append(move)) if moves is not None else None,
    )


def ask(gate: Gateway, text: str = "q", *, book: Book | None = None, **options: Any) -> asyncio.Task[Reply]:
    request = Request(chat(text), **options)
    return asyncio.create_task(gate.complete(request, book or Book()))


async def settled() -> None:
    """Everything that can happen at this moment has happened."""
    for _ in range(30):
        await asyncio.sleep(0)


# --- the limit --------------------------------------------------------------------------------------------------------------


def test_no_more_calls_are_in_flight_than_the_limit_and_all_get_their_answer() -> None:
    async def work() -> tuple[int, int, float]:
        model = Model()
        gate = gateway(model, concurrency=7)
        replies = await asyncio.gather(*[ask(gate, role=("task", "reflection")[i % 2]) for i in range(100)])
        return len(replies), model.most, now()

    assert virtually(work) == (100, 7, 15.0)


def test_the_limit_is_one_for_all_roles_and_models_of_a_server() -> None:
    async def work() -> list[int]:
        one, two, other = Model(url="http://a"), Model(url="http://a"), Model(url="http://b")
        gate = Gateway({"task": [one], "reflection": [two], "patch": [other]}, Limits(concurrency=3))
        most = 0
        calls = [ask(gate, role=role) for _ in range(10) for role in ("task", "reflection", "patch")]
        while not all(call.done() for call in calls):
            most = max(most, one.now + two.now)
            await asyncio.sleep(0.25)
        return [most, other.most, gate.in_flight]

    assert virtually(work) == [3, 3, 0]


def test_a_role_on_two_servers_uses_the_slots_of_both_and_the_one_with_more_room_first() -> None:
    async def work() -> tuple[int, int, float]:
        slow, fast = Model(url="http://a", seconds=4.0), Model(url="http://b", seconds=1.0)
        gate = gateway(slow, fast, concurrency=2)
        await asyncio.gather(*[ask(gate) for _ in range(10)])
        return len(slow.began), len(fast.began), now()

    assert virtually(work) == (2, 8, 4.0)


def test_the_smallest_priority_goes_first_and_equal_ones_in_order_of_coming() -> None:
    async def work() -> list[str]:
        model = Model()
        gate = gateway(model, concurrency=1)
        waiting = [("first", 9.0), ("low", 5.0), ("high", 1.0), ("low again", 5.0), ("highest", 0.0)]
        await asyncio.gather(*[ask(gate, name, priority=priority) for name, priority in waiting])
        return model.asked

    assert virtually(work) == ["first", "highest", "high", "low", "low again"]


def test_priorities_hold_across_roles() -> None:
    async def work() -> list[str]:
        model = Model()
        gate = gateway(model, concurrency=1)
        await asyncio.gather(ask(gate, "a"), ask(gate, "b", role="reflection", priority=2.0), ask(gate, "c", priority=1.0))
        return model.asked

    assert virtually(work) == ["a", "c", "b"]


def test_raising_the_limit_lets_those_who_wait_go_at_once() -> None:
    async def work() -> list[float]:
        model = Model()
        gate = gateway(model, concurrency=1)
        calls = [ask(gate) for _ in range(5)]
        await asyncio.sleep(0.5)
        gate.resize(3)
        await asyncio.gather(*calls)
        return model.began

    assert virtually(work) == [0.0, 0.5, 0.5, 1.0, 1.5]


def test_lowering_the_limit_cancels_nothing_and_holds_as_soon_as_it_can() -> None:
    async def work() -> tuple[list[float], int]:
        model = Model()
        gate = gateway(model, concurrency=3)
        calls = [ask(gate) for _ in range(6)]
        await asyncio.sleep(0.5)
        gate.resize(1)
        await asyncio.gather(*calls)
        return model.began, model.cancelled

    assert virtually(work) == ([0.0, 0.0, 0.0, 1.0, 2.0, 3.0], 0)


# --- retries ----------------------------------------------------------------------------------------------------------------


def test_what_may_pass_is_tried_again_after_a_wait_that_doubles() -> None:
    async def work() -> tuple[list[float], list[int], list[str]]:
        model, book = Model(Transient("a"), BadReply("b"), Transient("c"), 0), Book()
        await ask(gateway(model, backoff_s=2.0, retries=3), book=book)
        return model.began, book.attempts, [type(outcome).__name__ for outcome in book.outcomes]

    began, attempts, outcomes = virtually(work)
    waits = [later - earlier for earlier, later in zip(began, began[1:], strict=False)]
    jitter = [Random(attempt).uniform(0.5, 1.5) for attempt in range(3)]
    assert waits == pytest.approx([2 * jitter[0], 4 * jitter[1], 8 * jitter[2]])
    assert attempts == [0, 1, 2, 3]
    assert outcomes == ["Transient", "BadReply", "Transient", "Reply"]


def test_the_wait_between_attempts_stays_under_a_minute_and_a_half() -> None:
    async def work() -> list[float]:
        model = Model(*[Transient("down")] * 11)
        with pytest.raises(Transient):
            await ask(gateway(model, retries=10))
        return model.began

    began = virtually(work)
    assert max(later - earlier for earlier, later in zip(began, began[1:], strict=False)) <= 90


def test_after_the_last_retry_the_last_error_is_raised() -> None:
    async def work() -> tuple[str, int]:
        model = Model(Transient("first"), Transient("second"), Transient("third"))
        with pytest.raises(Transient) as raised:
            await ask(gateway(model, retries=2))
        return str(raised.value), len(model.began)

    assert virtually(work) == ("third", 3)


def test_a_refusal_is_not_repeated() -> None:
    async def work() -> int:
        model = Model(Refused("no"))
        with pytest.raises(Refused):
            await ask(gateway(model))
        return len(model.began)

    assert virtually(work) == 1


def test_a_wait_between_attempts_holds_no_slot() -> None:
    async def work() -> list[str]:
        model = Model(Transient("503"))
        gate = gateway(model, concurrency=1, backoff_s=50)
        await asyncio.gather(ask(gate, "unlucky"), ask(gate, "next"), ask(gate, "last"))
        return model.asked

    assert virtually(work) == ["unlucky", "next", "last", "unlucky"]


def test_a_call_that_hangs_is_cancelled_at_its_deadline_and_tried_again() -> None:
    async def work() -> tuple[list[float], int, list[str]]:
        model, book = Model("hang", 0), Book()
        await ask(gateway(model, deadline_s=30, backoff_s=1e-9), book=book)
        return [round(at) for at in model.began], model.cancelled, [str(outcome) for outcome in book.outcomes[:1]]

    assert virtually(work) == ([0, 30], 1, ["no answer within the deadline of 30 s"])


def test_the_deadline_is_for_the_call_and_not_for_the_wait_before_it() -> None:
    async def work() -> int:
        model = Model(seconds=20)
        await asyncio.gather(
            *[ask(gateway_, "q") for gateway_ in [gateway(model, concurrency=1, deadline_s=30)] for _ in range(10)]
        )
        return model.cancelled

    assert virtually(work) == 0


def test_a_429_is_waited_out_as_asked_by_all_calls_of_the_server() -> None:
    async def work() -> list[float]:
        model = Model(RateLimited("slow down", 40.0))
        gate = gateway(model, concurrency=1, backoff_s=1e-9)
        await asyncio.gather(ask(gate, "limited"), ask(gate, "another"))
        return [round(at, 6) for at in model.began]

    assert virtually(work) == [0.0, 40.0, 41.0]


def test_a_429_of_one_server_does_not_stop_the_other() -> None:
    async def work() -> tuple[list[float], float]:
        busy, free = Model(RateLimited("slow down", 100.0), url="http://a"), Model(url="http://b")
        gate = gateway(busy, free, concurrency=1, backoff_s=1e-9)
        await asyncio.gather(*[ask(gate) for _ in range(5)])
        return busy.began, now()

    began, end = virtually(work)
    assert began == [0.0]
    assert end < 10


def test_a_burst_of_429_lowers_the_limit_once_and_answers_raise_it_again() -> None:
    async def work() -> list[Any]:
        moves: list[Any] = []
        gate = gateway(Model(*[RateLimited("429", 1.0)] * 10), moves=moves, concurrency=10)
        await asyncio.gather(*[ask(gate) for _ in range(60)])
        return moves

    moves = virtually(work)
    assert (moves[0][1:3], moves[1][1:3]) == ((10, 7), (7, 8))
    assert moves[0][3] == "429: asked to wait 1 s"
    assert moves[-1][2] == 10


def test_waiting_out_a_429_holds_back_calls_that_come_later_too() -> None:
    async def work() -> list[float]:
        model = Model(RateLimited("429", 10.0))
        gate = gateway(model, backoff_s=1e-9)
        first = ask(gate)
        await asyncio.sleep(5)
        await asyncio.gather(first, ask(gate))
        return [round(at, 6) for at in model.began]

    assert virtually(work) == [0.0, 10.0, 10.0]


def test_a_server_that_asks_for_a_day_is_asked_again_after_five_minutes_and_the_pause_is_told() -> None:
    async def work() -> tuple[list[float], list[Any]]:
        moves: list[Any] = []
        model = Model(RateLimited("tomorrow", 86_400.0))
        await ask(gateway(model, moves=moves, backoff_s=1e-9))
        return [round(at) for at in model.began], moves

    began, moves = virtually(work)
    assert began == [0, 300]
    assert moves[0][3] == "429: asked to wait 86400 s, waiting 300 s"


def test_a_pause_is_told_even_when_the_limit_cannot_go_lower() -> None:
    async def work() -> list[Any]:
        moves: list[Any] = []
        await ask(gateway(Model(RateLimited("429", 40.0)), moves=moves, concurrency=1, backoff_s=1e-9))
        return moves

    assert [move[1:] for move in virtually(work)] == [(1, 1, "429: asked to wait 40 s")]


def test_another_setting_is_told_as_the_move_of_a_limit_it_is() -> None:
    moves: list[Any] = []
    gate = gateway(Model(url="http://a"), moves=moves, concurrency=8)
    gate.resize(8)
    gate.resize(3)
    assert moves == [("http://a", 8, 3, "the setting is 3 now")]


# --- the ledger -------------------------------------------------------------------------------------------------------------


def test_while_the_run_is_paused_waiters_hold_no_slot() -> None:
    async def work() -> list[str]:
        model, held = Model(), Book()
        held.go.clear()
        gate = gateway(model, concurrency=1)
        waiting = [ask(gate, "paused", book=held, priority=-1.0) for _ in range(3)]
        await settled()
        assert gate.in_flight == 0
        await ask(gate, "stepped")
        held.go.set()
        await asyncio.gather(*waiting)
        return model.asked

    assert virtually(work) == ["stepped", "paused", "paused", "paused"]


def test_a_call_without_room_in_the_budget_gives_its_slot_back_and_tries_again_when_something_changed() -> None:
    async def work() -> list[str]:
        model, short = Model(), Book()
        short.room = [None, None]
        gate = gateway(model, concurrency=1)
        waits = ask(gate, "short", book=short)
        await ask(gate, "other")
        for _ in range(2):
            short.moved.set()
            await settled()
        await waits
        return model.asked

    assert virtually(work) == ["other", "short"]


def test_a_call_that_can_never_be_paid_raises_and_gives_its_slot_back() -> None:
    async def work() -> int:
        gate, book = gateway(Model()), Book()
        book.room = [BudgetSpent("llm_calls")]
        with pytest.raises(BudgetSpent):
            await ask(gate, book=book)
        return gate.in_flight

    assert virtually(work) == 0


def test_nothing_is_sent_before_it_is_recorded() -> None:
    async def work() -> list[float]:
        model, book = Model(), Book()
        book.slow_record_s = 3.0
        await ask(gateway(model), book=book)
        return model.began

    assert virtually(work) == [3.0]


# --- cancellation -----------------------------------------------------------------------------------------------------------


def cancelled_in(state: str) -> Callable[[], Awaitable[tuple[int, int, list[str], float]]]:
    """Cancels a call while it is in this state; then uses every slot. (in flight, most, outcomes, end)"""

    async def work() -> tuple[int, int, list[str], float]:
        model, book = Model(Transient("again"), "hang") if state == "backoff" else Model(), Book()
        gate = gateway(model, concurrency=2, backoff_s=1000)
        others = [ask(gate) for _ in range(2)] if state in ("waiting", "granted") else []
        await settled()
        book.room = [None] if state == "changed" else []
        book.slow_record_s = 5.0 if state == "recorded" else 0.0
        book.go.clear() if state == "ready" else None
        call = ask(gate, "mine", book=book)
        await settled()
        if state == "granted":
            call.cancel() if await _granted(gate, others) else None
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await asyncio.gather(*others)
        model.most, began = 0, now()
        await asyncio.gather(*[ask(gate) for _ in range(2)])
        return gate.in_flight, model.most, [type(outcome).__name__ for outcome in book.outcomes], now() - began

    return work


async def _granted(gate: Gateway, others: list[asyncio.Task[Reply]]) -> bool:
    """Waits until a slot has been handed to the waiting call, which has not run since."""
    [(_, _, granted)] = gate._waiting["task"]
    while not granted.done():
        await asyncio.sleep(0.05 if not others[0].done() else 0)
    return True


@pytest.mark.parametrize("state", ["ready", "waiting", "granted", "changed", "recorded", "call", "backoff"])
def test_a_call_cancelled_at_any_await_leaks_no_slot_and_ends_what_it_began(state: str) -> None:
    in_flight, most, outcomes, seconds = virtually(cancelled_in(state))
    assert (in_flight, most) == (0, 2)
    begun = {"call": ["CancelledError"], "recorded": ["CancelledError"], "backoff": ["Transient"]}
    assert outcomes == begun.get(state, [])


def test_calls_cancelled_at_random_moments_never_leak_a_slot() -> None:
    async def work() -> tuple[int, int, bool]:
        random = Random(7)
        does = [random.choice([0.3, 1.0, 2.0, Transient("x"), RateLimited("y", 0.5), "hang"]) for _ in range(400)]
        model = Model(*does)
        gate = gateway(model, concurrency=5, deadline_s=3.0, retries=2)
        calls = [ask(gate, priority=random.random()) for _ in range(300)]
        for call in random.sample(calls, 150):
            await asyncio.sleep(random.choice([0, 0, 0.1, 0.7]))
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        return gate.in_flight, model.now, model.most <= 5

    assert virtually(work) == (0, 0, True)


# --- backends that break their contract -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error", [ValueError("x"), SystemExit(1), KeyboardInterrupt(), asyncio.CancelledError(), OSError(5, "io")], ids=repr
)
def test_whatever_a_backend_raises_is_the_providers_trouble_and_tried_again(error: BaseException) -> None:
    async def work() -> tuple[str, list[str], int]:
        book, gate = Book(), gateway(Model(error))
        reply = await ask(gate, book=book)
        return reply.text, [type(outcome).__name__ for outcome in book.outcomes], gate.in_flight

    assert virtually(work) == ("ok", ["Transient", "Reply"], 0)


def test_a_backend_that_returns_something_else_is_told_what_was_expected() -> None:
    class Text(Model):
        async def complete(self, request: Request) -> Any:
            return "just a text"

    async def work() -> str:
        with pytest.raises(ModelError) as raised:
            await ask(gateway(Text(), retries=0))
        return str(raised.value)

    assert virtually(work) == "Text.complete: expected a lab.Reply with a text; it returned str"


@pytest.mark.parametrize(
    "wrong", [{"concurrency": 0}, {"concurrency": True}, {"concurrency": 2.5}, {"retries": -1}, {"retries": 1.5}, {"deadline_s": 0},
              {"deadline_s": float("nan")}, {"deadline_s": "30"}, {"backoff_s": -1}, {"backoff_s": None}], ids=repr)  # fmt: skip
def test_a_limit_that_makes_no_sense_is_refused_with_its_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(SetupError, match=rf"Limits\({next(iter(wrong))}=…\): expected .* got"):
        Limits(**wrong)
