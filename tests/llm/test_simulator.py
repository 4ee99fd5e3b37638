"""The simulated server's machine on virtual time: slots, queue, speed, faults, cancellation, and its account."""

import asyncio
import selectors
from collections import Counter

import pytest

from flashevolve_lab.errors import RateLimited, SetupError, Transient
from flashevolve_lab.llm.landscapes import IndependentRules, rules_in
from flashevolve_lab.llm.seam import LLM, Request, chat
from flashevolve_lab.llm.simulator import Batching, Faults, FixedLatency, Simulated

EXACT = FixedLatency(task_s=1.0, reflection_s=10.0, task_sigma=0.0, reflection_sigma=0.0, slots=2)
NO_NOISE = {"task_sigma": 0.0, "reflection_sigma": 0.0}


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer."""

    now = 0.0

    def __init__(self):
        super().__init__(JumpingSelector(self))

    def time(self):
        return self.now


class JumpingSelector(selectors.DefaultSelector):
    def __init__(self, loop):
        super().__init__()
        self.loop = loop

    def select(self, timeout=None):
        events = super().select(0)
        if not events:
            assert timeout is not None, "nothing will ever happen again"
            self.loop.now += timeout
        return events


def virtually(work):
    """Runs a coroutine on virtual time; its result and the seconds it took."""
    loop, unseen = VirtualLoop(), []
    loop.set_exception_handler(lambda _, context: unseen.append(context))
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        result = runner.run(work)
    assert not unseen
    return result, loop.now


def question(i, rules=(), **options):
    system = "Answer. " + " ".join(f"RULE-{rule}." for rule in rules)
    return Request(chat(f"Simulated question {i}: this item needs rule {i}", system=system), **options)


def reflect(text="", **options):
    return Request(
        chat(f"Improve.\n```\nRULE-1.\n```\nThe required rule is RULE-2. {text}"), role="reflection", **options
    )


async def timed(llm, request):
    await llm.complete(request)
    return asyncio.get_running_loop().time()


async def all_of(llm, *requests):
    return await asyncio.gather(*[timed(llm, request) for request in requests])


async def tried(llm, request):
    try:
        return (await llm.complete(request)).text
    except (RateLimited, Transient) as error:
        return error.kind


def approx(values):
    return pytest.approx(values, abs=1e-6)


# --- what it is ------------------------------------------------------------------------------------------------------


def test_it_is_an_llm_and_says_in_its_facts_its_replies_and_its_repr_that_it_is_simulated():
    llm = Simulated()
    assert isinstance(llm, LLM)
    reply, _ = virtually(llm.complete(question(3)))
    assert llm.describe()["simulated"] is True
    assert "not a language model" in llm.describe()["label"]
    assert reply.model == "simulated-task"
    assert "not a language model" in repr(llm)


def test_the_landscape_answers():
    reply, _ = virtually(Simulated(IndependentRules()).complete(question(3, rules=(3,))))
    assert (reply.text, reply.finish) == ("ANSWER 3", "stop")
    assert reply.prompt_tokens > 0
    assert reply.completion_tokens > 0
    reply, _ = virtually(Simulated(IndependentRules(p_improve=1.0)).complete(reflect()))
    assert rules_in(reply.text) == {1, 2}


def test_a_reply_longer_than_max_tokens_is_cut_and_says_so():
    reply, _ = virtually(Simulated().complete(reflect(max_tokens=4)))
    assert (reply.finish, reply.completion_tokens) == ("length", 4)
    assert len(reply.text) <= 16


def test_choices_are_neither_cut_nor_padded():
    request = question(3, rules=(3,), max_tokens=1, choices=("ANSWER 3", "ANSWER 4"))
    reply, _ = virtually(Simulated(speed=Batching()).complete(request))
    assert (reply.text, reply.finish) == ("ANSWER 3", "stop")


# --- slots and the queue ---------------------------------------------------------------------------------------------


def test_what_exceeds_the_slots_waits_its_turn():
    ends, _ = virtually(all_of(Simulated(speed=EXACT), *map(question, range(5))))
    assert ends == approx([1, 1, 2, 2, 3])


def test_slots_are_shared_by_all_roles():
    ends, _ = virtually(all_of(Simulated(speed=EXACT), reflect("a"), reflect("b"), question(1)))
    assert ends == approx([10, 10, 11])


def test_those_who_wait_are_served_by_priority_and_then_in_order_of_arrival():
    waiting = [question(i, priority=priority) for i, priority in enumerate([0, 0, 5, 5, 1, 1, 3])]
    ends, _ = virtually(all_of(Simulated(speed=EXACT), *waiting))
    assert ends == approx([1, 1, 3, 4, 2, 2, 3])


def test_a_bound_on_those_who_wait_answers_429():
    speed = FixedLatency(slots=2, max_waiting=1, **NO_NOISE)
    llm = Simulated(speed=speed)

    async def four():
        return await asyncio.gather(*[tried(llm, question(i)) for i in range(4)])

    assert virtually(four())[0].count("rate_limited") == 1
    assert llm.stats()["rejected"] == 1


def test_a_cancelled_request_gives_its_slot_on_at_once():
    async def work():
        llm = Simulated(speed=EXACT)
        a, b, waiting = [asyncio.create_task(timed(llm, r)) for r in (reflect("a"), reflect("b"), question(1))]
        await asyncio.sleep(4)
        a.cancel()
        await asyncio.gather(a, b, waiting, return_exceptions=True)
        return waiting.result(), b.result(), llm.stats()

    (waiting, b, stats), _ = virtually(work())
    assert (waiting, b) == approx((5, 10))
    assert (stats["in_service"], stats["waiting"], stats["roles"]["reflection"]["cancelled"]) == (0, 0, 1)
    assert stats["busy_s"] == approx(4 + 10 + 1)


def test_a_request_cancelled_while_it_waits_never_takes_a_slot():
    async def work():
        llm = Simulated(speed=EXACT)
        tasks = [asyncio.create_task(timed(llm, question(i))) for i in range(4)]
        await asyncio.sleep(0.5)
        tasks[2].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return tasks[3].result(), llm.stats()

    (end, stats), _ = virtually(work())
    assert end == approx(2)
    assert stats["busy_s"] == approx(3)
    assert stats["waiting"] == 0


@pytest.mark.parametrize("cancel_at", [1.0, 1.0 - 1e-12])
def test_a_request_cancelled_in_the_instant_it_ends_frees_its_slot_once(cancel_at):
    async def work():
        llm = Simulated(speed=EXACT)
        task = asyncio.create_task(timed(llm, question(1)))
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_at(cancel_at, task.cancel)
        await asyncio.gather(task, return_exceptions=True)
        return await all_of(llm, *map(question, range(3))), llm.stats()

    (ends, stats), _ = virtually(work())
    assert ends == approx([2, 2, 3])
    assert (stats["in_service"], stats["max_in_service"]) == (0, 2)
    counted = stats["roles"]["task"]
    assert counted["finished"] + counted["cancelled"] == counted["arrived"] == 4


# --- speed -----------------------------------------------------------------------------------------------------------


def test_latencies_are_long_tailed_with_the_given_mean_whatever_the_load():
    llm = Simulated(speed=FixedLatency(task_s=0.25, task_sigma=0.6, slots=5000))
    ends, _ = virtually(all_of(llm, *map(question, range(4000))))
    assert abs(sum(ends) / len(ends) - 0.25) < 0.01
    assert max(ends) > 1.0


def test_identical_requests_at_once_take_times_of_their_own_and_one_after_another_the_same():
    async def work():
        llm, loop = Simulated(), asyncio.get_running_loop()
        together = sorted([end - loop.time() for end in await all_of(llm, *[question(1)] * 3)])
        apart = []
        for _ in range(3):
            began = loop.time()
            apart.append(await timed(llm, question(1)) - began)
        return together, apart, llm.machine().inside

    (together, apart, inside), _ = virtually(work())
    assert len({round(seconds, 6) for seconds in together}) == 3
    assert apart == approx([apart[0]] * 3)
    assert not inside


def test_decoding_slows_down_with_the_number_in_service_and_speeds_up_again():
    speed = Batching(
        task_tokens=100, reflection_tokens=200, tokens_per_s=100, half_load=1, prefill_tokens_per_s=1e12, **NO_NOISE
    )
    alone, _ = virtually(all_of(Simulated(speed=speed), question(1)))
    both, _ = virtually(all_of(Simulated(speed=speed), question(1), reflect()))
    assert alone == approx([1])
    assert both == approx([2, 3])


def test_the_input_takes_time_too():
    speed = Batching(task_tokens=100, tokens_per_s=100, prefill_tokens_per_s=1000, **NO_NOISE)
    request = Request(chat("needs rule 1" + " " * (4 * 2000 - 12)))
    ends, _ = virtually(all_of(Simulated(speed=speed), request))
    assert ends == approx([1 + 2.001])


def test_output_lengths_are_long_tailed_and_charged():
    llm = Simulated(speed=Batching(task_tokens=120, task_sigma=0.8, slots=4000))

    async def work():
        return await asyncio.gather(*[llm.complete(question(i, max_tokens=512)) for i in range(4000)])

    replies, _ = virtually(work())
    lengths = [reply.completion_tokens for reply in replies]
    assert 110 < sum(lengths) / len(lengths) < 125
    assert 10 < Counter(reply.finish for reply in replies)["length"] < 120
    assert max(lengths) == 512


# --- faults ----------------------------------------------------------------------------------------------------------


def test_faults_come_at_their_rates_and_a_retry_may_succeed():
    faults = Faults(rate_limited=0.2, server_error=0.2, empty=0.2)
    llm = Simulated(faults=faults)

    async def work():
        first = await asyncio.gather(*[tried(llm, question(i)) for i in range(1000)])
        again = await asyncio.gather(*[tried(llm, question(i)) for i, was in enumerate(first) if was == "transient"])
        return Counter(first), Counter(again)

    (first, again), _ = virtually(work())
    for kind in ("rate_limited", "transient", ""):
        assert 150 < first[kind] < 250
    assert again["I do not know"] > 0.2 * first["transient"]
    stats = llm.stats()["roles"]["task"]
    assert stats["rejected"] == first["rate_limited"] + again["rate_limited"]
    assert stats["failed"] == first["transient"] + again["transient"]


def test_a_429_says_how_long_to_wait_and_takes_no_slot():
    llm = Simulated(faults=Faults(rate_limited=1.0, retry_after_s=7.0))

    async def work():
        with pytest.raises(RateLimited) as caught:
            await llm.complete(question(1))
        return caught.value.retry_after_s, llm.stats()["busy_s"]

    assert virtually(work()) == ((7.0, 0.0), 0.0)


def test_a_hang_keeps_its_slot_until_it_is_cancelled():
    llm = Simulated(speed=EXACT, faults=Faults(hang=1.0))

    async def work():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(100):
                await llm.complete(question(1))
        return llm.stats()

    stats, at = virtually(work())
    assert at == approx(100)
    assert stats["busy_s"] == approx(100)
    assert (stats["in_service"], stats["roles"]["task"]["hung"]) == (0, 1)


@pytest.mark.parametrize("fault", ["malformed", "truncated", "empty"])
def test_a_spoilt_reflection_has_no_whole_fenced_block(fault):
    reply, _ = virtually(Simulated(faults=Faults(**{fault: 1.0})).complete(reflect()))
    assert reply.text.count("```") < 2
    assert (reply.finish == "length") == (fault == "truncated")


# --- repeatability ---------------------------------------------------------------------------------------------------


def test_the_same_requests_see_the_same_world_in_any_order():
    faults = Faults(rate_limited=0.1, server_error=0.1, empty=0.1, malformed=0.1)

    async def each(order):
        llm = Simulated(speed=FixedLatency(slots=1000), faults=faults, seed=3)

        async def one(i):
            return i, await tried(llm, question(i)), asyncio.get_running_loop().time()

        return sorted(await asyncio.gather(*map(one, order)))

    there, _ = virtually(each(range(100)))
    back, _ = virtually(each(reversed(range(100))))
    assert [a[:2] for a in there] == [b[:2] for b in back]
    assert [a[2] for a in there] == approx([b[2] for b in back])


def test_one_instance_serves_run_after_run_each_starting_afresh():
    llm = Simulated(faults=Faults(server_error=0.5))

    async def work():
        return await asyncio.gather(*[tried(llm, question(i)) for i in range(50)])

    first, second = virtually(work()), virtually(work())
    assert first == second
    assert llm.stats()["roles"]["task"]["arrived"] == 50


def test_it_runs_on_wall_time_unchanged():
    llm = Simulated(speed=FixedLatency(task_s=0.001, slots=8))
    replies = asyncio.run(asyncio.wait_for(all_of(llm, *map(question, range(40))), 5))
    assert len(replies) == llm.stats()["roles"]["task"]["finished"] == 40


# --- the server's own account ----------------------------------------------------------------------------------------


def test_the_statistics_are_the_servers_own_truth():
    llm = Simulated(speed=EXACT)
    assert llm.stats()["busy_s"] == 0.0
    virtually(all_of(llm, *map(question, range(3)), reflect()))
    stats = llm.stats()
    assert stats["elapsed_s"] == approx(11)
    assert stats["busy_s"] == approx(13)
    assert stats["mean_in_service"] == approx(13 / 11)
    assert (stats["max_in_service"], stats["max_waiting"]) == (2, 2)
    assert stats["roles"]["task"]["busy_s"] == approx(3)
    assert stats["roles"]["reflection"]["finished"] == 1


def test_statistics_read_midway_count_what_is_in_service_and_a_reset_starts_them_again():
    async def work():
        llm = Simulated(speed=EXACT)
        task = asyncio.create_task(timed(llm, reflect()))
        await asyncio.sleep(4)
        before = llm.stats()
        llm.reset()
        await asyncio.sleep(2)
        after = llm.stats()
        await task
        return before, after, llm.stats()

    (before, after, end), _ = virtually(work())
    assert (before["busy_s"], before["in_service"]) == (approx(4), 1)
    assert (after["busy_s"], after["in_service"], after["roles"]["reflection"]["arrived"]) == (approx(2), 1, 0)
    assert (end["busy_s"], end["mean_in_service"], end["in_service"]) == (approx(6), approx(1), 0)


@pytest.mark.parametrize(
    "make",
    [
        lambda: FixedLatency(slots=0),
        lambda: FixedLatency(task_s=-1.0),
        lambda: Batching(tokens_per_s=0.0),
        lambda: Batching(max_waiting=-1),
        lambda: Batching(half_load=float("nan")),
        lambda: Faults(hang=-0.1),
        lambda: Faults(hang=0.6, empty=0.6),
    ],
)
def test_settings_out_of_range_are_refused_before_anything_runs(make):
    with pytest.raises(SetupError, match="expected"):
        make()
