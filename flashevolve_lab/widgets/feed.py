"""The feed: every verdict on a stale item and every partial result that went on, as it happens; one click to the texts behind it.

Owns `Feed` and how its rows travel. Owns no verdict and no event (views) and no pixels (`feed.js`). One rule a change must keep: rows travel
with the number of the first one, so a front end that missed some asks for them and never shows a wrong list; the whole list is
in the widget's own state, so it is drawn during a blocking cell, after a reload and in a second view.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from flashevolve_lab.core import Entry
from flashevolve_lab.core.events import RunStarted, RunStopped, SettingChanged
from flashevolve_lab.views import CompletionFeed, CompletionRow, StalenessFeed, StaleRow, worded
from flashevolve_lab.widgets.texts import sayable

LONGEST = 400  # characters of a reason in the feed; the inspector has all of it
SMALL = 2_000  # rows that travel whole until a front end has answered once


class Feed(anywidget.AnyWidget):
    """A live list of staleness verdicts, and of what a completion policy did: what went on early, and what came of it.

    Args:
        on_open: Called with the id of the item whose row was clicked; more by `on_open`.
        colours: Stage → colour, as in the other views.
    """

    _esm = Path(__file__).with_name("feed.js")
    _css = Path(__file__).with_name("feed.css")
    snapshot = traitlets.Bytes(b"").tag(sync=True)
    sentence = traitlets.Unicode("").tag(sync=True)
    trouble = traitlets.Unicode("").tag(sync=True)
    selected = traitlets.Unicode("").tag(sync=True)
    colours = traitlets.Dict().tag(sync=True)

    def __init__(self, on_open: Callable[[str], object] | None = None, *, colours: Mapping[str, str] | None = None) -> None:
        self._view, self._completion = StalenessFeed(), CompletionFeed()
        self._rows = Rows()
        self._lock = threading.RLock()
        self._schedule = ""
        self._stopped = False
        self._answered = False
        self._sent_whole = 0
        self._callbacks = [on_open] if on_open else []
        super().__init__(colours=dict(colours or {}), sentence=_sentence("", False))
        self.on_msg(self._hear)

    def __repr__(self) -> str:
        early = {kind: count for kind, count in self._completion.snapshot().counts.items() if count}
        counts = ", ".join(f"{count} {action}" for action, count in {**self._view.snapshot().actions, **early}.items())
        return sayable(f"<Feed {counts or self.sentence}>")

    # --- the log ----------------------------------------------------------------------------------------------------------

    def take(self, entries: Sequence[Entry]) -> None:
        """Further entries of the log."""
        with self._lock:
            rows: list[StaleRow | CompletionRow] = [*self._view.feed(entries).rows, *self._completion.feed(entries).rows]
            first, first_string = self._rows.add(sorted(rows, key=lambda row: row.seq))
            self._follow(entries)
            if rows:
                self._send_rows(first, first_string)

    def fail(self, message: str) -> None:
        """Show that this view has failed."""
        self.trouble = sayable(message)

    def _follow(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            match entry.event:
                case RunStarted(settings=settings):
                    self._schedule = worded(settings.get("schedule"))
                case SettingChanged("schedule", _, new):
                    self._schedule = worded(new)
                case RunStopped():
                    self._stopped = True
                case _:
                    continue
            self.sentence = sayable(_sentence(self._schedule, self._stopped))

    # --- the browser ------------------------------------------------------------------------------------------------------

    def on_open(self, callback: Callable[[str], object]) -> None:
        """Call ``callback`` with an item's id when its row is clicked."""
        self._callbacks.append(callback)

    def select(self, item: str) -> None:
        """Mark the rows of an item ("" for none)."""
        self.selected = sayable(item)

    def get_state(self, key: Any = None, drop_defaults: bool = False) -> Any:
        """The widget's state, with every row so far."""
        state = super().get_state(key=key, drop_defaults=drop_defaults)
        if "snapshot" in state:
            with self._lock:
                state["snapshot"] = self._rows.packed()
        return state

    def _send_rows(self, first: int, first_string: int) -> None:
        """New rows alone once a front end has answered; before, all of them as state, which no slow start can miss."""
        if not self._answered and (len(self._rows) <= SMALL or len(self._rows) >= 1.25 * self._sent_whole):
            self._sent_whole = len(self._rows)
            self.send_state("snapshot")
        else:
            self.send({"kind": "rows"}, [self._rows.packed(first, first_string)])

    def _hear(self, _: Any, content: Mapping[str, Any], buffers: Any) -> None:
        match content:
            case {"kind": "have", "rows": int(rows), "strings": int(strings)}:
                with self._lock:
                    self._answered = True
                    if rows < len(self._rows):
                        self.send({"kind": "rows"}, [self._rows.packed(rows, strings)])
            case {"kind": "open", "id": str(item)}:
                self._open(item)
            case _:
                pass

    def _open(self, item: str) -> None:
        self.select(item)
        for callback in self._callbacks:
            try:
                callback(item)
            except Exception as error:  # whatever a listener does, the feed goes on
                self.trouble = sayable(f"opening {item} failed: {type(error).__name__}: {error}")


