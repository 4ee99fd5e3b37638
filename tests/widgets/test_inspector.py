"""The inspector tells what the log says, and orders only what a person asked for."""

import json
from dataclasses import replace

import pytest

import flashevolve_lab as lab
from flashevolve_lab.core import Entry
from flashevolve_lab.core import events as ev
from flashevolve_lab.errors import SetupError
from flashevolve_lab.testing import PureRun
from flashevolve_lab.views import Evidence, Trial
from flashevolve_lab.widgets.inspector import Inspector
from flashevolve_lab.widgets.telling import evidence_of

HOSTILE = ["<script>alert(1)</script>", "\u202eright to left", "\ud800 lone", "\x00 null", "word " * 40_000]

JUDGED = ev.StalenessJudged("p1", "a1", "test", "dequeue", 0, 1, 1, True, False, "a0", "accept", "gap 1 is within 8", "Guarded", "")


class Orders:
    """The commands of a run, written down."""

    def __init__(self, available=True, error=None):
        self.available, self.error, self.given = available, error, []

    def judge(self, item, action, *, reason="decided by hand"):
        if self.error:
            raise self.error
        self.given.append((item, action, reason))

    def inject(self, components, *, parent=None):
        if self.error:
            raise self.error
        self.given.append((dict(components), parent))


def world():
    """The seed and a1 committed, p2 waiting at the gate of its test with a2, stale by one."""
    run = PureRun(schedule=lab.Pipelined(2), staleness=lab.Full())
    run.finish("test", score=0.5)
    run.finish("make", text="a better text")
    run.finish("make", text="another text, and better")
    run.finish("test", score=0.7)
    return run


@pytest.fixture
def run():
    return world()


@pytest.fixture
def orders():
    return Orders()


@pytest.fixture
def inspector(run, orders):
    inspector = Inspector(orders, show_example=lambda split, index: f"{split} {index}")
    inspector.take(run.entries)
    yield inspector
    inspector.close()


def hear(inspector, **content):
    inspector._hear(inspector, content, [])


def told(inspector):
    return json.loads(inspector.facts)


def texts(inspector):
    return json.loads(inspector.texts)


def test_an_item_is_shown_beside_its_parent_the_current_and_the_best(inspector):
    inspector.show("p2")
    shown = texts(inspector)
    assert shown["own"]["components"] == {"text": "another text, and better"}
    assert {name: text["id"] for name, text in shown["columns"].items()} == {"parent": "a0", "current": "a1", "best": "a1"}
    assert (shown["against"], told(inspector)["artifact"]) == ("current", "a2")


def test_the_difference_is_that_of_the_chosen_column(inspector):
    inspector.show("p2")
    hear(inspector, kind="compare", column="parent")
    difference = texts(inspector)["differences"]["text"]
    assert "".join(text for _, text in difference["other"]) == "seed"
    assert "".join(text for _, text in difference["own"]) == "another text, and better"


def test_an_example_is_shown_as_the_log_has_it_and_only_otherwise_as_the_task_tells():
    trials = (Trial(3, None, None, shown="as logged"), Trial(4, None, None))
    evidence = Evidence()
    evidence.feed(world().entries)
    told = evidence_of(replace(evidence.about("p2"), trials=trials), lambda index: f"train {index}")
    assert [trial["input"] for trial in told["trials"]] == ["as logged", "train 4"]


def test_a_click_goes_to_another_id_and_back_and_forward(inspector):
    inspector.show("p2")
    hear(inspector, kind="show", id="a1")
    assert (inspector.shown, told(inspector)["back"], told(inspector)["forward"]) == ("a1", True, False)
    hear(inspector, kind="go", steps=-1)
    assert (inspector.shown, told(inspector)["forward"]) == ("p2", True)
    hear(inspector, kind="show", id="a0")  # a new way: what was ahead is gone
    assert told(inspector)["forward"] is False


def test_an_unknown_id_leaves_what_was_shown_and_says_so(inspector):
    inspector.show("p2")
    hear(inspector, kind="show", id="zzz")
    assert inspector.shown == "p2" and "no 'zzz' in this log" in told(inspector)["said"]["error"]
    with pytest.raises(SetupError):
        inspector.show("zzz")


def test_closing_shows_nothing_and_keeps_the_history(inspector):
    shown = []
    inspector.on_show(shown.append)
    inspector.show("p2")
    hear(inspector, kind="close")
    assert (inspector.shown, told(inspector)["id"], shown) == ("", "", ["p2", ""])
    hear(inspector, kind="go", steps=1)
    assert inspector.shown == "p2"


def test_an_empty_inspector_offers_the_newest_verdict(inspector, run):
    judged = [entry.event.item for entry in run.entries if isinstance(entry.event, ev.StalenessJudged)]
    gated = [entry.event.item for entry in run.entries if isinstance(entry.event, ev.Gated)]
    newest = [*gated, *judged][-1:]
    assert [told(inspector)["newest"]] == (newest or [""])
    where = replace(JUDGED, item="p2", artifact="a2")
    inspector.take([Entry(inspector._view.state.seq + 1, 9.0, where)])
    assert told(inspector)["newest"] == "p2"


def test_a_listener_that_fails_shows_in_the_inspector(inspector):
    inspector.on_show(lambda id: 1 / 0)
    inspector.show("p2")
    assert "ZeroDivisionError" in inspector.trouble and inspector.shown == "p2"


