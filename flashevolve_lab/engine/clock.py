"""Three clocks for one shell: wall time, scaled time, and virtual time (which jumps to the next timer).

Owns the event loops that the engine runs on. One rule a change must keep: everything in the engine, the gateway and the
simulator asks the running loop for the time, so that the same code runs on all three.
"""

from __future__ import annotations

import asyncio
import math
import selectors
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from flashevolve_lab.errors import SetupError


@dataclass(frozen=True, slots=True)
class Wall:
    """Real time."""

    name = "wall"

    def loop(self) -> asyncio.AbstractEventLoop:
        """A plain event loop."""
        return asyncio.SelectorEventLoop()


@dataclass(frozen=True, slots=True)
class Scaled:
    """Real time, ``factor`` times as fast: a demonstration of a long run (simulated model only)."""

    factor: float = 60.0
    name = "scaled"

    def __post_init__(self) -> None:
        if not isinstance(self.factor, (int, float)) or isinstance(self.factor, bool) or not 0 < self.factor < math.inf:
            raise SetupError(f"Scaled(factor): expected a number above 0; got {self.factor!r}")

    def loop(self) -> asyncio.AbstractEventLoop:
        """A loop whose clock runs ``factor`` times as fast."""
        return ScaledLoop(self.factor)


@dataclass(frozen=True, slots=True)
class Virtual:
    """Simulated time: hours in seconds, and the same seed gives the same log (simulated model only)."""

    name = "virtual"

    def loop(self) -> asyncio.AbstractEventLoop:
        """A loop whose clock jumps to the next timer."""
        return VirtualLoop()


Clock = Wall | Scaled | Virtual


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop on which waiting costs nothing: when there is nothing to do, the clock jumps to the next timer.

    While work is outside the loop (threads, processes) the clock must be held: it then stands still until the work is back.
    """

    def __init__(self) -> None:
        self._virtual_now = 0.0
        self._outside = 0
        self._when_idle: deque[Callable[[], None]] = deque()
        self.before_blocking: Callable[[], None] = lambda: None  # called before the loop really waits
        super().__init__(_JumpingSelector(self))

    def time(self) -> float:
        """Seconds of virtual time since the loop was made."""
        return self._virtual_now

    def hold(self) -> None:
        """Work leaves the loop (for a thread or a process): the clock stands still until `release`. On the loop's thread only."""
        self._outside += 1

    def release(self) -> None:
        """The work is back."""
        self._outside -= 1

    def call_idle(self, callback: Callable[[], None]) -> None:
        """Call it when nothing else is ready, before the clock moves. What comes back from outside comes this way, so that
        how long it took in real time changes nothing.
        """
        self._when_idle.append(callback)


class _JumpingSelector(selectors.DefaultSelector):
    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is not None and timeout <= 0:
            return super().select(timeout)
        if self._loop._when_idle:
            self._loop.call_soon(self._loop._when_idle.popleft())
            return super().select(0)
        if timeout is None or self._loop._outside > 0:
            self._loop.before_blocking()
            return super().select(None)
        ready = super().select(0)
        if not ready:
            self._loop._virtual_now += timeout
        return ready


class ScaledLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock runs ``factor`` times as fast as real time."""

    def __init__(self, factor: float) -> None:
        self._factor = factor
        self._began = time.monotonic()
        super().__init__(_ScaledSelector(factor))

    def time(self) -> float:
        """Seconds of scaled time since the loop was made."""
        return (time.monotonic() - self._began) * self._factor


class _ScaledSelector(selectors.DefaultSelector):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self._factor = factor

    def select(self, timeout: float | None = None) -> list[Any]:
        return super().select(None if timeout is None else timeout / self._factor)
