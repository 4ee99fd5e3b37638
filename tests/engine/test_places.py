"""Where a user's code runs, and what it cannot do to the engine."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from typing import Any

import pytest

import flashevolve_lab as lab
from flashevolve_lab.core import events as ev
from flashevolve_lab.engine import VirtualLoop
from flashevolve_lab.engine.places import Places


def alone(code: str, *, timeout: float = 20) -> subprocess.CompletedProcess[str]:
    """The code in an interpreter of its own."""
    begin = "import asyncio, sys, threading, time\nimport flashevolve_lab as lab\n"
    command = [sys.executable, "-W", "error", "-c", begin + textwrap.dedent(code)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout)


def placed(work: Callable[[Places], Any], loop: asyncio.AbstractEventLoop | None = None) -> Any:
    """Runs ``work(places)`` on a loop with places of its own."""
    loop = loop or asyncio.SelectorEventLoop()

    async def main() -> Any:
        places = Places(loop)
        try:
            return await work(places)
        finally:
            places.close()

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(main())


# --- which thread -----------------------------------------------------------------------------------------------------------


def test_a_synchronous_function_runs_in_a_thread_and_an_async_or_quick_one_on_the_loop() -> None:
    async def on_the_loop() -> str:
        return threading.current_thread().name

    async def work(places: Places) -> list[str]:
        here = threading.current_thread().name
        quick = lab.quick(lambda: threading.current_thread().name)
        seen = [await places.call(f) for f in (lambda: threading.current_thread().name, on_the_loop, quick)]
        return ["loop" if name == here else name for name in seen]

    assert placed(work) == ["lab-user-code", "loop", "loop"]


def test_a_function_that_returns_an_awaitable_is_awaited() -> None:
    async def value() -> int:
        return 7

    assert placed(lambda places: places.call(lambda: value())) == 7


def test_an_object_with_an_async_call_runs_on_the_loop() -> None:
    class Judge:
        async def __call__(self) -> int:
            return threading.get_ident()

    async def work(places: Places) -> bool:
        return await places.call(Judge()) == threading.get_ident()

    assert placed(work)


def test_a_slow_synchronous_function_does_not_block_the_loop() -> None:
    async def work(places: Places) -> int:
        go, turns = threading.Event(), 0
        slow = asyncio.ensure_future(places.call(go.wait))
        while turns < 1000:
            await asyncio.sleep(0)
            turns += 1
        assert not slow.done()
        go.set()
        assert await slow
        return turns

    assert placed(work) == 1000


def test_idle_threads_are_used_again() -> None:
    async def work(places: Places) -> int:
        return len({await places.call(threading.get_ident) for _ in range(50)})

    assert placed(work) <= 2  # a thread says that it is idle a moment after its result


# --- what it raises ---------------------------------------------------------------------------------------------------------


class Odd(BaseException):
    """Not an Exception: like those of pytest.fail and pytest.skip."""


RAISED = [
    SystemExit(3),
    StopIteration("x"),
    KeyboardInterrupt(),
    Odd("odd"),
    asyncio.CancelledError(),
    ValueError("v"),
    StopAsyncIteration(),
]


@pytest.mark.parametrize("kind", ["sync", "async", "quick"])
@pytest.mark.parametrize("raised", RAISED, ids=lambda e: type(e).__name__)
def test_whatever_user_code_raises_arrives_as_an_ordinary_exception(kind: str, raised: BaseException) -> None:
    def bad() -> None:
        raise raised

    async def also_bad() -> None:
        raise raised

    function: Any = {"sync": bad, "async": also_bad, "quick": lab.quick(lambda: bad())}[kind]

    async def work(places: Places) -> str:
        try:
            await places.call(function)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return "nothing"

    assert type(raised).__name__ in placed(work)


def test_being_cancelled_is_not_mistaken_for_user_code_that_raises_cancelled() -> None:
    async def forever() -> None:
        await asyncio.Event().wait()

    async def work(places: Places) -> bool:
        task = asyncio.ensure_future(places.call(forever))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return task.cancelled()

    assert placed(work)


def test_a_cancelled_call_abandons_its_thread_and_says_which_job_it_holds() -> None:
    from flashevolve_lab.engine.places import OWNER

    go = threading.Event()

    async def job(places: Places) -> None:
        OWNER.set((places, "j7"))
        await places.call(go.wait)

    async def work(places: Places) -> list[frozenset[str]]:
        task = asyncio.create_task(job(places))
        await asyncio.sleep(0)
        seen = [places.held_by_threads()]
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        seen.append(places.held_by_threads())
        go.set()
        while places.held_by_threads():
            await asyncio.sleep(0)
        return seen

    assert placed(work) == [{"j7"}, {"j7"}]


def test_virtual_time_stands_still_while_a_thread_works() -> None:
    loop = VirtualLoop()

    async def work(places: Places) -> list[float]:
        go = threading.Event()
        timer = asyncio.create_task(asyncio.sleep(5))
        slow = asyncio.create_task(places.call(go.wait))
        for _ in range(100):
            await asyncio.sleep(0)
        seen = [loop.time()]
        go.set()
        await slow
        seen.append(loop.time())
        await timer
        return [*seen, loop.time()]

    assert placed(work, loop) == [0.0, 0.0, 5.0]


# --- in a run ---------------------------------------------------------------------------------------------------------------


def test_a_run_with_a_synchronous_metric_that_calls_asyncio_run_works(world: Any, task_of: Any) -> None:
    async def judged(output: str) -> float:
        await asyncio.sleep(0)
        return int(output) / 1000

    w = world(task=task_of(metric=lambda example, output: asyncio.run(judged(output)))).run()
    assert w.end.kind == "budget"
    assert not w.of(ev.SampleFailed)
    assert w.shell.state.pool.version > 3


def test_an_async_metric_that_calls_asyncio_run_works_and_only_then_is_nest_asyncio2_loaded() -> None:
    done = alone("""
        import tempfile
        async def value(): return 0.5
        async def plain(example, output): return 0.5
        async def nested(example, output):
            await asyncio.sleep(0)
            return asyncio.run(value())
        for metric in (plain, nested):
            world = lab.IndependentRules()
            task = lab.Task(train=world.examples(4), val=world.examples(4, 4), seed="s", program=lab.Prompt(), metric=metric)
            with tempfile.TemporaryDirectory() as folder:
                run = lab.start(task, llm=lab.Simulated(world), budget=lab.Budget(metric_calls=100, proposals=10), clock=lab.Virtual(),
                                folder=folder)
                status = run.wait(20)
                assert status.state == "stopped", status
                assert status.seed_score == 0.5, (metric, run.frame("failures") if status.seed_score is None else status)
            print("nest_asyncio2" in sys.modules)
        """)
    assert done.stdout.split() == ["False", "True"], done.stderr


def test_an_async_program_that_calls_asyncio_run_may_still_ask_the_model() -> None:
    done = alone("""
        import tempfile
        async def value(): return "!"
        async def program(components, example, llm):
            mark = asyncio.run(value())
            return (await llm.complete(example["input"], system=components["prompt"])).text + mark
        world = lab.IndependentRules()
        metric = lambda example, output: float(output.endswith("!")) / 2
        task = lab.Task(train=world.examples(4), val=world.examples(4, 4), seed="s", program=program, metric=metric)
        for clock in (lab.Wall(), lab.Virtual()):
            with tempfile.TemporaryDirectory() as folder:
                llm = lab.Simulated(world, speed=lab.FixedLatency(task_s=0.001, reflection_s=0.001))
                run = lab.start(task, llm=llm, budget=lab.Budget(proposals=10), clock=clock, folder=folder)
                status = run.wait(20)
                assert status.state == "stopped", status
                print(status.seed_score, status.proposals)
        """)
    assert done.stdout.split("\n")[:2] == ["0.5 10", "0.5 10"], done.stdout + done.stderr


@pytest.mark.parametrize("clock", [lab.Wall(), lab.Virtual()], ids=["wall", "virtual"])
def test_a_synchronous_program_asks_from_its_thread(world: Any, scripted: Any, task_of: Any, clock: Any) -> None:
    threads: set[str] = set()

    def program(components: Any, example: Any, llm: Any) -> str:
        threads.add(threading.current_thread().name)
        first = llm.ask(example["input"], system=components["prompt"], max_tokens=10)
        return max(first, llm.ask([{"role": "user", "content": components["prompt"]}], max_tokens=10))

    w = world(scripted(task_s=0.001, reflect_s=0.001), task=task_of(program=program), clock=clock).run()
    assert w.end.kind == "budget"
    assert threads == {"lab-user-code"}
    assert w.shell.state.pool.version > 3
    assert w.shell.state.spent.llm_calls > 2 * len(w.of(ev.SampleScored)) - 1


def test_asking_from_the_engines_own_thread_is_an_error_that_says_what_to_do_instead_of_a_deadlock(
    world: Any, task_of: Any
) -> None:
    async def program(components: Any, example: Any, llm: Any) -> str:
        return str(llm.ask(example["input"]))

    w = world(task=task_of(program=program), budget={"metric_calls": 20}).run()
    assert "await llm.complete" in w.of(ev.SampleScored)[0].feedback


@pytest.mark.parametrize("clock", [lab.Wall(), lab.Virtual()], ids=["wall", "virtual"])
def test_a_program_in_a_thread_may_run_the_async_call_on_a_loop_of_its_own(
    world: Any, scripted: Any, task_of: Any, clock: Any
) -> None:
    def program(components: Any, example: Any, llm: Any) -> str:
        return str(asyncio.run(llm.complete(example["input"], system=components["prompt"])).text)

    w = world(
        scripted(task_s=0.001, reflect_s=0.001), task=task_of(program=program), clock=clock, budget={"metric_calls": 50}
    ).run()
    assert w.end.kind == "budget"
    assert w.shell.state.pool.version > 1


def test_on_virtual_time_threads_change_nothing_about_the_log(world: Any, task_of: Any) -> None:
    """All samples of a job end at the same instant here, and each goes through two threads."""

    def program(components: Any, example: Any, llm: Any) -> str:
        first = str(llm.ask(example["input"], system=components["prompt"]))
        return str(llm.ask(first, system=components["prompt"]))

    def metric(example: Any, output: str) -> tuple[float, str]:
        return int(output) / 1000, example["input"]

    logs = [world(task=task_of(program=program, metric=metric)).run().entries for _ in range(4)]
    assert logs[0] == logs[1] == logs[2] == logs[3]


HUNG = """
    import tempfile
    hung = threading.Event()
    def metric(example, output):
        if example["input"].endswith("rule 5"):
            hung.set()
            threading.Event().wait()
        return 0.5
    world = lab.IndependentRules()
    task = lab.Task(train=world.examples(4), val=world.examples(4, 4), seed="s", program=lab.Prompt(), metric=metric)
    folder = tempfile.mkdtemp()
    llm = lab.Simulated(world, speed=lab.FixedLatency(task_s=0.001, reflection_s=0.001))
    run = lab.start(task, llm=llm, budget=lab.Budget(proposals=10), folder=folder, name="r", clock=lab.CLOCK())
    hung.wait()
    """


@pytest.mark.parametrize("clock", ["Wall", "Virtual"])
def test_a_hung_thread_is_abandoned_by_a_stop_and_does_not_keep_the_interpreter(clock: str) -> None:
    done = alone(
        HUNG.replace("CLOCK", clock)
        + """
    began = time.monotonic()
    status = run.stop("enough").wait(5)
    lost = [e.event for e in run.entries if type(e.event).__name__ == "JobAbandoned"]
    print(status.state, status.reason, time.monotonic() - began < 1.5, [e.still_running for e in lost])
    """
    )
    assert done.stdout.strip() == "stopped enough True [True]", done.stderr
    assert done.returncode == 0


def test_an_interpreter_that_ends_with_a_run_in_a_hung_thread_ends_and_the_log_says_why() -> None:
    done = alone(
        HUNG.replace("CLOCK", "Wall")
        + """
    print(folder)
    """
    )
    assert done.returncode == 0, done.stderr
    run = lab.open(f"{done.stdout.strip()}/r.sqlite")
    assert run.status.state == "stopped"
    assert run.status.reason == "its process ended"


def test_a_hung_metric_costs_its_sample_and_not_the_run(world: Any, task_of: Any) -> None:
    async def metric(example: Any, output: str) -> float:
        if example["input"] == "v2":
            await asyncio.Event().wait()
        return int(output) / 1000

    w = world(task=task_of(metric=metric), sample_timeout_s=60, algorithm=lab.GEPA(min_coverage=0.7)).run()
    assert w.end.kind == "budget"
    assert {(e.example, e.kind) for e in w.of(ev.SampleFailed)} == {(2, "timeout")}
    assert "took over 60 s on one example" in w.of(ev.SampleFailed)[0].message
    assert [len(e.scores) for e in w.of(ev.Committed)][:3] == [3, 3, 3]


def test_a_hung_thread_costs_its_sample_and_not_the_run(world: Any, scripted: Any, task_of: Any) -> None:
    go = threading.Event()

    def metric(example: Any, output: str) -> float:
        if example["input"] == "v2":
            go.wait()
        return int(output) / 1000

    w = world(
        scripted(task_s=0.001, reflect_s=0.001),
        task=task_of(metric=metric),
        clock=lab.Wall(),
        sample_timeout_s=0.7,
        algorithm=lab.GEPA(min_coverage=0.7),
        budget={"metric_calls": 14},
    ).run()
    go.set()
    assert w.end.kind == "budget"
    assert {(e.example, e.kind) for e in w.of(ev.SampleFailed)} == {(2, "timeout")}
    assert [set(e.scores) for e in w.of(ev.Committed)] == [{"0", "1", "3"}]


def test_a_method_is_known_once_for_all_its_bound_copies() -> None:
    class Work:
        def now(self) -> str:
            return threading.current_thread().name

    async def work(places: Places) -> list[str]:
        return [await places.call(Work().now) for _ in range(50)]

    async def counted(places: Places) -> int:
        await work(places)
        return len(places._known)

    assert set(placed(work)) == {"lab-user-code"}
    assert placed(counted) == 1
