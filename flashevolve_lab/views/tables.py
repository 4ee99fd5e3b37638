"""The log as tables: named columns of plain Python values, from which `run.frame(name)` makes a pandas DataFrame.

Owns how each table is put together. Owns no column names (`columns`) and collects no rows (`records`). One rule a
change must keep: a table has the same columns from the first entry on (empty lists in an empty run), all equally
long.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any

from flashevolve_lab.core import Entry
from flashevolve_lab.errors import SetupError
from flashevolve_lab.views.columns import COLUMNS, NAMES
from flashevolve_lab.views.completion import CompletionFeed, CompletionRow
from flashevolve_lab.views.records import Records, Row
from flashevolve_lab.views.staleness import StalenessFeed
from flashevolve_lab.views.timeline import Span, Timeline


class Tables:
    """All tables of a run: feed it the log in any pieces, ask for columns at any time."""

    def __init__(self) -> None:
        self._records = Records()
        self._timeline = Timeline()
        self._staleness = StalenessFeed()
        self._completion = CompletionFeed()

    def __repr__(self) -> str:
        return f"<Tables {', '.join(NAMES)} up to entry {self._records.state.seq}>"

    def feed(self, entries: Iterable[Entry]) -> None:
        """Take in further entries; those seen before are skipped."""
        fresh = list(entries)
        self._records.feed(fresh)
        self._timeline.feed(fresh)
        self._staleness.feed(fresh)
        self._completion.feed(fresh)

    def columns(self, name: str) -> dict[str, list[Any]]:
        """A table as column → values. Times are seconds of lab time; what is not known (yet) is None.

        - ``jobs``: one a job; see `Span` (``started_at``, ``ended_at`` are its start and end; ``released_at``,
          ``inserted_at``: when its partial result went on, ``fate``: what became of it).
        - ``calls``: one an attempt sent to a model; ``tokens``, ``dollars``: charged; ``text``: the reply or the error;
          ``hedge``: a second call of a late attempt.
        - ``artifacts``: every text ever made; ``mean``, ``coverage`` when committed or confirmed; ``version``: when it joined
          the pool, provisionally too; ``gate``, ``parent_sum``, ``child_sum``: its last gate; ``outcome``: of its item
          ("replaced": the item went on with another text); ``status``: "made", "in the pool", "provisional", "rolled back",
          or the outcome; ``bound``: the mean it could have reached at most, where it was proven that it cannot win;
          ``texts``: component → text.
        - ``items``: ``place``: "waiting" or "working" (at ``stage``), or "ended"; ``status``: that, "provisional" while its
          artifact is in the pool before its time, or the outcome.
        - ``completion``: releases, provisional insertions, confirmations, roll-backs and proven rejections; see `CompletionRow`.
        - ``staleness``: every verdict; ``target``: what a patch is written for. ``settings``: every value a knob ever had, the first by "start" at 0.
        - ``budget``: one a dimension; ``limit`` and ``left`` are None where there is no limit.
        - ``slots``: one a stage; ``slots``: as set, or as a worker policy gave it (None: as many as the schedule's depth);
          ``busy_s``: slot-seconds worked.
        - ``scores``: validation scores of committed artifacts, one an artifact and example.
        - ``failures``: what went wrong in a "job", a "sample" or a "call"; ``raw``: a text that could not be used.
        - ``servers``: every look at a model server that tells its load; ``kv_cache``: share in use; ``facts``: its counters.
        - ``reviews``: every look of a worker policy, or of a schedule that finds its own depth; ``wishes``: what it wanted more
          (+1) or less (-1) of. What it changed, and why, is in ``settings`` ("depth", "slots of validate", …).
        - ``samples``: every program run on an example; a failed one has no score.

        Raises:
            SetupError: no table of this name.
        """
        if name not in COLUMNS:
            raise SetupError(f"there is no table {name!r}: the tables are {', '.join(NAMES)}")
        rows = self._rows(name)
        return {column: [row[column] for row in rows] for column in COLUMNS[name]}

    def _rows(self, name: str) -> list[Row]:
        match name:
            case "jobs":
                return [_job(span) for span in self._timeline.snapshot().spans]
            case "calls" | "artifacts":
                return list(getattr(self._records, name).values())
            case "items":
                return self._items()
            case "staleness":
                return [_plain(row, COLUMNS[name]) for row in self._staleness.snapshot().rows]
            case "completion":
                return [_completed(row) for row in self._completion.snapshot().rows]
            case "budget":
                return self._budget()
            case "slots":
                return self._slots()
            case _:
                return list(getattr(self._records, name))

    def _items(self) -> list[Row]:
        state = self._records.state
        working = {item for job in state.jobs.values() if not job.released for item in job.items}
        return [_item(row, working, state.provisional) for row in self._records.items.values()]

    def _budget(self) -> list[Row]:
        state = self._records.state
        spent = {**state.spent.as_dict(), "seconds": state.at}
        reserved = {**state.reserved.as_dict(), "seconds": 0.0}
        return [_dimension(name, state.budget.get(name), spent[name], reserved[name]) for name in spent]

    def _slots(self) -> list[Row]:
        state, picture = self._records.state, self._timeline.snapshot()
        busy, jobs = dict.fromkeys(picture.stages, 0.0), dict.fromkeys(picture.stages, 0)
        for span in picture.spans:
            busy[span.stage] += (picture.at if span.end is None else span.end) - span.start
            jobs[span.stage] += 1
        return [
            {
                "stage": stage,
                "slots": (state.settings.get("slots") or {}).get(stage) or state.given.get(stage),
                "used_max": picture.lanes.get(stage, 0),
                "used_now": len(state.slots[stage]),
                "busy_s": busy[stage],
                "jobs": jobs[stage],
                "waiting": len(state.queues[stage]),
            }
            for stage in picture.stages
        ]


def _job(span: Span) -> Row:
    seconds = None if span.end is None else span.end - span.start
    times: Row = {"started_at": span.start, "ended_at": span.end, "seconds": seconds}
    times |= {"released_at": span.released, "inserted_at": span.inserted}
    return {**_plain(span, [name for name in COLUMNS["jobs"] if name not in times]), **times}


def _plain(value: object, names: Iterable[str]) -> Row:
    return {name: getattr(value, name) for name in names}


def _completed(row: CompletionRow) -> Row:
    return {**_plain(row, [name for name in COLUMNS["completion"] if name != "event"]), "event": row.kind}


def _item(row: Row, working: set[str], provisional: Container[str]) -> Row:
    ended_at = row["ended_at"]
    place = "ended" if ended_at is not None else "working" if row["item"] in working else "waiting"
    status = row["outcome"] or ("provisional" if row["item"] in provisional else place)
    seconds = None if ended_at is None else ended_at - row["made_at"]
    return {**row, "place": place, "seconds": seconds, "status": status}


def _dimension(name: str, limit: float | None, spent: float, reserved: float) -> Row:
    left = None if limit is None else limit - spent - reserved
    return {"dimension": name, "limit": limit, "spent": spent, "reserved": reserved, "left": left}
