"""The model seam: what any language model looks like to the rest of the lab.

Owns the values that cross it (`Request`, `Reply`) and the protocol (`LLM`). Owns no client, no retry and no limit: those are
wrapped around it (`llm.gateway`). A change must keep one rule: a backend makes **one attempt** per `complete`, honours
cancellation at once, and reports trouble only as a `ModelError` (rate limited, transient, refused, bad reply).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

Finish = Literal["stop", "length", "filter", "unknown"]
Message = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Request:
    """One chat request.

    Attributes:
        messages: Chat messages, each ``{"role": ..., "content": ...}``, oldest first; never empty.
        max_tokens: Upper bound of completion tokens, ≥ 1. Every request has one: it is what the budget reserves.
        role: Which model of the run it is meant for: ``"task"`` (rollouts) or ``"reflection"`` (proposals).
        temperature: Sampling temperature, or None for the server's default.
        choices: When not empty, the reply must be exactly one of these (constrained decoding where the server can).
        priority: Smaller goes first when calls wait for a slot (work nearest to a commit has the smallest).
    """

    messages: tuple[Message, ...]
    max_tokens: int = 1024
    role: str = "task"
    temperature: float | None = None
    choices: tuple[str, ...] = ()
    priority: float = 0.0

    def input_tokens_bound(self) -> int:
        """The most tokens the prompt can be: no tokenizer makes more than one of a UTF-8 byte; 16 more for each message."""
        size = sum(len(m["content"].encode("utf-8", "replace")) for m in self.messages)
        return size + 16 * len(self.messages) + 16

    def input_tokens_estimate(self) -> int:
        """An upper-side estimate of the prompt's tokens from its UTF-8 bytes (3 bytes a token, 8 tokens a message)."""
        size = sum(len(m["content"].encode("utf-8", "replace")) for m in self.messages)
        return size // 3 + 8 * len(self.messages) + 8


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer of a model, with what it cost.

    Attributes:
        text: The message content, exactly as it came (hostile text: escape before showing, never evaluate).
        finish: Why the model stopped; ``"length"`` means the text is truncated.
        prompt_tokens: Input tokens as counted by the server (0 when it does not say).
        completion_tokens: Output tokens as counted by the server.
        model: The model's name as the server gave it.
    """

    text: str
    finish: Finish = "stop"
    prompt_tokens: int = 0
    completion_tokens: int = 0
    model: str = ""


@runtime_checkable
class LLM(Protocol):
    """A language model. Three methods; everything else (limits, retries, cost, recording) wraps around them.

    Optional, where a model has them:
        price: Dollars per million (input, output) tokens; a budget in dollars needs it.
        context_tokens: Its context, prompt and answer together.
        aclose: ``async``, with ``per_loop = True`` beside it: closes what the model opened on the *running* event loop, and
            nothing else. It is called on a run's loop when that run ends, and after `check`, while other runs may be using the
            same model on loops of theirs. Without ``per_loop`` the lab closes nothing: that is its owner's.
        seen: ``async``, no arguments: what its server says of its load now, as ``{"running": …, "waiting": …}`` (requests), perhaps
            ``"kv_cache"`` (share in use, 0..1) and further numbers by name; or None for nothing. Asked about every two seconds of
            lab time while calls are in flight, and written into the log (`ServerSeen`). It may fail: the run goes on without.
        run_ended: No arguments: called, from the engine's thread, once a run that used the model has ended and its log is closed.
    """

    async def complete(self, request: Request) -> Reply:
        """One attempt. Raises only `ModelError`s; a cancelled call stops costing as soon as the server allows."""
        ...

    async def check(self) -> None:
        """Look before spending: raises `SetupError` when unreachable or when the model is unknown. Costs no tokens."""
        ...

    def describe(self) -> dict[str, Any]:
        """JSON-able facts for the log (kind, model, address). Never a key.

        ``"simulated": True``: not a language model; every table and figure of the run says so. ``"in_process": True``: its time
        is the event loop's, so that it also runs on a scaled or virtual clock.
        """
        ...


def chat(prompt: str | Sequence[Message], *, system: str | None = None) -> tuple[Message, ...]:
    """Messages from a plain string (one user message) or a sequence of messages, with an optional system message."""
    messages: list[Message] = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    return tuple(messages)
