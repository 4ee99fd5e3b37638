"""A widget whose browser side mirrors a small JSON document: a few facts (`now`) and a list that only grows (`rows`).

Owns how it travels: whole in the widget's own state (`get_state`: drawn during a blocking cell, after a reload, in a second
view), then what changed, numbered, as bytes. One rule a change must keep: every message has the next number, so that the browser
notices a gap and asks again. JSON is ASCII-only, so any text survives (lone surrogates too).
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import anywidget
import traitlets as t

RESENDS_S = (0.0, 1.0, 4.0, 16.0)  # after state went out and before a browser has said that it follows: the whole again
HERE = Path(__file__).parent
_dumps = json.JSONEncoder(ensure_ascii=True, separators=(",", ":")).encode


def module_of(name: str) -> str:
    """The ES module of a widget: what all mirrors share, then its own file."""
    return (HERE / "mirror.js").read_text(encoding="utf-8") + (HERE / f"{name}.js").read_text(encoding="utf-8")


class Mirror(anywidget.AnyWidget):
    """Base of such widgets; a subclass sets ``_esm`` (and ``_css``) and calls `push`."""

    snapshot = t.Bytes().tag(sync=True)  # never set: filled in by `get_state`
    failed = t.Unicode("").tag(sync=True)  # shown instead of the content
    selected = t.Unicode("").tag(sync=True)  # the artifact selected in the dashboard

    def __init__(self, **options: Any) -> None:
        self._lock_document = threading.Lock()
        self._revision = 0
        self._now: dict[str, Any] = {}
        self._rows: list[Any] = []
        self._resend_at: list[float] = []
        super().__init__(**options)
        self.on_msg(self._asked)

    def push(self, now: Mapping[str, Any], rows: Sequence[Any] = ()) -> None:
        """Send the facts that differ from those sent before, and further rows (any thread)."""
        with self._lock_document:
            changed = {name: value for name, value in now.items() if name not in self._now or self._now[name] != value}
            if not changed and not rows:
                return
            start = len(self._rows)
            self._now.update(changed)
            self._rows += rows
            self._revision += 1
            message = {"revision": self._revision, "now": changed, "rows_from": start, "rows": list(rows)}
        if self._resend_at and time.monotonic() >= self._resend_at[0]:
            self._resend_at.pop(0)
            self.send_state("snapshot")  # as state: a browser that is still loading cannot miss it
        else:
            self._tell(message)

    def get_state(self, key: Any = None, drop_defaults: bool = False) -> dict[str, Any]:
        """The widget's state, with the whole document in ``snapshot``."""
        state: dict[str, Any] = super().get_state(key, drop_defaults)
        if "snapshot" in state:
            state["snapshot"] = _dumps(self._whole()).encode()
        if key is None:
            now = time.monotonic()
            self._resend_at = [now + wait for wait in RESENDS_S]
        return state

    def _whole(self) -> dict[str, Any]:
        with self._lock_document:
            return {"whole": True, "revision": self._revision, "now": dict(self._now), "rows_from": 0, "rows": list(self._rows)}

    def _asked(self, _: Any, content: Any, buffers: Any) -> None:
        """The browser follows from some revision on: if it missed something, send it all again."""
        if isinstance(content, Mapping) and content.get("kind") == "follows":
            self._resend_at = []
            if content.get("revision") != self._revision:
                self._tell(self._whole())

    def _tell(self, message: Mapping[str, Any]) -> None:
        self.send({"kind": "document"}, [_dumps(message).encode()])
