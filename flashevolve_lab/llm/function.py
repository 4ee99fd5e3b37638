"""Models that are not served over our client: a plain function (`FunctionModel`), and none at all (`NoModel`).

Owns the thread a function runs in, and the sorting of what it raises. One rule a change must keep: what cannot be counted is said in
`describe`, and a role without a model refuses every call, aloud.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any

from flashevolve_lab.errors import ModelError, RateLimited, Refused, SetupError, Transient
from flashevolve_lab.llm.seam import Reply, Request

REFUSED = frozenset({400, 401, 403, 404, 413, 422})
"""HTTP codes of a request that should not be repeated."""


class FunctionModel:
    """A model given as a function ``messages -> text``, e.g. ``gepa.lm.LM("openai/gpt-4.1")`` or a litellm call of your own.

    Every call runs in a thread of its own, is limited by the gateway and recorded; its tokens are estimated from its bytes, because
    a function does not tell them, and it is not told ``max_tokens``, ``temperature`` or ``choices``. A call that is cancelled goes on in
    its thread.

    Args:
        function: Takes chat messages ``[{"role": …, "content": …}, …]`` and returns the text of the answer.
        name: Shown in the log.
    """

    price = None

    def __init__(self, function: Callable[[list[dict[str, str]]], str], name: str = "") -> None:
        if not callable(function):
            raise SetupError(f"FunctionModel(function): expected a function (messages) -> text; got {type(function).__name__}")
        self._function = function
        self.name = name or str(getattr(function, "model", "") or getattr(function, "__name__", type(function).__name__))

    async def complete(self, request: Request) -> Reply:
        """One call of the function."""
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[str] = loop.create_future()

        def settle(text: Any, error: ModelError | None) -> None:
            if answered.done():
                return
            if error is None:
                answered.set_result(text)
            else:
                answered.set_exception(error)

        def work() -> None:
            outcome: tuple[Any, ModelError | None]
            try:
                outcome = self._function([dict(message) for message in request.messages]), None
            except Exception as error:
                outcome = None, _sorted(error)
            with contextlib.suppress(RuntimeError):  # the loop is gone: nobody waits
                loop.call_soon_threadsafe(settle, *outcome)

        threading.Thread(target=work, name="lab-function-model", daemon=True).start()
        text = await answered
        if not isinstance(text, str):
            raise Refused(f"the function {self.name} returned {type(text).__name__}, not a text")
        answer = len(text.encode("utf-8", "replace")) // 3 + 1
        return Reply(text, "unknown", request.input_tokens_estimate(), answer, self.name)

    async def check(self) -> None:
        """Nothing can be looked at without spending."""

    def describe(self) -> dict[str, Any]:
        """Facts for the log."""
        return {"kind": "FunctionModel", "model": self.name, "tokens": "estimated"}

    def __repr__(self) -> str:
        return f"FunctionModel({self.name})"


class NoModel:
    """Stands for a model where none is needed, because the task calls its own; a call to it is refused. ``why``: for the log."""

    price = (0.0, 0.0)

    def __init__(self, why: str = "the task calls models of its own, which are not counted") -> None:
        self._why = why

    async def complete(self, request: Request) -> Reply:
        """Refuses."""
        raise Refused(f"no model was given for the role {request.role!r} ({self._why}): lab.start(…, llm=…)")

    async def check(self) -> None:
        """Always ready to refuse."""

    def describe(self) -> dict[str, Any]:
        """Facts for the log."""
        return {"kind": "NoModel", "model": "none", "why": self._why, "in_process": True}

    def __repr__(self) -> str:
        return f"NoModel({self._why})"


def _sorted(error: Exception) -> ModelError:
    """What a function raised, as what a model did; by its HTTP code where it has one (litellm's and openai's errors do)."""
    said = f"{type(error).__name__}: {error}"
    code = getattr(error, "status_code", None)
    if isinstance(error, ModelError):
        return error
    if code == 429:
        return RateLimited(said)
    return Refused(said) if code in REFUSED else Transient(said)
