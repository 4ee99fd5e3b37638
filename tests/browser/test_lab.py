"""The live lab in a real JupyterLab: watched, steered with the mouse, inspected, stopped, reloaded, and still there when saved."""

import ast
import json

import pytest
from jupyter_lab import until

pytestmark = [pytest.mark.browser, pytest.mark.slow]

GANTT, FEED, INSPECTOR, HEAD = "[data-lab-status*=spans]", ".lab-feed", ".lab-inspector", ".fl-lab:has(.fl-head)"
LINEAGE, SCORE = "[data-lab-status*=nodes]", "[data-lab-status*=points]"

# Notes in the kernel when an entry is in the log, on the wall's clock that the browser has too.
WATCH = """
import threading, time
SEEN = []
def _watch(last):
    while True:
        for entry in run.after(last):
            last = entry.seq
            kind = type(entry.event).__name__
            if kind in ("SettingChanged", "Paused", "Continued", "Stepped", "RunStopped"):
                SEEN.append((time.time(), kind, str(getattr(entry.event, "new", ""))))
        time.sleep(0.005)
threading.Thread(target=_watch, args=(run.state.seq,), daemon=True).start()
"""
START = """
import flashevolve_lab as lab
land = lab.IndependentRules(n_rules=20, p_improve=0.6)
def begin(name, n=4_000, clock=None, **more):
    return lab.start(lab.simulated_task(land, 60, 50), llm=lab.Simulated(land), budget=lab.Budget(metric_calls=n),
                     clock=clock or lab.Wall(), staleness=lab.Guarded(2, beyond="update"), schedule=lab.Pipelined(8), name=name, **more)
"""


def seen(notebook):
    """What the kernel noted so far."""
    return ast.literal_eval(notebook.execute("print(SEEN)"))


def noted(notebook, kind, count=1):
    """The notes of a kind, once there are ``count``."""
    return until(lambda: (got := [n for n in seen(notebook) if n[1] == kind]) and len(got) >= count and got, 10, f"{count} {kind}")


def button(notebook, text):
    """A button of the dashboard by its words."""
    return notebook.page.locator(".fl-dashboard button", has_text=text).first


def click(notebook, text):
    """Click a button with the mouse; when, on the wall's clock."""
    at = button(notebook, text)
    at.scroll_into_view_if_needed()
    notebook.page.evaluate("() => document.addEventListener('click', () => { window.clickedAt = Date.now(); }, { capture: true, once: true })")
    at.click()
    return notebook.page.evaluate("() => window.clickedAt") / 1000


def status(notebook, selector, true, what, seconds=20):
    """A widget's status record, once it satisfies a condition."""
    return until(lambda: (got := notebook.status(selector)) and true(got) and got, seconds, what)


def test_notebook_03_is_watched_steered_inspected_stopped_and_reloaded(open_notebook):
    notebook = open_notebook("03_live_lab.ipynb", height=1500)
    notebook.run_all()
    notebook.page.wait_for_selector(".fl-head")
    notebook.page.locator(GANTT).first.scroll_into_view_if_needed()  # it draws only where it is seen
    grown_from = status(notebook, GANTT, lambda s: s["spans"] > 5, "bars")["spans"]
    notebook.idle()
    notebook.execute(WATCH)
    status(notebook, GANTT, lambda s: s["spans"] > grown_from + 20, "bars to grow")

    the_empty_inspector_opens_the_newest_verdict(notebook)
    toggle_the_policy(notebook)
    change_a_folded_setting_with_the_keyboard(notebook)
    open_a_stale_item(notebook)
    pause_step_and_resume(notebook)
    notebook.page.locator(HEAD).first.scroll_into_view_if_needed()
    notebook.shot("lab_light", ".fl-dashboard")
    notebook.theme(dark=True)
    notebook.page.wait_for_timeout(600)
    notebook.shot("lab_dark", ".fl-dashboard")
    stop(notebook)
    a_second_view_shows_the_same(notebook)
    reload_and_see_all_again(notebook)