class Rows:
    """The rows as they travel: arrays of numbers, with each distinct text once."""

    def __init__(self) -> None:
        self._rows: list[list[float]] = []
        self._ids: dict[str, int] = {}
        self._strings: list[str] = []
        self._heirs: dict[str, str] = {}  # what was made from a rolled-back artifact → that artifact

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, rows: Sequence[StaleRow | CompletionRow]) -> tuple[int, int]:
        """Append; returns where the new rows and the new strings begin."""
        first = len(self._rows), len(self._strings)
        self._rows += [self._row(row) if isinstance(row, StaleRow) else self._early(row) for row in rows]
        return first

    def packed(self, first: int = 0, first_string: int = 0) -> bytes:
        """Everything from there on, as ASCII JSON (a lone surrogate in a text stays an escape)."""
        rows, strings = self._rows[first:], self._strings[first_string:]
        whole = {"rows_from": first, "strings_from": first_string, "rows": rows, "strings": strings}
        return json.dumps(whole, separators=(",", ":")).encode("ascii")

    def _row(self, row: StaleRow) -> list[float]:
        texts = (row.item, row.artifact, row.stage, row.where, row.action, row.reason, row.why, row.counterpart, row.policy)
        flags, heir = row.touched + 2 * row.superseded, self._heir(row)
        return [round(row.at, 3), row.base, row.version, row.gap, flags, *(self._id(t) for t in (*texts, heir))]

    def _early(self, row: CompletionRow) -> list[float]:
        """An event of a completion policy; it has no gap (-1), and its base is the version before it."""
        heir = self._heir(row)
        if row.kind == "rolled back":
            self._heirs.update(dict.fromkeys(row.derived, row.artifact))
        moved = row.kind in ("provisional", "rolled back")
        texts = (row.item, row.artifact, row.stage, "completion", row.kind, row.reason, _facts(row), row.rival, "", heir)
        return [round(row.at, 3), row.version - moved, row.version, -1, 0, *(self._id(t) for t in texts)]

    def _heir(self, row: StaleRow | CompletionRow) -> str:
        """The rolled-back artifact that a row's item or text was made from, or ""."""
        return self._heirs.get(row.item) or self._heirs.get(row.artifact) or ""

    def _id(self, text: str) -> int:
        text = text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
        known = self._ids.setdefault(text, len(self._strings))
        if known == len(self._strings):
            self._strings.append(text)
        return known


def _facts(row: CompletionRow) -> str:
    """What stands behind an event, in words: a promise is called one, and a bound is no score."""
    so_far = f"{row.scored} of {row.wanted} examples"
    match row.kind:
        case "released":
            late = ", ".join(str(example) for example in row.late)
            return f"late: example{'s' if len(row.late) != 1 else ''} {late}" if late else ""
        case "provisional":
            rival = "" if row.rival_score is None else f", {row.rival} has {row.rival_score:.3f} on them"
            return f"{row.score or 0:.3f} on the {so_far} that are in{rival}"
        case "confirmed":
            return ""
        case "rolled back":
            return f"made from it: {', '.join(row.derived)}" if row.derived else "nothing was made from it"
        case "proven":
            return f"can reach {row.bound or 0:.3f} at most; {row.saved} of {row.wanted} examples were saved"


def _sentence(schedule: str, stopped: bool) -> str:
    """What an empty feed says."""
    if not schedule:
        return "Nothing has happened yet."
    so_far = "No stale work in this run" if stopped else "No stale work so far"
    if schedule.startswith("Sequential"):
        return f"{so_far}: under {schedule} a proposal begins when the one before has ended, so nothing can go stale."
    return f"{so_far}: under {schedule} no item was judged after a commit that it had not seen."
