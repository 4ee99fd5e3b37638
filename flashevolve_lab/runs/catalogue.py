"""Runs on disk: open one, list many."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flashevolve_lab.errors import LogError, SetupError
from flashevolve_lab.runs.handle import Run
from flashevolve_lab.runs.launch import FOLDER, running_at
from flashevolve_lab.store import files

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ("run", "state", "created", "proposals", "accepted", "seed_score", "best_score", "seconds", "reason", "path")


def open_run(path: str | Path) -> Run:
    """A run from its file, finished or still being written by any process.

    One that this process executes comes back as the handle that commands it, also when the variable it was in is gone; any
    other can only be looked at.

    Raises:
        LogError: no such file, or not a run file, or of a newer format.
        SetupError: no path at all.
    """
    if not isinstance(path, (str, PathLike)):
        raise SetupError(f"open: expected the path of a run's file, e.g. lab.runs()['path'][0]; got {path!r}")
    return running_at(Path(path)) or Run(Path(path))


def list_runs(folder: str | Path = FOLDER) -> pd.DataFrame:
    """The runs of a folder, the newest first, one row each; empty when there are none. Damaged files say so in ``state``."""
    import pandas as pd

    return pd.DataFrame([_row(path) for path in files(folder)], columns=list(COLUMNS))


def _row(path: Path) -> dict[str, Any]:
    try:
        run = Run(path)
        try:
            status, started = run.status, run.state.started
        finally:
            run.close()
    except LogError as error:
        return {"run": path.stem, "state": "unreadable", "reason": str(error), "path": str(path)}
    facts = {name: getattr(status, name, None) for name in COLUMNS}
    return {**facts, "created": started.created if started else "", "path": str(path)}