def toggle_the_policy(notebook):
    click(notebook, "Full")
    change = noted(notebook, "SettingChanged")[-1]
    assert "Full" in change[2]
    status(notebook, GANTT, lambda s: any("staleness" in label for label in s["labels"]), "the mark on the Gantt")
    notebook.page.wait_for_selector("text=/in force: Full\\(\\) since/")
    click(notebook, "Guarded")
    noted(notebook, "SettingChanged", 2)


def the_empty_inspector_opens_the_newest_verdict(notebook):
    offer = notebook.page.locator(".lab-newest")
    offer.wait_for()
    offer.click()
    status(notebook, INSPECTOR, lambda s: s["id"], "the newest verdict's item")
    notebook.page.locator(".lab-inspector [aria-label=Close]").click()
    status(notebook, INSPECTOR, lambda s: not s["id"], "the inspector to close")


def change_a_folded_setting_with_the_keyboard(notebook):
    more, tolerant = notebook.page.locator(".fl-more-button"), notebook.page.locator(".fl-folded button", has_text="Tolerant")
    assert more.get_attribute("aria-expanded") == "false" and not tolerant.is_visible()
    assert "Complete · Strict · Fixed" in more.inner_text()
    more.focus()
    notebook.page.keyboard.press("Enter")
    tolerant.wait_for(state="visible")
    before = len([note for note in seen(notebook) if note[1] == "SettingChanged"])
    tolerant.focus()
    notebook.page.keyboard.press("Enter")
    noted(notebook, "SettingChanged", before + 1)
    notebook.page.wait_for_selector(".fl-more-said strong:text('Tolerant')")
    more.focus()
    notebook.page.keyboard.press("Space")
    tolerant.wait_for(state="hidden")


def open_a_stale_item(notebook):
    row = notebook.page.locator(".lab-feed-row").first
    row.scroll_into_view_if_needed()
    row.click()
    shown = status(notebook, INSPECTOR, lambda s: s["artifact"] and len(s["columns"]) >= 2, "two texts side by side")
    cells = notebook.page.locator(".lab-inspector .lab-cell")
    assert cells.count() >= 2 and all(text.strip() for text in cells.all_inner_texts())
    status(notebook, GANTT, lambda s: s["job"] != "", "the same job marked in the Gantt")
    assert notebook.status(FEED)["selected"] == shown["item"]
    click_a_node_of_the_lineage(notebook)
    chosen = status(notebook, LINEAGE, lambda s: s["selected"], "a node chosen")["selected"]
    status(notebook, INSPECTOR, lambda s: s["artifact"] == chosen, "the inspector to show the chosen node")
    row.click()


def click_a_node_of_the_lineage(notebook):
    """With the mouse where one is: the picture is drawn anew with each commit, so an element would not last."""
    notebook.page.locator(LINEAGE).first.scroll_into_view_if_needed()
    place = "() => { const r = document.querySelector('.fl-node.fl-front').getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2]; }"
    x, y = notebook.page.evaluate(place)
    notebook.page.mouse.move(x - 3, y)
    notebook.page.mouse.click(x, y)


def pause_step_and_resume(notebook):
    click(notebook, "Pause")
    noted(notebook, "Paused")
    status(notebook, HEAD, lambda s: s["state"] == "paused", "the header to say paused")
    quiet(notebook)  # calls in flight finish; a job that needs further calls keeps its slot and waits
    before = notebook.status(GANTT)["spans"]
    click(notebook, "Step")
    noted(notebook, "Stepped")
    after = status(notebook, GANTT, lambda s: s["spans"] > before, "the step's job")
    assert after["spans"] == before + 1
    click(notebook, "Resume")
    noted(notebook, "Continued")
    status(notebook, GANTT, lambda s: s["spans"] > before + 5, "further jobs")


def quiet(notebook, seconds=2.5):
    """Until nothing has been written for a while."""
    last = -1
    while (now := notebook.status(GANTT)["seq"]) != last:
        last = now
        notebook.page.wait_for_timeout(seconds * 1000)


def stop(notebook):
    click(notebook, "Stop")
    notebook.page.wait_for_selector("text=Click again to stop")
    assert not [note for note in seen(notebook) if note[1] == "RunStopped"]
    click(notebook, "Click again to stop")
    noted(notebook, "RunStopped")
    status(notebook, HEAD, lambda s: s["state"] == "stopped", "the header to say stopped")
    assert button(notebook, "Pause").is_disabled()


