"""Model servers that tell their load are in the overview: a simulated one, and a real vLLM under a Reflective run."""

import os
import shutil
from pathlib import Path

import pytest
from jupyter_lab import until

pytestmark = [pytest.mark.browser, pytest.mark.slow]

FACTS, CARD = "[data-lab-status*=servers]", ".fl-card[aria-label='Model servers']"
TESTS = Path(__file__).parents[1] / "llm"
REAL = os.environ.get("FLASHEVOLVE_VLLM", "")
SIMULATED = """
import flashevolve_lab as lab
land = lab.IndependentRules(n_rules=20, p_improve=0.6)
run = lab.start(lab.simulated_task(land, 60, 50), llm=lab.Simulated(land, speed=lab.FixedLatency(slots=4)), clock=lab.Scaled(4),
                budget=lab.Budget(metric_calls=3_000), schedule=lab.Pipelined(8), name="told")
run
"""
VLLM = """
import sys, tempfile
from pathlib import Path
sys.path.insert(0, {tests!r})
import flashevolve_lab as lab
from test_vllm import TINY, ChosenLine, ChosenPatch, noisy_task, tiny_model
model = lab.vllm(tiny_model(Path(tempfile.mkdtemp()) / "tiny-random"), executable={real!r}, args=TINY,
                 environment={{"VLLM_CPU_KVCACHE_SPACE": "1"}}, stop_with_run=True)
run = lab.start(noisy_task(), lab.GEPA(minibatch=4, proposer=ChosenLine(), patcher=ChosenPatch()),
                llm=model, schedule=lab.Pipelined(16), staleness=lab.Reflective(), budget=lab.Budget(metric_calls=4_000), name="vllm")
run
"""


def first_server(notebook, running=0):
    """The first row of the card, once it is there and that many requests run."""

    def told():
        cells = notebook.page.locator(f"{CARD} tbody tr:first-child td").all_text_contents()
        return cells if len(cells) == 4 and float(cells[1]) >= running else None

    return until(told, 60, "a row of the card")


def test_the_overview_shows_what_a_server_tells(open_notebook):
    notebook = open_notebook("servers.ipynb", [SIMULATED], height=1500)
    notebook.run_all()
    notebook.page.wait_for_selector(FACTS)
    name, running, waiting, cache = first_server(notebook, running=1)
    assert (name, cache) == ("Simulated", "not told")
    assert 1 <= float(running) <= 4 and float(waiting) >= 0
    assert notebook.status(FACTS)["servers"] == 1
    notebook.execute("run.stop()")


@pytest.mark.vllm
@pytest.mark.timeout(600)
@pytest.mark.skipif(
    not shutil.which(REAL or "?"), reason="FLASHEVOLVE_VLLM names no vLLM executable, see tests/llm/set_up_vllm_cpu.sh"
)
def test_the_overview_shows_a_real_vllm_under_a_reflective_run(open_notebook):
    notebook = open_notebook("vllm.ipynb", [VLLM.format(tests=str(TESTS), real=REAL)], height=1500)
    notebook.run_all()
    notebook.page.wait_for_selector(FACTS, timeout=400_000)
    name, running, _, cache = first_server(notebook, running=1)
    assert name.startswith("127.0.0.1:") and float(running) >= 1 and cache.endswith("%")
    notebook.execute("run.pause()")  # what is in flight ends, and the last look stays on the screen
    notebook.shot("lab_vllm", ".fl-dashboard")
    ended = notebook.execute("run.stop(); run.wait(30); print(run.status, model)")
    assert "stopped by the user <VLLM tiny-random, stopped>" in ended