def test_what_is_shown_follows_the_log_and_unchanged_texts_travel_once(inspector, run):
    inspector.show("p2")
    sent = []
    inspector.send_state = lambda key=None: sent.append(key)
    before = inspector.texts
    run.finish("test", score=0.9)
    inspector.take(run.entries[-6:])
    assert told(inspector)["outcome"] == "committed" and inspector.texts != before  # a2 is the best now
    sent.clear()
    inspector.take([])
    assert not any(sent)


def test_accept_and_discard_are_ordered_with_the_reason(inspector, orders):
    inspector.show("p2")
    hear(inspector, kind="judge", action="accept", reason=" looks right ")
    hear(inspector, kind="judge", action="discard", reason="")
    assert orders.given == [("p2", "accept", "looks right"), ("p2", "discard", "decided in the inspector")]
    assert told(inspector)["said"] == {"sent": "discard p2"}


def test_what_a_command_did_is_read_back_from_the_log(inspector, orders):
    inspector.show("p2")
    hear(inspector, kind="judge", action="discard", reason="no")
    assert told(inspector)["acts"] == []
    inspector.take([Entry(inspector._view.state.seq + 1, 9.0, ev.Warned("by hand", "p2 has ended already: nothing to discard"))])
    assert [act["words"] for act in told(inspector)["acts"]] == ["p2 has ended already: nothing to discard"]


def test_an_edited_text_is_injected_as_a_child_of_the_chosen_parent(inspector, orders):
    inspector.show("p2")
    hear(inspector, kind="inject", parent="a1", components={"text": "mine"})
    assert orders.given == [({"text": "mine"}, "a1")]


@pytest.mark.parametrize("error", [SetupError("the text is empty"), RuntimeError("broken")])
def test_a_command_that_is_refused_says_why_in_the_inspector(inspector, orders, error):
    orders.error = error
    inspector.show("p2")
    hear(inspector, kind="inject", parent="a1", components={"text": ""})
    assert str(error) in told(inspector)["said"]["error"]


def test_without_commands_nothing_can_be_done_by_hand_and_the_reason_is_told(run, orders):
    for commands, words in ((None, "opened without commands"), (Orders(available=False), "does not execute the run")):
        inspector = Inspector(commands)
        inspector.take(run.entries)
        inspector.show("p2")
        assert words in told(inspector)["cannot"]
        hear(inspector, kind="judge", action="accept", reason="")
        assert words in told(inspector)["said"]["error"]
        inspector.close()


def test_an_ended_run_can_only_be_looked_at(inspector, orders):
    inspector.show("p2")
    stopped = Entry(inspector._view.state.seq + 1, 9.0, ev.RunStopped("user", "enough"))
    inspector.take([stopped])
    hear(inspector, kind="judge", action="accept", reason="")
    assert "The run has ended (enough)" in told(inspector)["cannot"] and orders.given == []


def test_an_example_that_cannot_be_shown_says_so():
    inspector = Inspector(show_example=lambda split, index: 1 / 0)
    assert "could not be shown: ZeroDivisionError" in inspector._example(3)
    assert Inspector()._example(3) == ""


@pytest.mark.parametrize("text", HOSTILE, ids=["markup", "right to left", "surrogate", "control", "200 kB"])
def test_a_hostile_text_travels_whole_and_as_ascii(text):
    run = world()
    run.finish("make", text=text)
    child = run.of(ev.ArtifactMade)[-1]
    inspector = Inspector()
    inspector.take(run.entries)
    inspector.show(child.artifact)
    assert inspector.texts.isascii()
    assert texts(inspector)["own"]["components"]["text"] == text
    assert "".join(part for _, part in texts(inspector)["differences"]["text"]["own"]) == text
    inspector.close()


def test_a_failed_view_says_so(inspector):
    inspector.fail("failed \ud800")
    assert inspector.trouble == "failed ?"


def test_a_plain_text_stands_where_widgets_cannot_work(inspector):
    assert repr(inspector) == "<Inspector of nothing yet: call show('p12')>"
    inspector.show("p2")
    assert repr(inspector) == "<Inspector of p2>"


def test_the_other_texts_of_a_batch_are_columns_and_can_be_compared_with(tmp_path):
    world = lab.UnitingRules(n_rules=20)
    run = lab.start(
        lab.simulated_task(world, 60, 40), llm=lab.Simulated(world), clock=lab.Virtual(), folder=tmp_path,
        staleness=lab.Reflective(onto="best", batch=4), schedule=lab.Pipelined(24), budget=lab.Budget(metric_calls=800),
    )  # fmt: skip
    run.wait(60)
    started = next(e.event for e in run.entries if isinstance(e.event, ev.JobStarted) and e.event.also)
    upto = next(i for i, e in enumerate(run.entries) if e.event is started) + 1
    inspector = Inspector()
    inspector.take(run.entries[:upto])
    for item in (started.item, *started.also):
        inspector.show(item)
        columns = texts(inspector)["columns"]
        others = [name for name in columns if name.startswith("beside")]
        assert len(others) == len(started.also)
        inspector.compare(others[0])
        assert texts(inspector)["against"] == others[0] and texts(inspector)["differences"]
    verdict = told(inspector)["verdicts"][-1]
    assert verdict["action"] == "patch" and verdict["target"] in verdict["reason"]
    inspector.take(run.entries[upto:])
    inspector.close()
