"""The inspector: one item's text beside the version it was made from and the current one, with all the evidence; and acts by hand.

Owns `Inspector`: which id is shown, its history, which columns are compared, and the commands of a person. Owns no facts
(`views.Evidence`), no alignment (`difference`), no pixels (`inspector.js`). One rule a change must keep: what a command did is
read back from the log, never assumed; and texts travel as ASCII JSON in bytes, so that no text can break a message.
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
from flashevolve_lab.core.events import Gated, StalenessJudged
from flashevolve_lab.errors import LabError
from flashevolve_lab.views import Dossier, Evidence, Text, worded
from flashevolve_lab.widgets.difference import Difference, differences
from flashevolve_lab.widgets.live import Commands
from flashevolve_lab.widgets.telling import evidence_of, facts_of, text_of
from flashevolve_lab.widgets.texts import sayable

COLUMNS = ("parent", "current", "best", "earlier", "later")  # what a text can be compared with
BESIDE = "beside"  # and the texts that were read together with it: beside1, beside2, …
KEPT = 64  # ids of the history
ACTS = 5  # of what was done by hand, told after a command


class Inspector(anywidget.AnyWidget):
    """Everything about one artifact, item or job, side by side with the current version.

    Args:
        commands: The run's, when acts by hand should be possible.
        show_example: ``(split, index) → text`` of an example; the log has only numbers.
    """

    _esm = Path(__file__).with_name("inspector.js")
    _css = Path(__file__).with_name("inspector.css")
    facts = traitlets.Bytes(b"{}").tag(sync=True)  # small, changes as the run goes on
    evidence = traitlets.Bytes(b"{}").tag(sync=True)  # samples and replies
    texts = traitlets.Bytes(b"{}").tag(sync=True)  # the columns and what differs
    trouble = traitlets.Unicode("").tag(sync=True)

    def __init__(self, commands: Commands | None = None, *, show_example: Callable[[str, int], str] | None = None) -> None:
        self._view = Evidence()
        self._commands = commands
        self._show_example = show_example
        self._examples: dict[int, str] = {}
        self._lock = threading.RLock()
        self._history: list[str] = []
        self._place = -1
        self._against = ""  # the column that was chosen; "" = by itself
        self._said: dict[str, Any] = {}
        self._since = 0  # acts by hand after this entry are told
        self._differences: dict[tuple[str, str], dict[str, Difference]] = {}
        self._callbacks: list[Callable[[str], object]] = []
        self._newest = ""  # the item of the last staleness verdict, else of the last gate
        self._stale = False  # whether there was a staleness verdict
        super().__init__()
        self.on_msg(self._hear)

    poller: object = None  # what feeds it, when it stands alone

    def __repr__(self) -> str:
        return f"<Inspector of {self.shown}>" if self.shown else "<Inspector of nothing yet: call show('p12')>"

    # --- the log ----------------------------------------------------------------------------------------------------------

    def take(self, entries: Sequence[Entry]) -> None:
        """Further entries of the log."""
        with self._lock:
            self._view.feed(entries)
            for entry in entries:
                self._note(entry.event)
            self._tell()

    def _note(self, event: object) -> None:
        """The item of a verdict is what an empty inspector offers."""
        match event:
            case StalenessJudged(item=item):
                self._newest, self._stale = item, True
            case Gated(item=item) if not self._stale:
                self._newest = item
            case _:
                pass

    def fail(self, message: str) -> None:
        """Show that this view has failed."""
        self.trouble = sayable(message)

    # --- what is shown ----------------------------------------------------------------------------------------------------

    @property
    def shown(self) -> str:
        """The id that is shown, "" for none."""
        return self._history[self._place] if self._place >= 0 else ""

    def show(self, id: str) -> None:
        """Show an item ("p12"), an artifact ("a7") or a job ("j33").

        Raises:
            SetupError: the log has no such id so far; what was shown stays.
        """
        with self._lock:
            self._view.about(id)
            if id != self.shown:
                self._history = [*self._history[: self._place + 1], id][-KEPT:]
                self._place = len(self._history) - 1
            self._against, self._said = "", {}
            self._tell()
        self._announce()

    def close_item(self) -> None:
        """Show nothing; the history is kept."""
        with self._lock:
            self._place, self._said = -1, {}
            self._tell()
        self._announce()

    def on_show(self, callback: Callable[[str], object]) -> None:
        """Call ``callback`` with the id whenever another one is shown ("" when closed)."""
        self._callbacks.append(callback)

    def compare(self, column: str) -> None:
        """Show what differs from a column: parent, current, best, earlier, later, or beside1, beside2, … of a batch."""
        with self._lock:
            self._against = column if column in COLUMNS or column.startswith(BESIDE) else ""
            self._tell()

    def go(self, steps: int) -> None:
        """Back (-1) or forward (+1) in the history."""
        with self._lock:
            self._place = max(0, min(self._place + steps, len(self._history) - 1)) if self._history else -1
            self._against, self._said = "", {}
            self._tell()
        self._announce()

    def _announce(self) -> None:
        for callback in self._callbacks:
            try:
                callback(self.shown)
            except Exception as error:  # whatever a listener does, the inspector goes on
                self.fail(f"showing {self.shown} elsewhere failed: {type(error).__name__}: {error}")

    # --- telling the browser ----------------------------------------------------------------------------------------------

    def _tell(self) -> None:
        """Bring the traits up to date; those that did not change cost no message."""
        with self.hold_sync():  # one message
            if not self.shown:
                self.facts, self.evidence, self.texts = _packed(self._nothing()), b"{}", b"{}"
                return
            dossier = self._view.about(self.shown)
            columns = self._columns(dossier)
            against = self._chosen(columns)
            self.texts = self._texts(dossier, columns, against)
            self.evidence = _packed({"id": dossier.id, **evidence_of(dossier, self._example)})
            self.facts = _packed({**facts_of(dossier), "against": against, **self._around()})

    def _nothing(self) -> dict[str, Any]:
        return {"id": "", "newest": self._newest, **self._around()}

    def _around(self) -> dict[str, Any]:
        """The history, what may be done, and what was."""
        acts = [act for act in self._view.acts if act.seq > self._since][-ACTS:] if self._said else []
        return {
            "back": self._place > 0,
            "forward": self._place < len(self._history) - 1,
            "cannot": self._cannot(),
            "said": self._said,
            "acts": [{"at": act.at, "item": act.item, "words": act.words} for act in acts],
        }

    def _cannot(self) -> str:
        """Why nothing can be done by hand ("" when it can)."""
        state = self._view.state
        if state.status == "stopped":
            return f"The run has ended ({state.stop.reason if state.stop else ''}), so its items can only be looked at."
        if self._commands is None:
            return "This inspector was opened without commands, so items can only be looked at."
        if not self._commands.available:
            return "This process does not execute the run, so its items can only be looked at."
        return ""

    def _columns(self, dossier: Dossier) -> dict[str, Text]:
        texts = (dossier.parent, dossier.counterpart, dossier.best, dossier.earlier, dossier.later)
        beside = {f"{BESIDE}{n}": text for n, text in enumerate(dossier.beside, 1)}
        return {name: text for name, text in zip(COLUMNS, texts, strict=True) if text is not None} | beside

    def _chosen(self, columns: Mapping[str, Text]) -> str:
        """The column compared with: the chosen one, else the current version, the parent, the best."""
        return next((name for name in (self._against, "current", "parent", "best") if name in columns), "")

    def _texts(self, dossier: Dossier, columns: Mapping[str, Text], against: str) -> bytes:
        own, other = dossier.own, columns.get(against)
        parts: dict[str, Any] = {"id": dossier.id, "against": against}
        parts["own"] = text_of(own) if own else None
        parts["columns"] = {name: text_of(text) for name, text in columns.items()}
        parts["differences"] = self._differing(own, other) if own and other else {}
        return _packed(parts)

    def _differing(self, own: Text, other: Text) -> dict[str, Any]:
        pair = own.id, other.id
        if pair not in self._differences:
            self._differences = {**dict(list(self._differences.items())[-7:]), pair: differences(other.components, own.components)}
        found = self._differences[pair]
        return {
            name: {"other": d.old, "own": d.new, "gone": d.gone, "added": d.added, "equal": d.equal}
            for name, d in found.items()
        }

    def _example(self, index: int) -> str:
        if self._show_example is None:
            return ""
        if index not in self._examples:
            try:
                self._examples[index] = str(self._show_example("train", index))
            except Exception as error:  # a user's function
                self._examples[index] = f"(this example could not be shown: {type(error).__name__}: {error})"
        return self._examples[index]

    # --- by hand ----------------------------------------------------------------------------------------------------------

    def _hear(self, _: Any, content: Mapping[str, Any], buffers: Any) -> None:
        match content:
            case {"kind": "show", "id": str(id)}:
                self._try(lambda: self.show(id), "")
            case {"kind": "compare", "column": str(column)}:
                self.compare(column)
            case {"kind": "go", "steps": int(steps)}:
                self.go(steps)
            case {"kind": "close"}:
                self.close_item()
            case {"kind": "judge", "action": str(action), "reason": str(reason)}:
                self._judge(action, reason.strip())
            case {"kind": "inject", "parent": str(parent), "components": Mapping() as components}:
                self._inject({str(name): str(text) for name, text in components.items()}, parent)
            case _:
                pass

    def _judge(self, action: str, reason: str) -> None:
        dossier = self._view.about(self.shown)
        why = reason or "decided in the inspector"
        self._order(lambda commands: commands.judge(dossier.item, action, reason=why), f"{action} {dossier.item}")

    def _inject(self, components: Mapping[str, str], parent: str) -> None:
        self._order(lambda commands: commands.inject(components, parent=parent or None), f"inject a text as a child of {parent}")

    def _order(self, order: Callable[[Commands], Any], words: str) -> None:
        """Send a command; what became of it is told when the log says so."""
        with self._lock:
            commands, cannot = self._commands, self._cannot()
            self._since = self._view.state.seq
            if commands is None or cannot:
                self._said = {"error": cannot}
                self._tell()
                return
            self._said = {"sent": words}
        self._try(lambda: order(commands), words)

    def _try(self, act: Callable[[], object], words: str) -> None:
        try:
            act()
        except LabError as error:
            self._said = {"error": str(error)}
        except Exception as error:  # a run that another part of the notebook broke must not break its inspector
            self._said = {"error": f"{type(error).__name__}: {error}"}
        with self._lock:
            self._tell()


def _packed(value: Any) -> bytes:
    """ASCII JSON: a lone surrogate or a control character stays an escape."""
    return json.dumps(value, separators=(",", ":"), default=worded).encode("ascii")
