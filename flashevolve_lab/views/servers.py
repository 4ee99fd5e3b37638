"""The model servers of a run as they told of themselves: requests in service and waiting, KV cache, speed, prefix cache.

Owns `Servers` and its rows. Owns no judgement (the diagnosis) and no raw table (`run.frame("servers")`). One rule a change must
keep: these are the server's own numbers; what a run knows itself (calls in flight) is never mixed in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from flashevolve_lab.core import Entry
from flashevolve_lab.core import events as ev

LATELY = 8  # looks that rates are taken over


@dataclass(frozen=True, slots=True)
class ServerRow:
    """A server at its last look, ``at`` seconds. What it does not tell is None.

    Attributes:
        running, waiting: Requests in service, and in its queue.
        kv_cache: Share of its KV cache in use, 0..1.
        tokens_per_s: Written by it, for everybody it serves, over the last looks.
        prefix_hits: Share of prompt tokens it had read before, over the last looks.
    """

    endpoint: str
    at: float
    running: float
    waiting: float
    kv_cache: float | None = None
    tokens_per_s: float | None = None
    prefix_hits: float | None = None


class Servers:
    """A live view: feed it the log in any pieces, ask for the snapshot at any time."""

    def __init__(self) -> None:
        self._seq = 0
        self._looks: dict[str, deque[tuple[float, ev.ServerSeen]]] = {}

    def __repr__(self) -> str:
        return f"<Servers: {len(self._looks)} up to entry {self._seq}>"

    def feed(self, entries: Iterable[Entry]) -> None:
        """Take in further entries (those seen before are skipped). A resume forgets: the servers may be others."""
        for entry in entries:
            if entry.seq <= self._seq:
                continue
            self._seq = entry.seq
            if isinstance(entry.event, ev.ServerSeen):
                looks = self._looks.setdefault(entry.event.endpoint, deque(maxlen=LATELY))
                looks.append((entry.at, entry.event))
            elif isinstance(entry.event, ev.RunResumed):
                self._looks.clear()

    def snapshot(self) -> tuple[ServerRow, ...]:
        """A row for each server that has told, in the order of their first look."""
        return tuple(_row(looks) for looks in self._looks.values())


def _row(looks: deque[tuple[float, ev.ServerSeen]]) -> ServerRow:
    at, now = looks[-1]
    written, seconds = _grown(looks, "generation_tokens"), at - looks[0][0]
    hits, asked = _grown(looks, "prefix_cache_hits"), _grown(looks, "prefix_cache_queries")
    return ServerRow(
        endpoint=now.endpoint,
        at=at,
        running=now.running,
        waiting=now.waiting,
        kv_cache=now.kv_cache,
        tokens_per_s=written / seconds if written is not None and seconds > 0 else None,
        prefix_hits=hits / asked if hits is not None and asked else None,
    )


def _grown(looks: deque[tuple[float, ev.ServerSeen]], name: str) -> float | None:
    """How much a counter has grown over the looks; None when it is not told, or fell (another start of the server)."""
    first, last = (looks[i][1].facts.get(name) for i in (0, -1))
    if first is None or last is None or last < first:
        return None
    return float(last - first)
