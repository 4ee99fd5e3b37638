"""`ask`: the run's model, for code that cannot take an `Asker` as an argument.

Owns which `Asker` the code running just now belongs to. One rule a change must keep: outside a run `ask` refuses; there is no
fallback to a model nobody counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from flashevolve_lab.errors import SetupError
from flashevolve_lab.llm.seam import Message
from flashevolve_lab.tasks.task import Asker

_ASKER: ContextVar[Asker | None] = ContextVar("lab_asker", default=None)


def ask(messages: str | Sequence[Message], **options: Any) -> str:
    """Ask the run's model from a synchronous adapter: its task model in ``evaluate``, its reflection model in ``propose_new_texts``.

    The call is limited, retried, charged and recorded like any other. It fits where gepa takes a model as a function, e.g.
    ``DefaultAdapter(model=lab.ask)``. Blocks until the reply is there.

    Args:
        messages: A prompt, or chat messages ``{"role": …, "content": …}``.
        **options: ``system``, ``max_tokens`` (512 unless given), ``temperature``, ``choices``.

    Raises:
        SetupError: called outside an adapter's work, or in a thread that the adapter started without its context.
        ModelError: what the model or its provider did. BudgetSpent: the call does not fit into what is left.
    """
    return asker_here().ask(messages, **options)


def asker_here() -> Asker:
    """Whom the code running in this thread asks. Raises `SetupError` where nobody was named."""
    asker = _ASKER.get()
    if asker is None:
        raise SetupError(
            "lab.ask(…) works inside an adapter's evaluate or propose_new_texts while a run executes it; in a thread of your own "
            "run it in a copy of the context: contextvars.copy_context().run(…)"
        )
    return asker


@contextmanager
def asking(asker: Asker) -> Iterator[None]:
    """What runs in here, in this thread, asks this one."""
    token = _ASKER.set(asker)
    try:
        yield
    finally:
        _ASKER.reset(token)
