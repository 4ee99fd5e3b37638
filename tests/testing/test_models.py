"""The contract of a model backend holds for ours, and catches each promise that a backend may break."""

from __future__ import annotations

import asyncio
import contextlib
import doctest
import socket
from collections.abc import Iterator
from typing import Any

import pytest

import flashevolve_lab as lab
from flashevolve_lab.testing import llm_contract, models

QUICK = lab.FixedLatency(task_s=0.01)
SLOW = lab.FixedLatency(task_s=600.0)
KEY = "sk-very-secret-0123456789"


def closed_port() -> int:
    """A port where nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def arrived(*servers: Any) -> int:
    """Attempts that some servers have seen, by their own count."""
    return sum(role["arrived"] for server in servers for role in server.stats()["roles"].values())


@pytest.mark.parametrize("fault", ["rate_limited", "server_error"])
def test_the_simulator_keeps_the_contract_of_a_model(fault: str) -> None:
    failing = lab.Simulated(speed=QUICK, faults=lab.Faults(**{fault: 1.0}))
    counted = Counted(speed=QUICK)
    llm_contract(counted, attempts=lambda: counted.made)
    llm_contract(lab.Simulated(speed=QUICK), failing=failing, slow=lab.Simulated(speed=SLOW))


@pytest.fixture(scope="module")
def urls() -> Iterator[Any]:
    """Three simulated servers: one well, one that fails every time, and a slow one."""
    with contextlib.ExitStack() as stack:
        settings = ({"speed": QUICK}, {"speed": QUICK, "faults": lab.Faults(server_error=1.0)}, {"speed": SLOW})
        yield [stack.enter_context(lab.simulated_server(**setting)) for setting in settings]  # type: ignore[arg-type]


def test_the_client_of_openai_servers_keeps_the_contract_of_a_model(urls: Any) -> None:
    well, failing, slow = (lab.OpenAI(server.base_url, model="sim-task", api_key=KEY) for server in urls)
    nobody = lab.OpenAI(f"http://127.0.0.1:{closed_port()}/v1", model="sim-task", api_key=KEY)
    llm_contract(well, failing=failing, slow=slow, unreachable=nobody, attempts=lambda: arrived(*urls), secret=KEY)
    asyncio.run(asyncio.sleep(0.2))  # what a cancelled call leaves behind
    assert urls[2].stats()["in_service"] == 0, "a cancelled call frees its slot"


def test_the_example_in_the_contracts_docstring_works() -> None:
    assert doctest.testmod(models, raise_on_error=True).attempted == 3


# --- it catches what it promises to catch -----------------------------------------------------------------------------------


class Counted(lab.Simulated):
    """Counts its attempts over all loops."""

    made = 0

    async def complete(self, request: lab.Request) -> lab.Reply:
        self.made += 1
        return await super().complete(request)


class TellsItsKey(lab.Simulated):
    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "key": KEY}


class NotJson(lab.Simulated):
    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "landscape": object()}


class Retries(Counted):
    async def complete(self, request: lab.Request) -> lab.Reply:
        await super().complete(request)
        return await super().complete(request)


class RetriesFailures(Counted):
    async def complete(self, request: lab.Request) -> lab.Reply:
        with contextlib.suppress(lab.ModelError):
            return await super().complete(request)
        return await super().complete(request)


class SwallowsCancellation(lab.Simulated):
    async def complete(self, request: lab.Request) -> lab.Reply:
        try:
            return await super().complete(request)
        except asyncio.CancelledError:
            return lab.Reply("never mind")


class LingersWhenCancelled(lab.Simulated):
    async def complete(self, request: lab.Request) -> lab.Reply:
        try:
            return await super().complete(request)
        except asyncio.CancelledError:
            await asyncio.sleep(2.0)
            raise


class RaisesAnything(lab.Simulated):
    async def complete(self, request: lab.Request) -> lab.Reply:
        raise ValueError("oh")


class HidesTrouble(lab.Simulated):
    async def complete(self, request: lab.Request) -> lab.Reply:
        return lab.Reply("sorry, an error occurred", prompt_tokens=1)


class CountsNothing(lab.Simulated):
    async def complete(self, request: lab.Request) -> lab.Reply:
        return lab.Reply((await super().complete(request)).text)


class PlainText(lab.Simulated):
    async def complete(self, request: lab.Request) -> Any:
        return (await super().complete(request)).text


class AsksToCheck(Counted):
    async def check(self) -> None:
        await self.complete(lab.Request(({"role": "user", "content": "are you there?"},)))


BROKEN: dict[str, tuple[type[lab.Simulated], str]] = {
    "its key": (TellsItsKey, "never show the key"),
    "a reply without usage": (CountsNothing, "what its prompt cost"),
    "a text for a reply": (PlainText, "returns a Reply"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_backend_that_gives_what_it_should_not_breaks_the_contract(case: str) -> None:
    kind, sentence = BROKEN[case]
    with pytest.raises(AssertionError, match=sentence):
        llm_contract(kind(speed=QUICK), secret=KEY)


def test_a_description_that_is_no_json_breaks_the_contract() -> None:
    with pytest.raises(AssertionError, match="JSON"):
        llm_contract(NotJson(speed=QUICK))


def test_a_retry_hidden_in_a_backend_breaks_the_contract() -> None:
    hidden = Retries(speed=QUICK)
    with pytest.raises(AssertionError, match="one attempt per complete"):
        llm_contract(hidden, attempts=lambda: hidden.made)
    well, failing = Counted(speed=QUICK), RetriesFailures(speed=QUICK, faults=lab.Faults(server_error=1.0))
    with pytest.raises(AssertionError, match="also of one that fails"):
        llm_contract(well, failing=failing, attempts=lambda: well.made + failing.made)


def test_a_check_that_asks_the_model_breaks_the_contract() -> None:
    model = AsksToCheck(speed=QUICK)
    with pytest.raises(AssertionError, match="asks the model nothing"):
        llm_contract(model, attempts=lambda: model.made)


@pytest.mark.parametrize(("kind", "sentence"), [(SwallowsCancellation, "nothing else"), (LingersWhenCancelled, "ends within")])
def test_a_backend_that_does_not_end_when_it_is_cancelled_breaks_the_contract(kind: type[lab.Simulated], sentence: str) -> None:
    with pytest.raises(AssertionError, match=sentence):
        llm_contract(lab.Simulated(speed=QUICK), slow=kind(speed=SLOW))


@pytest.mark.parametrize("kind", [RaisesAnything, HidesTrouble])
def test_trouble_told_as_anything_but_a_model_error_breaks_the_contract(kind: type[lab.Simulated]) -> None:
    with pytest.raises(AssertionError, match="as a ModelError"):
        llm_contract(lab.Simulated(speed=QUICK), failing=kind(speed=QUICK))


def test_a_check_that_finds_nobody_and_says_nothing_breaks_the_contract() -> None:
    nobody = lab.Simulated(speed=QUICK, faults=lab.Faults(server_error=1.0))
    with pytest.raises(AssertionError, match="SetupError when nobody answers"):
        llm_contract(lab.Simulated(speed=QUICK), unreachable=nobody)
