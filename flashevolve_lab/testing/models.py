"""The contract of a model backend: what every `LLM` must do, whoever wrote it. Call `llm_contract` from a test of your own.

Owns the probing of a backend on event loops of its own; knows no server. One rule a change must keep: each broken promise raises an
`AssertionError` with a sentence saying which, and nothing waits for ever.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, get_args

from flashevolve_lab.errors import ModelError, SetupError
from flashevolve_lab.llm import LLM, Reply, Request, chat
from flashevolve_lab.llm.seam import Finish
from flashevolve_lab.testing.contracts import HARD_TEXTS

IN_TIME_S = 60.0
"""What takes longer hangs."""
BEGUN_S = 0.3
"""After this long a call to a slow server has been sent."""
AT_ONCE_S = 1.0
"""How long a cancelled call may take to end."""


def llm_contract(
    llm: LLM,
    *,
    failing: LLM | None = None,
    slow: LLM | None = None,
    unreachable: LLM | None = None,
    attempts: Callable[[], int] | None = None,
    secret: str = "",
) -> None:
    """A model backend makes one attempt per call, is cancelled at once, reports trouble as a `ModelError`, and tells no key.

    Everything runs on wall time, each part on an event loop of its own, as runs do. What is not given is not tried.

    Args:
        llm: Answers soon. It is asked a dozen short questions.
        failing: The same backend before a server that fails every time: refuses, breaks off, answers nonsense.
        slow: The same backend before a server that takes minutes; by default ``llm`` is cancelled as soon as it has begun.
        unreachable: The same backend before a server that is not there.
        attempts: How many attempts all those servers have seen together: shows retries hidden in the backend.
        secret: The key it was given, which nobody may read.

    Example:
        >>> import flashevolve_lab as lab
        >>> model = lab.Simulated(speed=lab.FixedLatency(task_s=0.01))
        >>> llm_contract(model, failing=lab.Simulated(faults=lab.Faults(rate_limited=1.0)))
    """
    _tells_facts(llm, secret)
    asyncio.run(_checks_for_nothing(llm, attempts))
    asyncio.run(_answers(llm, attempts))
    asyncio.run(_answers(llm, attempts))  # a second run has a loop of its own
    asyncio.run(_is_cancelled(llm if slow is None else slow, begun_s=0.0 if slow is None else BEGUN_S))
    for trouble in (one for one in (failing, unreachable) if one is not None):
        asyncio.run(_reports(trouble, None if trouble is unreachable else attempts, secret))
    if unreachable is not None:
        asyncio.run(_is_missed(unreachable, secret))


def _tells_facts(llm: LLM, secret: str) -> None:
    assert isinstance(llm, LLM), f"a backend has complete, check and describe; got {llm!r}"
    told = llm.describe()
    assert isinstance(told, dict) and isinstance(told.get("kind"), str), f"describe() is a dict with a kind; got {told!r}"
    try:
        text = json.dumps(told, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise AssertionError(f"describe() is plain JSON, for the log; {error}") from error
    assert llm.describe() == told, "describe() says the same each time"
    assert not secret or secret not in text + repr(llm) + str(llm), "describe() and repr never show the key"


async def _checks_for_nothing(llm: LLM, attempts: Callable[[], int] | None) -> None:
    before = attempts() if attempts else 0
    assert await _in_time(llm, llm.check()) is None, "check() returns nothing when all is well"
    assert not attempts or attempts() == before, "check() asks the model nothing"
    await _closed(llm)


async def _answers(llm: LLM, attempts: Callable[[], int] | None) -> None:
    before = attempts() if attempts else 0
    asked = [Request(chat(f"Question {i}. " + text), max_tokens=16) for i, text in enumerate(("Say yes.", *HARD_TEXTS[4:6]))]
    for reply in await _in_time(llm, asyncio.gather(*(llm.complete(request) for request in asked))):
        assert isinstance(reply, Reply) and isinstance(reply.text, str), f"complete returns a Reply with a text; got {reply!r}"
        assert reply.finish in get_args(Finish), f"finish is one of {get_args(Finish)}; got {reply.finish!r}"
        assert isinstance(reply.model, str), f"the model's name is a text; got {reply.model!r}"
        for tokens in (reply.prompt_tokens, reply.completion_tokens):
            assert type(tokens) is int and tokens >= 0, f"tokens are integers of at least 0; got {reply!r}"
        assert reply.prompt_tokens > 0, (
            f"a reply says what its prompt cost, or a budget in tokens can only guess; got {reply!r}"
        )
    made = attempts() - before if attempts else len(asked)
    assert made == len(asked), f"one attempt per complete: {len(asked)} calls made {made}"
    await _closed(llm)


async def _is_cancelled(llm: LLM, begun_s: float) -> None:
    call = asyncio.ensure_future(llm.complete(Request(chat("Take your time."), max_tokens=16)))
    await asyncio.sleep(begun_s)
    assert not begun_s or not call.done(), "the slow one is still at work"
    call.cancel()
    done, _ = await asyncio.wait([call], timeout=AT_ONCE_S)
    assert done, f"a cancelled call ends within {AT_ONCE_S:g} s"
    assert call.cancelled(), f"a cancelled call raises CancelledError and nothing else; got {call}"
    await _closed(llm)


async def _reports(llm: LLM, attempts: Callable[[], int] | None, secret: str) -> None:
    before = attempts() if attempts else 0
    try:
        reply = await _in_time(llm, llm.complete(Request(chat("Say yes."), max_tokens=16)))
    except ModelError as error:
        assert str(error).strip(), "a ModelError says what happened"
        assert not secret or secret not in str(error), "an error never shows the key"
    except Exception as error:
        raise AssertionError(f"trouble is reported as a ModelError only; got {type(error).__name__}: {error}") from error
    else:
        raise AssertionError(f"trouble is reported as a ModelError; got {reply!r}")
    assert not attempts or attempts() - before == 1, f"one attempt per complete, also of one that fails: {attempts() - before}"
    await _closed(llm)


async def _is_missed(llm: LLM, secret: str) -> None:
    try:
        await _in_time(llm, llm.check())
    except SetupError as error:
        assert not secret or secret not in str(error), "an error never shows the key"
    except Exception as error:
        raise AssertionError(f"check() raises SetupError; got {type(error).__name__}: {error}") from error
    else:
        raise AssertionError("check() raises SetupError when nobody answers")
    await _closed(llm)


async def _in_time(llm: LLM, waited: Awaitable[Any]) -> Any:
    try:
        async with asyncio.timeout(IN_TIME_S):
            return await waited
    except TimeoutError:
        raise AssertionError(f"{llm!r} did not come back within {IN_TIME_S:g} s") from None


async def _closed(llm: LLM) -> None:
    """Connections belong to a loop; a backend that keeps some has ``aclose``."""
    if close := getattr(llm, "aclose", None):
        await close()
