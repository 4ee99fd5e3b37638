"""Takes the picture in the README: ``python figures/screenshot.py`` (needs Chromium and the extra [test]; about a minute).

The live lab in a real JupyterLab, on a run against the simulated model server whose staleness policy changes in the middle: what
goes stale is patched from then on, and a patched item is open in the inspector. A run on the wall's clock is never twice the same, so
neither is the picture.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests" / "browser"))

import jupyter_lab  # noqa: E402

WIDTH, HEIGHT = 1680, 1500  # of the browser's window
SHAPE = 16 / 14  # of the picture: as wide as the dashboard, from its top down
PATCHED = 12  # pieces of patched work before the picture is taken
START = """\
import flashevolve_lab as lab

land = lab.UnitingRules(n_rules=20, p_improve=0.6)
task = lab.simulated_task(land, n_train=60, n_val=50)
run = lab.start(
    task, llm=lab.Simulated(land), schedule=lab.Pipelined(16), staleness=lab.Full(), completion=lab.Complete("front"),
    clock=lab.Scaled(2), name="live_lab",
    slots={"rollout": 2, "propose": 6, "gate": 2, "patch": 2, "validate": 2}, budget=lab.Budget(metric_calls=20_000),
)"""

TO_TOP = "node => node.scrollIntoView(true)"
MADE = "[a.id for a in run.state.artifacts.values() if a.origin == 'patch']"
PLACE = """node => {
  node.scrollIntoView(true);
  const { x, y, width } = node.getBoundingClientRect();
  return { x, y, width };
}"""


@contextlib.contextmanager
def notebook() -> Iterator[Any]:
    """A notebook with the run in it, open in JupyterLab."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "root"
        with jupyter_lab.server(root) as server, jupyter_lab.browser() as chrome:
            jupyter_lab.write_notebook(root / "live_lab.ipynb", [START, "run"])
            shown = jupyter_lab.Notebook(chrome, server, width=WIDTH, height=HEIGHT)
            shown.open("live_lab.ipynb")
            yield shown
            shown.close()


def steer(shown: Any) -> None:
    """Change the policy after some seconds, wait for patched work, pause, and open a patched item from the feed."""
    page = shown.page
    shown.run_all()
    page.wait_for_selector(".fl-head")
    page.wait_for_timeout(6_000)
    shown.execute('run.set(staleness=lab.Reflective(batch=8, queue=128), why="what goes stale is rewritten, not dropped")')
    jupyter_lab.until(lambda: int(shown.execute(f"print(len({MADE}))")) >= PATCHED, 120, f"{PATCHED} patched texts")
    find = page.locator(".lab-find")
    find.fill(shown.execute(f"print({MADE}[-1])").strip())
    find.press("Enter")
    page.wait_for_selector(".lab-inspector ins")
    page.locator(".lab-columns").first.evaluate(TO_TOP)


def picture(shown: Any, target: Path) -> None:
    """The upper part of the dashboard."""
    page = shown.page
    box = page.locator(".fl-dashboard").first.evaluate(PLACE)
    page.mouse.move(5, 5)
    page.wait_for_timeout(1_500)
    page.screenshot(path=target, clip={**box, "height": box["width"] / SHAPE})


def main() -> None:
    """Write ``live_lab.png``."""
    if jupyter_lab.chromium() is None:
        sys.exit("needs Chromium: apt-get install chromium")
    with notebook() as shown:
        steer(shown)
        picture(shown, HERE / "live_lab.png")


if __name__ == "__main__":
    main()