def a_second_view_shows_the_same(notebook):
    notebook.page.evaluate(
        """() => {
      const app = window.jupyterapp, cells = app.shell.currentWidget.content;
      cells.activeCellIndex = cells.widgets.findIndex((cell) => cell.model.sharedModel.getSource() === 'run');
      return app.commands.execute('notebook:create-output-view');
    }"""
    )
    heads = notebook.page.locator(HEAD)
    until(lambda: heads.count() == 2, 15, "a second view")
    until(lambda: heads.nth(0).get_attribute("data-lab-status") == heads.nth(1).get_attribute("data-lab-status"), 15, "the same in both")
    notebook.page.evaluate("() => { for (const w of window.jupyterapp.shell.widgets('main')) if (!w.context) w.dispose(); }")


def reload_and_see_all_again(notebook):
    before = {part: notebook.status(part) for part in (GANTT, FEED, LINEAGE, SCORE, HEAD)}
    notebook.page.locator(".fl-more-button").click()
    notebook.save()
    assert ">ended, " in saved_summary(notebook), "the summary in the saved notebook is that of the end"
    notebook.reload()
    notebook.page.wait_for_selector(".fl-head", timeout=60_000)
    notebook.page.wait_for_selector(".fl-more-button[aria-expanded=true]")  # the fold is as it was left
    for part, keys in ((GANTT, ["spans", "marks"]), (FEED, ["rows"]), (LINEAGE, ["nodes", "front", "best"]), (SCORE, ["points"]), (HEAD, ["seq", "state"])):
        wanted = {key: before[part][key] for key in keys}
        status(notebook, part, lambda s, wanted=wanted: wanted.items() <= s.items(), f"{part} to show {wanted} again")


def saved_summary(notebook):
    """The static HTML of the dashboard in the notebook's file."""
    cells = json.loads(notebook.path.read_text())["cells"]
    pages = ["".join(o.get("data", {}).get("text/html", "")) for cell in cells for o in cell.get("outputs", [])]
    return next(page for page in pages if "fl-static" in page)


def test_a_click_reaches_the_log_within_0_3_s_also_while_a_cell_awaits(open_notebook):
    cells = [START + 'run = begin("latency")\n' + WATCH, "run"]
    notebook = open_notebook("latency.ipynb", cells, height=1300)
    notebook.run_all()
    notebook.page.wait_for_selector(".fl-head")
    notebook.idle()
    waits = []
    for i, policy in enumerate(["Full", "Guarded", "Full", "Guarded"]):
        if i == 2:
            notebook.cell("import asyncio; await asyncio.sleep(6)")
            notebook.page.wait_for_timeout(500)
        clicked = click(notebook, policy)
        notebook.page.wait_for_selector(f"text=/in force: {policy}\\(/")
        waits.append(clicked)
    notebook.idle()
    changes = [at for at, _, _ in noted(notebook, "SettingChanged", 4)]
    latencies = [round(at - clicked, 3) for at, clicked in zip(changes, waits, strict=True)]
    print("click to log, s: idle", latencies[:2], "awaiting cell", latencies[2:])
    assert max(latencies) < 0.3, latencies
    click_during_a_blocking_cell(notebook)


def click_during_a_blocking_cell(notebook):
    """What is shown goes on; when the click arrives depends on the front end (docs of `widgets.controls`)."""
    notebook.cell("time.sleep(4); ENDED = time.time()")
    notebook.page.wait_for_timeout(300)
    before = notebook.status(GANTT)["seq"]
    clicked = click(notebook, "Full")
    status(notebook, GANTT, lambda s: s["seq"] > before, "the Gantt to go on during a blocking cell", 2.5)
    notebook.idle()
    ended, changed = float(notebook.execute("print(ENDED)")), noted(notebook, "SettingChanged", 5)[-1][0]
    print("click to log, s: blocking cell", round(changed - clicked, 3), "the cell ended", round(ended - changed, 3), "s later")


