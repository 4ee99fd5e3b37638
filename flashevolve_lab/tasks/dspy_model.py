"""A ``dspy.LM`` whose calls go to the model of the run that executes the program.

Owns the translation between dspy's requests and an `Asker`'s calls. One rule a change must keep: what the gateway cannot carry
(images, tools, schemas) is refused by its name and never left out.
"""

from __future__ import annotations

from typing import Any

from flashevolve_lab.errors import Refused, SetupError
from flashevolve_lab.tasks.task import Asker

CARRIED = frozenset({"max_tokens", "temperature"})
INSTEAD = "lab.task_from_dspy(…, own_lm=True) lets the program call dspy's own model"


def lm_of_the_run(asker: Asker, max_tokens: int, temperature: float | None) -> Any:
    """A ``dspy.LM`` that asks this asker, from any thread of the program's. No cache and no retries of dspy's: the run has its own.

    Raises:
        SetupError: this dspy has no engines (they came with 3.4).
    """
    import dspy

    try:
        return dspy.LM(
            "lab/task", engine=RunEngine(asker), cache=False, num_retries=0, max_tokens=max_tokens, temperature=temperature
        )
    except TypeError as error:
        raise SetupError(f"dspy {dspy.__version__} has no LM(engine=…): pip install 'dspy>=3.4', or {INSTEAD}") from error


class RunEngine:
    """dspy's engine protocol: one request, one response."""

    def __init__(self, asker: Asker) -> None:
        self._asker = asker

    def complete(self, request: Any) -> Any:
        """Ask the run's task model."""
        from dspy import lm15

        config = request.config
        carried = {name: value for name in sorted(CARRIED) if (value := getattr(config, name)) is not None}
        text = self._asker.ask(_messages(request), **carried)
        usage = lm15.Usage()
        return lm15.Response(
            id=None, model=request.model, message=lm15.Message.assistant(text), finish_reason="stop", usage=usage
        )

    def stream(self, request: Any) -> Any:
        """The whole answer as one event."""
        from dspy import lm15

        return lm15.response_to_events(self.complete(request))

    def close(self) -> None:
        """Nothing is open."""


def _messages(request: Any) -> list[dict[str, str]]:
    """The request as chat messages.

    Raises:
        Refused: it asks for something the gateway does not carry.
    """
    config = request.config
    asked = [
        name for name in config.__dataclass_fields__ if name not in CARRIED and getattr(config, name) not in (None, (), {})
    ]
    if request.tools:
        asked.append("tools")
    if asked:
        raise Refused(f"the program asks its model for {', '.join(asked)}, which the run's gateway does not carry: {INSTEAD}")
    messages = [{"role": message.role, "content": _text(message.parts)} for message in request.messages]
    if request.system is not None:
        system = request.system if isinstance(request.system, str) else _text(request.system)
        messages.insert(0, {"role": "system", "content": system})
    return messages


def _text(parts: Any) -> str:
    if other := sorted({str(part.type) for part in parts if part.type != "text"}):
        raise Refused(f"the program sends {', '.join(other)}, which the run's gateway does not carry: {INSTEAD}")
    return "".join(part.text for part in parts)
