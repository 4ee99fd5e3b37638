"""Looking at the servers while a run has calls in flight: what they tell of themselves becomes `ServerSeen` in the log.

Owns when to look and what of an answer is kept. Owns no judgement on it: policies and views read the log. One rule a change must
keep: a look never delays or fails the run, and time is only the loop's: no timer is set while no call is in flight, so that
virtual time has nothing to jump to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from math import isfinite
from typing import TYPE_CHECKING, Any

from flashevolve_lab.core import events as ev
from flashevolve_lab.engine.places import words

if TYPE_CHECKING:
    from flashevolve_lab.engine.shell import Shell

EVERY_S = 2.0  # lab seconds between two looks
SOON_S = 0.2  # a look that is overdue when calls begin again waits for them to arrive
LATE_S = 10.0  # a server may take to answer; nobody waits for it


class Watching:
    """The looks of one run. Made and used on the engine's loop; a server that several models share is asked once.

    Args:
        shell: The run; its gateway says which models have ``seen`` (see `llm.LLM`).
    """

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        lines = [line for of_role in shell.gateway.lines.values() for line in of_role]
        told = {line.endpoint.name: line.model for line in reversed(lines) if callable(getattr(line.model, "seen", None))}
        self._seen: dict[str, Callable[[], Any]] = {name: model.seen for name, model in told.items()}  # type: ignore[attr-defined]
        self._due = float("-inf")  # loop time of the next look
        self._alarm: asyncio.TimerHandle | None = None
        self._looking: dict[str, asyncio.Task[None]] = {}
        self._failed: set[str] = set()

    def called(self) -> None:
        """A call began or ended: look from time to time as long as any is in flight."""
        calls = bool(self._shell.state.calls) and bool(self._seen)
        if calls and self._alarm is None:
            loop = self._shell.loop
            if self._due < loop.time():
                self._due = loop.time() + SOON_S
            self._alarm = loop.call_at(self._due, self._look)
        elif not calls and self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def close(self) -> None:
        """No further look."""
        self._seen.clear()
        self.called()

    def _look(self) -> None:
        self._alarm = None
        for name in self._seen:
            if name not in self._looking:
                self._looking[name] = self._shell.loop.create_task(self._ask(name), name=f"look at {name}")
        self._due = self._shell.loop.time() + EVERY_S
        self.called()

    async def _ask(self, name: str) -> None:
        try:
            async with asyncio.timeout(LATE_S):
                told = await self._seen[name]()
            if told is None:
                self._seen.pop(name, None)
                return
            self._report(server_seen(name, told))
        except Exception as error:  # the server's trouble, or a backend's: it is no reason to end anything
            if name not in self._failed:
                self._failed.add(name)
                why = words(error) or type(error).__name__
                self._shell.post(
                    ev.Warned("server metrics", f"{name} does not tell its load, and the run goes on without: {why}")
                )
        finally:
            self._looking.pop(name, None)

    def _report(self, event: ev.ServerSeen) -> None:
        if event != self._shell.state.servers.get(event.endpoint):
            self._shell.post(event)


def server_seen(name: str, told: Mapping[str, Any]) -> ev.ServerSeen:
    """What a model's ``seen`` gave, as the event: numbers only, rounded to a millionth.

    Raises:
        ValueError: requests running or waiting are missing or no numbers.
    """
    numbers = {str(key): number for key, value in dict(told).items() if (number := _number(value)) is not None}
    if "running" not in numbers or "waiting" not in numbers:
        raise ValueError(f"seen(): expected numbers for 'running' and 'waiting'; got {told!r}"[:300])
    running, waiting = numbers.pop("running"), numbers.pop("waiting")
    return ev.ServerSeen(name, running, waiting, numbers.pop("kv_cache", None), numbers)


def _number(value: Any) -> float | None:
    """A finite number as it goes into the log, or None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not isfinite(value):
        return None
    return round(float(value), 6)