HOSTILE = """
import dataclasses
@dataclasses.dataclass(frozen=True)
class Hostile:
    word: str = "<img src=x onerror=window.hacked=1> $x^2$ \\u202e"
    def judge(self, item):
        return lab.Verdict("accept", self.word)
"""


def test_a_finished_run_from_its_file_is_read_only_and_hostile_words_are_only_words(open_notebook):
    done = 'begin("done", 800, lab.Virtual(), folder="runs").set(staleness=Hostile(), why="<script>window.hacked=1</script>").wait()'
    cells = [START + HOSTILE + done, 'run = lab.open("runs/done.sqlite")\nrun']
    notebook = open_notebook("done.ipynb", cells, width=620, height=1300)
    notebook.run_all()
    notebook.page.wait_for_selector(".fl-head")
    state = status(notebook, HEAD, lambda s: s["state"] == "stopped", "the end of the run")
    assert state["best"] is not None
    for text in ("Pause", "Resume", "Step", "Stop", "Full"):
        assert button(notebook, text).is_disabled(), text
    notebook.page.wait_for_selector("text=/The run ended at/")
    wide = notebook.page.evaluate("() => { const d = document.querySelector('.fl-dashboard'); return d.scrollWidth - d.clientWidth; }")
    assert wide <= 1, "a narrow dashboard must not scroll sideways"
    notebook.shot("lab_narrow", ".fl-dashboard")
    the_keyboard_walks_the_lineage(notebook)
    assert notebook.page.evaluate("() => window.hacked") is None


def the_keyboard_walks_the_lineage(notebook):
    tree = notebook.page.locator(f"{LINEAGE} svg").first
    tree.focus()
    tree.press("ArrowLeft")  # from the best to its parent
    tree.press("Enter")
    chosen = status(notebook, LINEAGE, lambda s: s["selected"], "a node chosen by the keyboard")
    assert chosen["selected"] != chosen["best"]
    status(notebook, INSPECTOR, lambda s: s["artifact"] == chosen["selected"], "the inspector to show it")


def test_a_saved_notebook_keeps_a_static_summary_without_its_kernel(open_notebook, lab_server):
    cells = [START + 'run = begin("kept", 800, lab.Virtual(), folder="runs")\nrun.wait()', "run"]
    notebook = open_notebook("kept.ipynb", cells)
    notebook.run_all()
    notebook.page.wait_for_selector(".fl-head")
    notebook.idle()
    assert notebook.page.locator(".fl-static").count() == 1 and not notebook.page.locator(".fl-static").is_visible()
    notebook.save()
    notebook.close()
    lab_server.end_sessions()
    again = open_notebook("kept.ipynb")
    again.page.wait_for_selector(".fl-static")
    assert "best score" in again.page.locator(".fl-static").inner_text()
    for noise in ("text=model not found", "text=Loading widget"):
        assert not again.page.locator(noise).is_visible()
    again.shot("lab_static")


TYPESET = """
from IPython.display import HTML, display
from flashevolve_lab.views import RunFacts, Standing
from flashevolve_lab.widgets import Summary, summary_html
run = begin("typeset", 800, lab.Virtual(), folder="runs")
await run
display(HTML("<p class='control'>$x^2$</p>"))
display(HTML(summary_html(Summary(RunFacts(run="$x^2$", proposer="$y^2$"), Standing(best_artifact="a0"), "running", "$z^2$", best_texts={"$p$": "$q^2$"}))))
lab.compare({"$x^2$": run})"""


def test_no_formula_in_a_text_of_a_run_is_typeset(open_notebook):
    notebook = open_notebook("typeset.ipynb", [START + TYPESET])
    notebook.run_all()
    notebook.page.wait_for_selector(".control mjx-container")  # elsewhere in the same output it would be
    notebook.page.wait_for_timeout(1_000)
    assert notebook.page.locator("mjx-container").count() == 1
    texts = notebook.page.locator(".fl-static").text_content() + notebook.page.locator("table.dataframe").text_content()
    for formula in ("$x^2$", "$y^2$", "$z^2$", "$p$", "$q^2$"):
        assert formula in texts
