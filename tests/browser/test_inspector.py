"""The feed and the inspector in a real JupyterLab: open a stale item, steer it by hand, and no text is ever more than text."""

import jupyter_lab
import pytest

pytestmark = pytest.mark.browser

STEERED = [
    """\
import tempfile
import flashevolve_lab as lab
from flashevolve_lab.widgets.feed import Feed
from flashevolve_lab.widgets.inspector import Inspector
from flashevolve_lab.widgets.live import Poller
land = lab.IndependentRules(n_rules=20, p_improve=0.6)
task = lab.simulated_task(land, 60, 50)
guarded = lab.Guarded(2, beyond="update")
run = lab.start(task, llm=lab.Simulated(land), budget=lab.Budget(metric_calls=40_000), clock=lab.Scaled(10),
                schedule=lab.Pipelined(8), staleness=guarded, folder=tempfile.mkdtemp())
inspector = Inspector(run, show_example=lambda split, i: str(getattr(task, split)[i]))
feed = Feed(inspector.show)
poller = Poller(run, [feed, inspector])
feed""",
    "inspector",
]

HOSTILE = '''\
import itertools
from flashevolve_lab.core import Entry, Spend
from flashevolve_lab.core import events as ev
from flashevolve_lab.widgets.feed import Feed
from flashevolve_lab.widgets.inspector import Inspector
MARKUP = "</script></style></textarea><img class=evil src=x onerror='window.evil=1'><script>window.evil=1</script><b class=evil>b</b> &lt; "
ODD = MARKUP + "\\u202eright to left \\u05d0\\u05d1 \\ud800 lone \\x00\\x07 control \\u2028"
LONG = ODD + "word <i class=evil>x</i> " * 8_000
log, n = [], itertools.count(1)
def add(*events):
    for event in events:
        k = next(n)
        log.append(Entry(k, float(k), event))
add(ev.RunStarted(ODD, ODD, 0, "virtual", {"name": ODD}, ("rollout", "propose", "gate", "validate"),
    {"schedule": {"name": ODD, "depth": ODD}, "staleness": {"name": ODD}}, {}, {"name": ODD}, {"task": {"kind": ODD}}))
add(ev.ArtifactMade("a0", {ODD: ODD, "prompt": LONG}, "h0", (), "seed", "", "p0"), ev.ItemMade("p0", "seed", "validate", 0, 0, {"child": "a0"}))
add(ev.JobStarted("j0", "validate", 0, "p0", -1), ev.SampleScored("j0", "a0", "val", 0, 0.5, LONG, LONG), ev.JobFinished("j0"))
add(ev.Committed(0, "a0", "p0", 0, {"0": 0.5}, 1), ev.ItemEnded("p0", "committed", ODD, "a0"))
add(ev.ItemMade("p1", "proposal", "rollout", 0, 1, {"parent": "a0", "component": ODD, "minibatch": [0, 1]}))
add(ev.JobStarted("j1", "rollout", 0, "p1", 0), ev.SampleScored("j1", "a0", "train", 0, 0.0, LONG, LONG, LONG),
    ev.SampleFailed("j1", "a0", "train", 1, "transient", LONG), ev.JobFinished("j1"), ev.ItemQueued("p1", "propose"))
add(ev.JobStarted("j2", "propose", 0, "p1", 0), ev.CallStarted("c0", "j2", "reflection", ODD, 1, Spend(llm_calls=1), ODD, LONG),
    ev.CallFinished("c0", "ok", Spend(llm_calls=1, tokens=9), 4, 5, ODD, ODD, LONG), ev.JobFailed("j2", ODD, LONG, LONG), ev.ItemQueued("p1", "propose", retry=True))
add(ev.JobStarted("j3", "propose", 0, "p1", 0), ev.JobFinished("j3", {"text": LONG, "note": LONG}))
add(ev.ArtifactMade("a1", {ODD: ODD + "!", "prompt": "new " + LONG + " end"}, "h1", ("a0",), "reflection", ODD, "p1"), ev.ItemQueued("p1", "gate", {"child": "a1"}))
add(ev.JobStarted("j4", "gate", 0, "p1", 0), ev.SampleScored("j4", "a1", "train", 0, 1.0, LONG, LONG), ev.JobFinished("j4"),
    ev.Gated("p1", "a1", "a0", True, True, 0.0, 1.0), ev.ItemQueued("p1", "validate"))
add(ev.StalenessJudged("p1", "a1", "validate", "dequeue", 0, 3, 3, True, True, "a0", ODD, LONG, ODD, LONG),
    ev.StalenessJudged("p1", "a1", "validate", ODD, 0, 3, 3, True, True, "a0", "accept", ODD, ODD, ODD), ev.Warned("by hand", ODD))
class Refusing:
    available = True
    def judge(self, item, action, *, reason=""): raise ValueError(ODD)
    def inject(self, components, *, parent=None): self.got = components
commands = Refusing()
inspector = Inspector(commands, show_example=lambda split, i: LONG)
feed = Feed(inspector.show)
feed.take(log); inspector.take(log)
feed.fail(ODD); inspector.fail(ODD)
'''

