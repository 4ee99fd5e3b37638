"""Second calls for late ones, on virtual time: when one is sent and when not, who wins, and that nothing leaks or is lost."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import pytest

from flashevolve_lab.engine import VirtualLoop
from flashevolve_lab.errors import BadReply, ModelError, RateLimited, Refused, SetupError, Transient
from flashevolve_lab.llm import Gateway, Limits, Reply, Request, chat
from flashevolve_lab.llm.hedging import Durations
from flashevolve_lab.runs.knobs import limits_in_force, limits_recorded

LATE_S = 2.0  # after warm-up calls of a second each: twice their median


def virtually(work: Callable[[], Awaitable[Any]]) -> Any:
    """The result of a coroutine function on virtual time; nothing may go wrong unseen, no task may be left over."""
    loop = VirtualLoop()
    unseen: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: unseen.append(context))

    async def watched() -> Any:
        result = await work()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return result

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        result = runner.run(watched())
    assert not unseen
    return result


def now() -> float:
    return asyncio.get_running_loop().time()


class Model:
    """Answers after a second with the number of the call; ``does[text]`` lists what happens to the calls of a text instead."""

    def __init__(self, url: str | None = None, **does: list[Any]) -> None:
        self.url, self.does = url, does
        self.asked: list[tuple[float, str]] = []
        self.now = self.most = self.cancelled = 0

    async def complete(self, request: Request) -> Reply:
        text = request.messages[0]["content"]
        what = self.does[text].pop(0) if self.does.get(text) else 1.0
        self.asked.append((now(), text))
        number = len(self.asked)
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            after, error = what if isinstance(what, tuple) else (what, None)
            await asyncio.sleep(1e9 if after == "hang" else after)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.now -= 1
        if error is not None:
            raise error
        return Reply(str(number))

    def times(self, text: str) -> list[float]:
        return [round(at, 6) for at, asked in self.asked if asked == text]

    async def check(self) -> None: ...

    def describe(self) -> dict[str, Any]:
        return {"kind": "model", **({"base_url": self.url} if self.url else {})}


class Book:
    """The ledger of one attempt after the other; ``hedges`` False: no room for a second call."""

    def __init__(self, *, hedges: bool = True, slow_record_s: float = 0.0) -> None:
        self.hedges, self.slow_record_s = hedges, slow_record_s
        self.begun: list[tuple[int, bool]] = []
        self.ends: dict[str, list[Any]] = {}
        self.go = asyncio.Event()
        self.go.set()

    async def ready(self) -> None:
        await self.go.wait()

    def begin(self, attempt: int, model: Any, *, hedge: bool = False) -> str | None:
        if hedge and not (self.hedges and self.go.is_set()):
            return None
        self.begun.append((attempt, hedge))
        call = f"c{len(self.begun)}"
        self.ends[call] = []
        return call

    async def recorded(self) -> None:
        await asyncio.sleep(self.slow_record_s)

    async def changed(self) -> None:
        await asyncio.sleep(1)

    def end(self, call: str, outcome: Any) -> None:
        self.ends[call].append(outcome)

    def draw(self, attempt: int) -> Random:
        return Random(attempt)

    @property
    def outcomes(self) -> list[str]:
        """How each call ended, in the order they began; every one has ended once."""
        assert all(len(ends) == 1 for ends in self.ends.values())
        return [type(ends[0]).__name__ for ends in self.ends.values()]


def gateway(*models: Model, moves: list[Any] | None = None, **limits: Any) -> Gateway:
    told = (lambda *move: moves.append(move)) if moves is not None else None
    return Gateway({"task": models, "reflection": models}, Limits(**{"hedge": 0.9, "backoff_s": 1e-9, **limits}), told)


def ask(gate: Gateway, text: str = "q", *, book: Book | None = None, **options: Any) -> asyncio.Task[Reply]:
    return asyncio.create_task(gate.complete(Request(chat(text), **options), book or Book()))


async def warm(gate: Gateway, calls: int = 20) -> None:
    """The gateway has seen this many calls of a second each."""
    for _ in range(calls):
        await ask(gate, "warm up")


def idle(gate: Gateway) -> bool:
    """Nothing is held, and nobody is waited for."""
    return gate.in_flight == 0 and not gate._late and not gate._seconds and not any(e.hedges for e in gate.endpoints.values())


# --- who wins ---------------------------------------------------------------------------------------------------------------


def test_a_late_call_gets_a_second_one_and_the_first_answer_counts() -> None:
    async def work() -> tuple[Any, ...]:
        model, book = Model(slow=[100.0, 1.5]), Book()
        gate = gateway(model)
        await warm(gate)
        began = now()
        reply = await ask(gate, "slow", book=book)
        waits = [at - began for at in model.times("slow")]
        return waits, now() - began, reply.text, book.begun, book.outcomes, model.cancelled, idle(gate)

    waits, took, text, begun, outcomes, cancelled, free = virtually(work)
    assert (waits, took) == ([0.0, LATE_S], LATE_S + 1.5)
    assert text == "22" and begun == [(0, False), (0, True)]
    assert outcomes == ["CancelledError", "Reply"] and cancelled == 1 and free


def test_a_first_call_that_is_answered_before_the_second_wins() -> None:
    async def work() -> tuple[Any, ...]:
        model, book = Model(slow=[2.5, 30.0]), Book()
        gate = gateway(model)
        await warm(gate)
        began = now()
        reply = await ask(gate, "slow", book=book)
        return now() - began, reply.text, book.outcomes, model.cancelled, idle(gate)

    assert virtually(work) == (2.5, "21", ["Reply", "CancelledError"], 1, True)


def test_two_answers_of_one_moment_are_both_recorded_and_one_is_returned() -> None:
    async def work() -> tuple[Any, ...]:
        model, book = Model(slow=[5.0, 3.0]), Book()
        gate = gateway(model)
        await warm(gate)
        reply = await ask(gate, "slow", book=book)
        kept = [call for call, ends in book.ends.items() if isinstance(ends[0], Reply) and ends[0].text == reply.text]
        return len(kept), idle(gate), set(book.outcomes) <= {"Reply", "CancelledError"}

    assert virtually(work) == (1, True, True)


def test_off_by_default_nothing_is_asked_twice() -> None:
    async def work() -> list[float]:
        model = Model(slow=[100.0])
        gate = gateway(model, hedge=None)
        await warm(gate)
        await ask(gate, "slow")
        return model.times("slow")

    assert Limits().hedge is None
    assert len(virtually(work)) == 1


@pytest.mark.parametrize(("calls", "asked"), [(19, 1), (20, 2)])
def test_nothing_is_late_before_twenty_durations_of_the_role_are_known(calls: int, asked: int) -> None:
    async def work() -> tuple[int, int]:
        model = Model(slow=[100.0], other=[100.0])
        gate = gateway(model)
        await warm(gate, calls)
        await ask(gate, "slow")
        await ask(gate, "other", role="reflection")
        return len(model.times("slow")), len(model.times("other"))

    assert virtually(work) == (asked, 1)


def test_an_attempt_gets_one_second_call_and_no_third() -> None:
    async def work() -> tuple[int, float, bool]:
        model = Model(slow=[50.0, 60.0])
        gate = gateway(model)
        await warm(gate)
        began = now()
        await ask(gate, "slow")
        return len(model.times("slow")), now() - began, idle(gate)

    assert virtually(work) == (2, 50.0, True)


def test_the_second_call_may_go_to_another_server_of_the_role() -> None:
    async def work() -> tuple[int, int, bool]:
        stuck, well = Model("http://a", slow=["hang"]), Model("http://b")
        gate = gateway(stuck, well, concurrency=3)
        await warm(gate)
        await ask(gate, "slow")
        return len(stuck.times("slow")), len(well.times("slow")), idle(gate)

    assert virtually(work) == (1, 1, True)


# --- failures ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error", [Transient("500"), BadReply("nothing"), RateLimited("429", 0.0), ModelError("odd"), Refused("no")], ids=repr
)
def test_a_second_call_that_fails_leaves_the_first_alone(error: ModelError) -> None:
    async def work() -> tuple[Any, ...]:
        book = Book()
        gate = gateway(Model(slow=[9.0, (1.0, error)]))
        await warm(gate)
        reply = await ask(gate, "slow", book=book)
        return reply.text, book.outcomes, idle(gate)

    assert virtually(work) == ("21", ["Reply", type(error).__name__], True)


@pytest.mark.parametrize("error", [Transient("500"), BadReply("nothing"), RateLimited("429", 0.0)], ids=repr)
def test_a_first_call_that_fails_while_the_second_runs_is_no_retry_yet(error: ModelError) -> None:
    async def work() -> tuple[Any, ...]:
        book = Book()
        gate = gateway(Model(slow=[(3.0, error), 8.0]), concurrency=4)
        await warm(gate)
        call = ask(gate, "slow", book=book)
        await asyncio.sleep(4)
        held = gate.in_flight
        reply = await call
        return held, reply.text, book.begun, book.outcomes, idle(gate)

    assert virtually(work) == (1, "22", [(0, False), (0, True)], [type(error).__name__, "Reply"], True)


def test_an_attempt_fails_when_both_calls_do_and_is_then_tried_again() -> None:
    async def work() -> tuple[Any, ...]:
        book = Book()
        gate = gateway(Model(slow=[(3.0, Transient("first")), (4.0, Transient("second")), 1.0]))
        await warm(gate)
        reply = await ask(gate, "slow", book=book)
        return reply.text, book.begun, book.outcomes, idle(gate)

    assert virtually(work) == ("23", [(0, False), (0, True), (1, False)], ["Transient", "Transient", "Reply"], True)


def test_a_refusal_of_the_first_ends_the_second_at_once() -> None:
    async def work() -> tuple[Any, ...]:
        book, gate = Book(), gateway(Model(slow=[(3.0, Refused("no")), 50.0]))
        await warm(gate)
        began = now()
        with pytest.raises(Refused):
            await ask(gate, "slow", book=book)
        return now() - began, book.outcomes, idle(gate)

    assert virtually(work) == (3.0, ["Refused", "CancelledError"], True)


def test_each_of_the_two_has_the_whole_deadline() -> None:
    async def work() -> tuple[Any, ...]:
        book, moves = Book(), []  # type: ignore[var-annotated]
        gate = gateway(Model(slow=["hang", 9.5]), moves=moves, deadline_s=10.0)
        await warm(gate)
        began = now()
        await ask(gate, "slow", book=book)
        return now() - began, book.outcomes, [move[3] for move in moves][:1], idle(gate)

    assert virtually(work) == (LATE_S + 9.5, ["TimeoutError", "Reply"], ["a deadline was missed"], True)


def test_a_429_of_the_second_call_lowers_the_limit_like_any_other() -> None:
    async def work() -> tuple[Any, ...]:
        moves: list[Any] = []
        gate = gateway(Model(slow=[9.0, (0.0, RateLimited("429", 40.0))]), moves=moves, concurrency=10)
        await warm(gate)
        await ask(gate, "slow")
        [endpoint] = gate.endpoints.values()
        return moves[0][1:], endpoint.blocked_until > now(), idle(gate)

    assert virtually(work) == ((10, 7, "429: asked to wait 40 s"), True, True)


# --- room -------------------------------------------------------------------------------------------------------------------


def test_a_server_without_a_free_slot_gets_no_second_call_until_it_has_one() -> None:
    async def work() -> tuple[Any, ...]:
        model = Model(slow=[100.0, 1.0], full=[30.0])
        gate = gateway(model, concurrency=2)
        await warm(gate)
        began = now()
        full = ask(gate, "full")
        await ask(gate, "slow")
        return [at - began for at in model.times("slow")], model.most, len(model.times("full")), await full and idle(gate)

    # both are late at 2 s; the one that has been late for longer has ended by the time there is a slot
    assert virtually(work) == ([0.0, 30.0], 2, 1, True)


def test_no_second_call_takes_a_slot_that_somebody_waits_for() -> None:
    async def work() -> tuple[Any, ...]:
        model = Model(slow=[20.0])
        gate = gateway(model, concurrency=2)
        await warm(gate)
        slow = ask(gate, "slow")
        await asyncio.gather(*[ask(gate, "many", priority=5.0) for _ in range(40)])
        await slow
        return len(model.times("slow")), model.most, now(), idle(gate)

    assert virtually(work) == (1, 2, 20 + 20 + 10, True)


def test_whoever_waited_out_a_pause_of_the_server_goes_before_a_second_call_of_the_same_moment() -> None:
    async def work() -> tuple[Any, ...]:
        model = Model(slow=[20.0], limited=[(0.0, RateLimited("429", LATE_S))])
        gate = gateway(model, concurrency=3)  # two after the 429: one for the slow call, one for whoever is next
        await warm(gate)
        began = now()
        slow, limited = ask(gate, "slow"), ask(gate, "limited")
        await limited
        took = now() - began
        await slow
        return took, [at - began for at in model.times("slow")], idle(gate)

    assert virtually(work) == (LATE_S + 1.0, [0.0, LATE_S + 1.0], True)


@pytest.mark.parametrize(("concurrency", "most"), [(8, 1), (39, 1), (40, 2), (64, 3)])
def test_at_most_a_twentieth_of_the_limit_are_second_calls_and_at_least_one(concurrency: int, most: int) -> None:
    async def work() -> tuple[int, bool]:
        model = Model(slow=[50.0] * 200)
        gate = gateway(model, concurrency=concurrency)
        await warm(gate)
        calls = [ask(gate, "slow") for _ in range(6)]
        await asyncio.sleep(10)
        [endpoint] = gate.endpoints.values()
        seen = endpoint.hedges
        await asyncio.gather(*calls)
        return seen, idle(gate)

    assert virtually(work) == (most, True)


def test_without_room_in_the_budget_there_is_no_second_call_and_no_error() -> None:
    async def work() -> tuple[Any, ...]:
        model, book = Model(slow=[30.0]), Book(hedges=False)
        gate = gateway(model)
        await warm(gate)
        reply = await ask(gate, "slow", book=book)
        return reply.text, len(model.times("slow")), book.outcomes, idle(gate)

    assert virtually(work) == ("21", 1, ["Reply"], True)


def test_while_the_run_is_paused_nothing_is_sent_twice() -> None:
    async def work() -> tuple[int, list[str]]:
        model, book = Model(slow=[30.0]), Book()
        gate = gateway(model)
        await warm(gate)
        call = ask(gate, "slow", book=book)
        await asyncio.sleep(1)
        book.go.clear()
        await call
        return len(model.times("slow")), book.outcomes

    assert virtually(work) == (1, ["Reply"])


def test_a_pause_that_the_server_asked_for_holds_second_calls_back() -> None:
    async def work() -> int:
        model = Model(slow=[30.0], limited=[(0.0, RateLimited("429", 100.0))])
        gate = gateway(model)
        await warm(gate)
        slow, limited = ask(gate, "slow"), ask(gate, "limited")
        await slow
        await limited
        return len(model.times("slow"))

    assert virtually(work) == 1


# --- cancellation -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("after_s", [0.0, 1.0, LATE_S, LATE_S + 0.5, 3.0, 3.5, 4.0, 4.5])
@pytest.mark.parametrize("slow_record_s", [0.0, 1.0])
def test_a_cancelled_attempt_ends_both_calls_whatever_they_are_at(after_s: float, slow_record_s: float) -> None:
    """At 3 s the first may fail, at 4 s both would answer; with a slow log the second is not sent yet."""

    async def work() -> tuple[Any, ...]:
        book = Book(slow_record_s=slow_record_s)
        model = Model(slow=[(3.0 - slow_record_s, Transient("500")), 5.0])
        gate = gateway(model, backoff_s=1000.0, concurrency=4)
        await warm(gate)
        call = ask(gate, "slow", book=book)
        await asyncio.sleep(0)
        await asyncio.sleep(after_s)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert book.outcomes[-1:] == ["CancelledError"]
        return model.now, idle(gate)

    assert virtually(work) == (0, True)


def test_a_second_call_cancelled_before_its_task_has_run_is_recorded_and_gives_its_slot_back() -> None:
    async def work() -> tuple[Any, ...]:
        book, model = Book(), Model(slow=[30.0])
        gate = gateway(model)
        await warm(gate)
        calls: list[asyncio.Task[Reply]] = []
        asyncio.get_running_loop().call_at(now() + LATE_S, lambda: calls[0].cancel())  # in the alarm's turn, before it
        call = ask(gate, "slow", book=book)
        calls.append(call)
        with pytest.raises(asyncio.CancelledError):
            await call
        return book.begun, book.outcomes, len(model.times("slow")), idle(gate)

    assert virtually(work) == ([(0, False), (0, True)], ["CancelledError"] * 2, 1, True)


class Stubborn(Model):
    """Takes ten seconds to notice a cancellation."""

    async def complete(self, request: Request) -> Reply:
        try:
            return await super().complete(request)
        except asyncio.CancelledError:
            await asyncio.sleep(10)
            raise


def test_a_loser_that_ends_slowly_delays_the_answer_by_a_second_at_most_and_holds_its_slot_until_it_has_ended() -> None:
    async def work() -> tuple[Any, ...]:
        book = Book()
        gate = gateway(Stubborn(slow=[3.0, 50.0]))
        await warm(gate)
        began = now()
        await ask(gate, "slow", book=book)
        took, held = now() - began, gate.in_flight
        await asyncio.sleep(20)
        return took, held, book.outcomes, idle(gate)

    assert virtually(work) == (4.0, 1, ["Reply", "CancelledError"], True)


async def _scramble(seed: int) -> Counter[str]:
    """A random world: calls of random length and luck on one or two servers, cancelled, paused and resized at random moments."""
    random = Random(seed)
    pick = [
        0.3,
        1.0,
        2.0,
        7.0,
        "hang",
        (1.0, Transient("x")),
        (4.0, BadReply("y")),
        (0.0, RateLimited("z", 0.5)),
        (3.0, Refused("n")),
    ]
    texts = [f"t{i}" for i in range(random.randint(3, 30))]
    does = {text: random.choices(pick, [4, 8, 4, 3, 1, 1, 1, 1, 0.5], k=8) for text in texts}
    models = [
        Model(url, **{text: list(what) for text, what in does.items()})
        for url in ("http://a", "http://b")[: random.choice([1, 1, 2])]
    ]
    ceiling = random.randint(1, 12)
    gate = gateway(
        *models, concurrency=ceiling, deadline_s=12.0, retries=2, backoff_s=0.5, hedge=random.choice([0.5, 0.9, 0.99])
    )
    await warm(gate, random.choice([10, 20, 25]))
    books = {text: Book(hedges=random.random() < 0.9, slow_record_s=random.choice([0.0, 0.0, 0.4])) for text in texts}
    calls = {text: ask(gate, text, book=books[text], priority=random.random()) for text in texts}
    for text in random.sample(texts, len(texts) // 2):
        await asyncio.sleep(random.choice([0, 0, 0.1, 0.7, 2.0]))
        match random.randrange(4):
            case 0 | 1:
                calls[text].cancel()
            case 2:
                books[text].go.clear()
                asyncio.get_running_loop().call_later(3.0, books[text].go.set)
            case _:
                lowered = random.randint(1, ceiling)
                gate.resize(lowered)
    ended = await asyncio.gather(*calls.values(), return_exceptions=True)
    seen: Counter[str] = Counter()
    for text, result in zip(texts, ended, strict=True):
        book, attempts = books[text], Counter(books[text].begun)
        assert max(attempts.values(), default=0) <= 1, "more than one call of a kind in an attempt"
        outcomes = book.outcomes  # each call has ended once
        arrived = sum(len(model.times(text)) for model in models)
        assert arrived <= len(outcomes) and len(outcomes) - arrived <= outcomes.count("CancelledError")
        assert isinstance(result, Reply) <= ("Reply" in outcomes)
        seen.update(hedges=sum(hedge for _, hedge in book.begun), answers=isinstance(result, Reply), calls=len(outcomes))
    assert idle(gate) and all(model.now == 0 and model.most <= ceiling for model in models)
    return seen


def test_nothing_leaks_is_lost_or_counted_twice_in_five_hundred_random_runs() -> None:
    total: Counter[str] = Counter()
    for seed in range(500):
        total += virtually(lambda seed=seed: _scramble(seed))
    assert total["hedges"] > 500 and total["answers"] > 3000  # the worlds were not empty


# --- durations --------------------------------------------------------------------------------------------------------------


def test_a_threshold_is_the_quantile_of_the_last_two_hundred_within_two_and_ten_medians() -> None:
    known = Durations()
    for i in range(1, 20):
        known.add(float(i))
    assert known.threshold_s(0.95) is None
    for i in range(20, 101):
        known.add(float(i))
    assert (known.threshold_s(0.5), known.threshold_s(0.95)) == (102.0, 102.0)
    for i in range(20):
        known.add(10_000.0 if i % 2 else 300.0)
    assert known.threshold_s(0.85) == 300.0
    assert known.threshold_s(0.99) == 10 * 61
    for _ in range(200):
        known.add(1.0)
    assert known.threshold_s(0.95) == 2.0


def test_second_calls_do_not_make_the_next_ones_come_earlier() -> None:
    async def work() -> tuple[int, int]:
        random = Random(3)
        does = [random.lognormvariate(0.0, 1.0) for _ in range(5000)]
        model, book = Model(q=does), Book()
        gate = gateway(model, hedge=0.9)
        for _ in range(1500):
            await ask(gate, book=book)
        return sum(hedge for _, hedge in book.begun), len(book.begun)

    hedges, calls = virtually(work)
    assert 0.08 < hedges / (calls - hedges) < 0.12


def test_where_a_tenth_of_the_calls_hang_hedging_still_begins() -> None:
    async def work() -> float:
        model = Model(q=["hang" if i % 10 == 9 else 1.0 for i in range(2000)])
        gate = gateway(model, hedge=0.95, deadline_s=1000.0)
        for _ in range(9):
            await ask(gate)
        model.does["q"] = [1.0] * 11 + model.does["q"]
        for _ in range(600):
            began = now()
            await ask(gate)
        return now() - began

    assert virtually(work) <= 11.0


# --- settings ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [True, False, 0, 1, 1.0, 0.49, 95, -0.5, float("nan"), "0.95"], ids=repr)
def test_a_quantile_that_makes_no_sense_is_refused(wrong: Any) -> None:
    with pytest.raises(SetupError, match=r"Limits\(hedge=…\): expected a quantile from 0.5 to below 1, .* got"):
        Limits(hedge=wrong)


def test_the_setting_is_recorded_and_an_old_log_says_off() -> None:
    limits = Limits(hedge=0.95, concurrency=9)
    said = limits_recorded(limits, 60.0)
    assert limits_in_force({"limits": said, "concurrency": 9}) == (limits, 60.0)
    del said["hedge"]
    assert limits_in_force({"limits": said})[0].hedge is None
