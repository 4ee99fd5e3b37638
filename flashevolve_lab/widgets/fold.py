"""A button that opens and closes a part of the controls, and says what is in force in there while it is closed.

Owns the button's state, which lives in the kernel and so survives a reload. Owns no settings, and hides nothing itself: the style
sheet does, by the button's ``aria-expanded``. One rule a change must keep: it opens and closes in the browser at once, also while
a cell keeps the kernel busy; and nothing but a click or a key moves it, so that the page never jumps by itself.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anywidget
import traitlets


class Fold(anywidget.AnyWidget):
    """The button. ``parts``: ``[words, tooltip, whether it is out of the ordinary]``, one for each setting inside."""

    _esm = Path(__file__).with_name("fold.js")
    title = traitlets.Unicode("More settings").tag(sync=True)
    opened = traitlets.Bool(False).tag(sync=True)
    parts: traitlets.List[list[Any]] = traitlets.List().tag(sync=True)

    def __init__(self) -> None:
        super().__init__()
        self.add_class("fl-more")

    def __repr__(self) -> str:
        words = " · ".join(part[0] for part in self.parts)
        return f"<{self.title}, {'open' if self.opened else 'closed'}: {words}>"