MANY = """\
from flashevolve_lab.core import Entry
from flashevolve_lab.core import events as ev
from flashevolve_lab.widgets.feed import Feed
def judged(seq):
    action = ("accept", "accept", "update", "discard")[seq % 4]
    gap = 1 + seq * 7 % 23
    why = f"its parent a{seq // 3} lost {seq % 17} of 31 front wins"
    return Entry(seq, seq / 10, ev.StalenessJudged(f"p{seq}", f"a{seq}", "validate", "dequeue" if seq % 3 and seq % 4 != 2 else "commit", seq, seq + gap, gap,
                 True, seq % 5 == 0, f"a{seq // 2}", action, f"gap {gap} is within 30", "Guarded", why))
feed = Feed()
feed.take([judged(seq) for seq in range(1, 50_001)])
feed"""


@pytest.fixture
def opened(open_notebook):
    """Opens a notebook with these cells and runs them; everything ends with the test."""

    def open_(*cells, **options):
        note = open_notebook("inspector.ipynb", cells, **options)
        note.run_all()
        return note

    return open_


def feed_of(note):
    return note.status(".lab-feed")


def inspector_of(note):
    return note.status(".lab-inspector")


def shows(note, id):
    jupyter_lab.until(lambda: inspector_of(note)["id"] == id, 10, f"the inspector to show {id}")


def find(note, id):
    note.page.locator(".lab-find").fill(id)
    note.page.locator(".lab-find").press("Enter")
    shows(note, id)


def test_a_stale_item_is_opened_from_the_feed_discarded_by_hand_and_an_edited_text_is_injected(opened):
    note = opened(*STEERED, height=1900)
    page = note.page
    page.wait_for_selector(".lab-feed-row", timeout=60_000)
    page.locator(".lab-feed-row").first.click()
    jupyter_lab.until(lambda: inspector_of(note)["id"], 10, "the inspector to open")
    assert len(inspector_of(note)["columns"]) >= 2
    assert inspector_of(note)["only"] >= 1
    jupyter_lab.until(lambda: feed_of(note)["rows"] > 30, 60, "more verdicts")
    note.shot("inspector-light")

    note.execute("run.pause()")
    quiet = "print(run.state.status == 'paused' and not run.state.calls and poller.seq == run.state.seq)"
    jupyter_lab.until(lambda: note.execute(quiet).strip() == "True", 20, "all calls to end and the views to have read all")
    item = note.execute("print(next(i.id for i in run.state.items.values() if i.kind == 'proposal'))").strip()
    find(note, item)
    page.locator(".lab-reason").fill("<b>dull</b>")
    page.get_by_role("button", name="Discard", exact=True).click()
    page.wait_for_selector(".lab-act")
    assert f"{item} was discarded by hand: <b>dull</b>" in page.locator(".lab-act").first.inner_text()
    note.execute(f"found = [e.event for e in run.entries if getattr(e.event, 'where', '') == 'hand' and e.event.item == '{item}']")
    assert note.execute("print([(e.action, e.reason) for e in found])").strip() == "[('discard', '<b>dull</b>')]"
    jupyter_lab.until(lambda: page.get_by_role("button", name="Accept", exact=True).is_disabled(), 5, "what has ended to be only looked at")

    find(note, "a0")
    page.get_by_role("button", name="Edit & inject").click()
    page.locator(".lab-editor textarea").fill("Mine: </textarea><script>window.evil=1</script>")
    page.get_by_role("button", name="Inject at the gate").click()
    page.wait_for_selector(".lab-act")
    assert "a text by hand" in page.locator(".lab-act").first.inner_text()
    note.execute("mine = [e.event for e in run.entries if getattr(e.event, 'origin', '') == 'human'][-1]")
    assert note.execute("print(mine.components['prompt'])").strip() == "Mine: </textarea><script>window.evil=1</script>"

    page.keyboard.press("Escape")
    page.locator(".lab-inspector").focus()
    page.keyboard.press("Escape")
    jupyter_lab.until(lambda: inspector_of(note)["id"] == "", 5, "Esc to close it")
    note.execute("run.stop()")


