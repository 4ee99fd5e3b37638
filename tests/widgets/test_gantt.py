"""The live Gantt: what goes to the browser adds up to the whole, stays small, survives hostile text, and selects jobs."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flashevolve_lab as lab
from flashevolve_lab.core import Entry, Spend
from flashevolve_lab.core import events as ev
from flashevolve_lab.views import ACTIONS, Timeline
from flashevolve_lab.widgets.gantt import HERE, Gantt
from flashevolve_lab.widgets.spans import END, ITEM_OUTCOMES, JOB_OUTCOMES, SPAN, SPECULATIVE, STEP, STEPPED, VERDICTS, Picture
from flashevolve_lab.widgets.texts import one_line

HOSTILE = "<img src=x onerror=alert(1)>\u202eevil\x00\ud800" + "x" * 200_000


def colours(stages):
    return {stage: "#123456" for stage in stages}


def flags_of(record):
    return record[4]


class Mirror:
    """What a browser keeps, from a whole and updates: the twin of ``Store`` in gantt.js."""

    def __init__(self, whole):
        length = int.from_bytes(whole[:4], "little")
        head = json.loads(whole[4 : 4 + length])
        self.spans, self.marks, self.lanes, self.steps, self.stages, self.seq = [], [], [], {}, [], 0
        at = 4 + length
        middle = at + SPAN.size * head["spans"][1]
        self.apply(head, whole[at:middle], b"", whole[middle:])

    def take(self, update):
        if update.head["prev"] != self.seq:
            raise LookupError("gap")
        self.apply(update.head, update.spans, update.ends, update.steps)

    def apply(self, head, spans, ends, steps):
        assert head["spans"] == [len(self.spans), len(spans) // SPAN.size]
        self.stages = head.get("stages", self.stages)
        for name in ("lanes", "marks"):
            start, news = head.get(name, [len(getattr(self, name)), []])
            assert start == len(getattr(self, name))
            getattr(self, name).extend(news)
        self.spans += [list(record) for record in SPAN.iter_unpack(spans)]
        for i, seconds, early, flags in END.iter_unpack(ends):
            self.spans[i][1], self.spans[i][2], self.spans[i][4] = seconds, early, flags
        rest = list(STEP.iter_unpack(steps))
        for stage, start, count in head["steps"]:
            line = self.steps.setdefault(stage, [])
            line[start:] = rest[:count]
            del rest[:count]
        assert not rest
        self.seq, self.at, self.status = head["seq"], head["at"], head["status"]

    def facts(self):
        steps = {stage: line for stage, line in self.steps.items() if line}
        return self.spans, self.marks, self.lanes, steps, self.stages, self.seq, self.at, self.status


class Feed:
    """A timeline and a picture fed together, as the widget does it."""

    def __init__(self):
        self.timeline, self.picture = Timeline(), Picture(colours)

    def __call__(self, entries):
        touched = self.picture.see(entries)
        return self.picture.take(self.timeline.feed(entries), touched)


def begin(stages=("rollout", "propose", "gate", "validate")):
    """A log with a run that has begun, and its seed at work."""
    started = ev.RunStarted("story", "2026-01-01T00:00:00+00:00", 0, "wall", {}, stages, {}, {}, {}, {})
    made = ev.ArtifactMade("a0", {"prompt": "Be good."}, "h0", (), "seed", "", "p0")
    return [
        started,
        made,
        ev.ItemMade("p0", "seed", stages[-1], 0, 0, {"child": "a0"}),
        ev.JobStarted("j0", stages[-1], 0, "p0", -1),
    ]


def at_seconds(*events):
    """Entries one second apart."""
    return [Entry(n + 1, float(n), event) for n, event in enumerate(events)]


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """The log of a whole run with updates, discards, a change of policy and failures."""
    land = lab.IndependentRules(n_rules=12, p_improve=0.6)
    run = lab.start(
        lab.simulated_task(land, 30, 20),
        llm=lab.Simulated(land, faults=lab.Faults(malformed=0.1, server_error=0.02)),
        budget=lab.Budget(metric_calls=700),
        clock=lab.Virtual(),
        schedule=lab.Pipelined(6),
        staleness=lab.Guarded(1, beyond="update"),
        folder=tmp_path_factory.mktemp("runs"),
    )
    run.wait(60)
    return run.entries


# --- bytes ----------------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=25)
@given(data=st.data())
def test_a_whole_and_the_updates_since_give_the_whole_of_now_however_the_log_is_cut(log, data):
    cuts = sorted(data.draw(st.sets(st.integers(0, len(log)), max_size=6)) | {0, len(log)})
    feed, mirror = Feed(), None
    for start, end in zip(cuts, cuts[1:], strict=False):
        update = feed(log[start:end])
        if mirror is None:
            mirror = Mirror(feed.picture.whole())
        else:
            mirror.take(update)
    assert mirror.facts() == Mirror(feed.picture.whole()).facts()


def test_the_records_say_what_the_timeline_says(log):
    feed = Feed()
    feed(log)
    mirror, snapshot = Mirror(feed.picture.whole()), feed.timeline.snapshot()
    assert len(mirror.spans) == len(snapshot.spans) > 50
    for (start, seconds, early, lane, flags, base, gap), span in zip(mirror.spans, snapshot.spans, strict=True):
        stage, slot = mirror.lanes[lane]
        assert (mirror.stages[stage][0], slot, start, base, gap) == (span.stage, span.slot, span.start, span.base, span.gap)
        assert seconds == pytest.approx(span.end - span.start, rel=1e-6)
        assert JOB_OUTCOMES[flags & 7] == span.outcome
        assert early == -1.0 and not flags & SPECULATIVE
    assert [mark[0] for mark in mirror.marks] == pytest.approx([mark.at for mark in snapshot.marks])
    for n, stage in enumerate(snapshot.stages):
        line = snapshot.queues[stage]
        assert mirror.steps.get(n, []) == list(zip(line.at, line.value, strict=True))


def test_a_missed_update_is_noticed(log):
    feed = Feed()
    feed(log[:50])
    mirror = Mirror(feed.picture.whole())
    feed(log[50:80])
    with pytest.raises(LookupError):
        mirror.take(feed(log[80:90]))


def test_an_update_is_at_most_a_kilobyte_and_thirty_bytes_a_span(log):
    feed = Feed()
    feed(log[:1])
    for start in range(1, len(log), 100):
        update = feed(log[start : start + 100])
        new = len(update.spans) // SPAN.size
        assert update.size <= 1000 + 30 * (new + len(update.ends) // END.size)
        assert len(update.ends) <= 2 * END.size * 100


def test_calls_alone_change_no_record():
    feed = Feed()
    feed(at_seconds(*begin()))
    update = feed([Entry(5, 9.0, ev.CallStarted("c0", "j0", "task", "0#1", 1, Spend(llm_calls=1)))])
    assert (update.spans, update.ends, update.steps) == (b"", b"", b"")
    assert feed.picture.spans[0].calls == 1


def test_a_running_job_ends_by_an_update_with_its_place():
    feed = Feed()
    feed(at_seconds(*begin()))
    assert Mirror(feed.picture.whole()).spans[0][1] == -1.0
    update = feed([Entry(5, 7.0, ev.JobFailed("j0", "samples", HOSTILE))])
    assert list(END.iter_unpack(update.ends)) == [(0, 4.0, -1.0, JOB_OUTCOMES.index("failed"))]


def test_what_became_of_an_item_while_it_waited_stands_on_its_last_job(log):
    feed = Feed()
    feed(log)
    ended = {entry.event.item: entry.event.outcome for entry in log if isinstance(entry.event, ev.ItemEnded)}
    last = {span.item: i for i, span in enumerate(feed.picture.spans)}
    flags = [flags_of(record) for record in Mirror(feed.picture.whole()).spans]
    assert {item: ITEM_OUTCOMES[flags[i] >> 3 & 15] for item, i in last.items() if item in ended} == {
        item: outcome for item, outcome in ended.items() if item in last
    }


def test_a_staleness_verdict_stands_on_the_job_after_which_it_was_given(log):
    feed = Feed()
    feed(log)
    expected, last = {}, {}
    for entry in log:
        if isinstance(entry.event, ev.JobStarted):
            last[entry.event.item] = entry.event.job
        if isinstance(entry.event, ev.StalenessJudged):
            expected[last[entry.event.item]] = entry.event.action
    flags = [flags_of(record) for record in Mirror(feed.picture.whole()).spans]
    told = {span.job: VERDICTS[flags[i] >> 7 & 7] for i, span in enumerate(feed.picture.spans)}
    assert {job: action for job, action in told.items() if action} == expected
    assert {"update"} <= set(expected.values())


def test_a_job_started_by_a_step_is_marked():
    feed = Feed()
    events = begin()
    events[-1] = ev.JobStarted("j0", "validate", 0, "p0", -1, stepped=True)
    feed(at_seconds(*events))
    assert flags_of(Mirror(feed.picture.whole()).spans[0]) & STEPPED


def test_every_outcome_of_the_core_has_its_place():
    from typing import get_args

    from flashevolve_lab.core.events import ItemOutcome
    from flashevolve_lab.views.timeline import JobOutcome

    assert set(JOB_OUTCOMES) == set(get_args(JobOutcome))
    assert ("", *get_args(ItemOutcome)) == ITEM_OUTCOMES


@pytest.mark.parametrize(("name", "words"), [("JOB", JOB_OUTCOMES), ("ITEM", ITEM_OUTCOMES), ("VERDICT", VERDICTS)])
def test_the_browser_knows_the_same_outcomes_in_the_same_order(name, words):
    code = (HERE / "gantt.js").read_text(encoding="utf-8").splitlines()
    (line,) = [line for line in code if line.startswith(f"const {name} = [")]
    assert json.loads(line.partition(" = ")[2].rstrip(";")) == list(words)


def test_the_feed_in_the_browser_knows_the_same_actions_in_the_same_order():
    code = (HERE / "feed.js").read_text(encoding="utf-8")
    assert f"const ACTIONS = {json.dumps(list(ACTIONS))};" in code


def test_a_change_is_labelled_by_the_knob_and_its_new_value():
    feed = Feed()
    guarded = {"name": "Guarded", "max_gap": 8}
    feed(at_seconds(*begin(), ev.SettingChanged("staleness", {"name": "Full"}, guarded, "user", "→ why (not)"), ev.Paused()))
    assert [mark[1:3] for mark in feed.picture.marks] == [["setting", "staleness → Guarded"], ["pause", "pause"]]


# --- details --------------------------------------------------------------------------------------------------------


def test_a_job_tells_its_calls_and_the_way_of_its_item(log):
    feed = Feed()
    feed(log)
    i = next(i for i, span in enumerate(feed.picture.spans) if span.stage == "rollout" and span.calls > 1)
    about = feed.picture.about(i)
    span = feed.picture.spans[i]
    assert (about["job"], about["item"], about["tokens"]) == (span.job, span.item, span.tokens)
    assert len(about["inside"]) == span.calls
    assert all(span.start <= start <= end <= span.end + 1e-6 for start, end, _ in about["inside"])
    assert [feed.picture.spans[n].item for n in about["path"]] == [span.item] * len(about["path"])


def test_a_job_without_calls_tells_when_its_samples_were_scored():
    feed = Feed()
    feed(at_seconds(*begin(), ev.SampleScored("j0", "a0", "val", 0, 1.0), ev.SampleFailed("j0", "a0", "val", 1, "raised", "x")))
    assert feed.picture.about(0)["inside"] == [[4.0, 4.0, 0], [5.0, 5.0, 1]]


def test_hostile_text_becomes_one_short_valid_line():
    line = one_line(HOSTILE, 50)
    assert len(line) == 50 and line.startswith("<img src=x onerror=alert(1)> evil ?xxx") and line.endswith("…")
    assert one_line("a\n\tb  c", 50) == "a b c"


def test_hostile_text_everywhere_still_becomes_json():
    feed = Feed()
    stages = (f"s{HOSTILE}", f"v{HOSTILE}")
    events = begin(stages)
    events += [
        ev.SettingChanged("staleness", HOSTILE, HOSTILE, HOSTILE, HOSTILE),
        ev.JobFailed("j0", HOSTILE, HOSTILE, HOSTILE),
    ]
    update = feed(at_seconds(*events, ev.Warned(HOSTILE, HOSTILE)))
    assert update.size < 3000
    json.dumps(feed.picture.about(0)).encode()
    Mirror(feed.picture.whole())


# --- the widget -----------------------------------------------------------------------------------------------------


@pytest.fixture
def gantt():
    """A widget whose messages are kept in ``gantt.told``."""
    widget = Gantt(colours=colours)
    widget.told = []
    widget.send = lambda content, buffers=None: widget.told.append((content, buffers))
    return widget


def test_the_state_holds_the_whole_picture_whenever_it_is_asked_for(gantt, log):
    gantt.take(log[:100])
    before = Mirror(gantt.get_state()["snapshot"])
    gantt.take(log[100:])
    after = Mirror(gantt.get_state("snapshot")["snapshot"])
    assert len(before.spans) < len(after.spans)
    assert "snapshot" not in gantt.get_state("failure")
    assert gantt.snapshot == b""


def test_an_update_is_sent_with_the_entry_it_follows_on(gantt, log):
    gantt.take(log[:100])
    gantt.take(log[100:200])
    (first, _), (second, buffers) = gantt.told
    assert (first["kind"], first["prev"], second["prev"], second["seq"]) == ("add", 0, 100, 200)
    assert len(buffers) == 3


def test_until_a_browser_says_that_it_follows_the_whole_goes_out_again(gantt, log, monkeypatch):
    sent = []
    monkeypatch.setattr(gantt, "send_state", sent.append)
    gantt._resend_at = [0.0]  # due
    gantt.take(log[:50])
    assert (sent, gantt.told) == (["snapshot"], [])
    gantt._resend_at = [0.0]
    gantt._hear(gantt, {"kind": "follows"}, [])
    gantt.take(log[50:100])
    assert len(sent) == 1 and len(gantt.told) == 1


def test_a_gap_is_answered_by_the_whole(gantt, log, monkeypatch):
    sent = []
    monkeypatch.setattr(gantt, "send_state", sent.append)
    gantt._hear(gantt, {"kind": "gap"}, [])
    assert sent == ["snapshot"]


def test_a_question_about_jobs_is_answered_for_those_that_exist(gantt, log):
    gantt.take(log)
    gantt._hear(gantt, {"kind": "about", "jobs": [0, 10**9, -1, "x", None, 2]}, [])
    content, _ = gantt.told[-1]
    assert [job["i"] for job in content["jobs"]] == [0, 2]


@pytest.mark.parametrize(
    "nonsense", [None, "x", {}, {"kind": "about"}, {"kind": "about", "jobs": 3}, {"kind": "drawn", "seq": "x"}]
)
def test_nonsense_from_the_browser_is_ignored(gantt, nonsense):
    gantt._hear(gantt, nonsense, [])
    assert gantt.told == []


def test_selecting_from_python_or_the_browser_tells_everybody(gantt, log):
    heard = []
    gantt.on_select(heard.append)
    gantt.take(log)
    job = gantt._picture.spans[3].job
    gantt.selected = job
    assert gantt.selected_index == 3
    gantt.selected_index = 5
    assert gantt.selected == gantt._picture.spans[5].job
    gantt.selected_index = -1
    assert heard == [job, gantt._picture.spans[5].job, ""]
    assert gantt.span(job).job == job and gantt.span("nothing") is None


def test_a_job_can_be_selected_before_it_has_started(gantt, log):
    gantt.take(log[:10])
    job = [entry.event.job for entry in log if isinstance(entry.event, ev.JobStarted)][20]
    gantt.selected = job
    assert gantt.selected_index == -1
    gantt.take(log[10:])
    assert (gantt.selected, gantt.selected_index) == (job, 20)


def test_a_failure_is_shown_as_valid_text(gantt):
    gantt.fail("this view failed: \ud800 <b>")
    assert gantt.failure == "this view failed: ? <b>"
    assert "this view failed" in repr(gantt)


def test_the_text_form_says_what_there_is(gantt, log):
    assert repr(gantt) == "<Gantt: waiting for the first job>"
    gantt.take(log)
    assert "jobs in" in repr(gantt) and "stopped" in repr(gantt)


def test_stages_have_the_colours_of_the_figures(log):
    from flashevolve_lab.plots import stage_colours

    widget = Gantt()
    widget.take(log)
    stages = dict(Mirror(widget.get_state()["snapshot"]).stages)
    assert stages == stage_colours(tuple(stages))