def test_keyboard_filters_reload_themes_and_narrow_pages(opened):
    note = opened(*STEERED, height=1700)
    page = note.page
    jupyter_lab.until(lambda: page.locator(".lab-feed-row").count() > 20, 60, "verdicts")
    note.execute("run.stop()")
    page.locator(".lab-feed-list").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    third = feed_of(note)["active"]
    page.keyboard.press("Enter")
    shows(note, third)

    counts = feed_of(note)["counts"]
    page.get_by_role("button", name="accept").first.click()
    jupyter_lab.until(lambda: feed_of(note)["drawn"] == feed_of(note)["rows"] - counts["accept"], 5, "accepts to be hidden")
    page.get_by_role("button", name="accept").first.click()
    page.locator(".lab-feed-place").select_option(label="at commit")
    assert 0 < feed_of(note)["drawn"] < feed_of(note)["rows"]

    rows = feed_of(note)["rows"]
    note.save()  # waits: a reload while a notebook is being saved finds it without its outputs
    note.reload()
    jupyter_lab.until(lambda: page.locator(".lab-feed-row").count(), 30, "the feed after a reload")
    jupyter_lab.until(lambda: feed_of(note)["rows"] >= rows, 10, "every verdict after a reload")
    shows(note, third)

    note.theme(True)
    note.shot("feed-dark", ".lab-feed")
    note.shot("inspector-dark", ".lab-inspector")
    page.set_viewport_size({"width": 480, "height": 1300})
    page.wait_for_timeout(500)
    note.shot("feed-narrow", ".lab-feed")
    note.shot("inspector-narrow", ".lab-inspector")
    too_wide = "node => node.scrollWidth > node.clientWidth + 1"
    assert not page.locator(".lab-feed").evaluate(too_wide) and not page.locator(".lab-inspector").evaluate(too_wide)


def test_hostile_text_through_every_field_changes_nothing_but_the_text(opened):
    note = opened(HOSTILE + "feed", "inspector.show('p1')\ninspector", height=1800)
    page, dialogs = note.page, []
    page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    page.wait_for_selector(".lab-feed-row", timeout=60_000)
    shows(note, "p1")
    page.get_by_role("button", name="Accept", exact=True).click()
    page.wait_for_selector(".lab-answer .lab-error")
    for fold in page.locator(".lab-inspector details").all():
        fold.evaluate("node => { node.open = true; }")
    page.evaluate("() => { for (let node; (node = document.querySelector('.lab-fold')); ) node.click(); }")
    note.shot("inspector-hostile")
    assert page.locator(".lab-evidence details details").count() == 1  # what the reflection was asked, from the log

    assert page.locator(".evil, .lab-feed img, .lab-inspector img, .lab-inspector script, .lab-inspector b").count() == 0
    assert page.evaluate("window.evil") is None
    sizes = page.evaluate("[...document.querySelectorAll('.lab-cell .lab-text')].map(node => node.textContent.length)")
    assert sorted(sizes)[-1] == int(note.execute("print(len('new ' + LONG + ' end'))"))
    page.get_by_role("button", name="Edit & inject").click()
    page.get_by_role("button", name="Inject at the gate").click()
    note.idle()
    same = "print(commands.got['prompt'].replace('\\r', '') == log[-1].event.__class__ and 0 or len(commands.got['prompt']) == len('new ' + LONG + ' end'))"
    assert note.execute(same).strip() == "True"
    assert dialogs == []


def test_a_feed_of_50_000_verdicts_is_drawn_at_once_and_takes_new_ones_without_a_pause(opened):
    note = opened(MANY)
    page = note.page
    jupyter_lab.until(lambda: page.locator(".lab-feed-row").count() == 500, 60, "500 rows")
    assert feed_of(note)["rows"] == 50_000
    page.get_by_role("button", name="Show 500 older").click()
    jupyter_lab.until(lambda: feed_of(note)["drawn"] == 1000, 5, "older rows")
    code = "import time\nfor k in range(20):\n    feed.take([judged(seq) for seq in range(50_001 + 20 * k, 50_021 + 20 * k)]); time.sleep(0.1)"
    note.execute(code)
    jupyter_lab.until(lambda: feed_of(note)["rows"] == 50_400, 5, "the new rows")
    assert feed_of(note)["draw_ms"] < 60  # measured on a busy machine: 3 in the middle, 21 at most
    page.get_by_role("button", name="discard").click()
    assert feed_of(note)["drawn"] == 500

