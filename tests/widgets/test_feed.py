"""The feed sends every verdict once, in order, whatever a front end has missed."""

import json

import pytest

from flashevolve_lab.core import Entry
from flashevolve_lab.core import events as ev
from flashevolve_lab.widgets.feed import LONGEST, SMALL, Feed

HOSTILE = ["<img src=x onerror=alert(1)>", "\u202eright to left", "\ud800 lone", "\x00 null", "x" * 200_000]


class Front:
    """A front end: applies what a feed sends, and keeps what it may not miss."""

    def __init__(self, feed):
        self.feed, self.rows, self.strings, self.messages, self.states = feed, [], [], [], []
        feed.send = lambda content, buffers=None: self.messages.append((content, buffers))
        feed.send_state = lambda key=None: self.states.append(key) if key == "snapshot" else None

    def have(self):
        self.feed._hear(self.feed, {"kind": "have", "rows": len(self.rows), "strings": len(self.strings)}, [])

    def take(self, payload):
        batch = json.loads(payload)
        if batch["rows_from"] > len(self.rows):
            return False
        self.strings += batch["strings"][len(self.strings) - batch["strings_from"] :]
        self.rows += batch["rows"][len(self.rows) - batch["rows_from"] :]
        return True

    def text(self, row, field):
        names = ("item", "artifact", "stage", "where", "action", "reason", "why", "counterpart", "policy")
        return self.strings[self.rows[row][5 + names.index(field)]]


def begin(schedule=None):
    settings = {"schedule": schedule or {"name": "Pipelined", "depth": 8}, "staleness": {"name": "Full"}}
    facts = {"run": "r", "created": "", "seed": 0, "clock": "virtual", "algorithm": {}, "stages": ("gate",), "budget": {}}
    return Entry(1, 0.0, ev.RunStarted(settings=settings, task={}, llm={}, **facts))


def judged(seq, **facts):
    given = {"item": f"p{seq}", "artifact": f"a{seq}", "stage": "validate", "where": "dequeue", "base": 1, "version": 3, "gap": 2}
    given |= {"touched": True, "superseded": False, "counterpart": "a0", "action": "accept", "reason": "fine", "policy": "Full"}
    return Entry(seq, float(seq), ev.StalenessJudged(**(given | facts)))


@pytest.fixture
def feed():
    feed = Feed()
    yield feed
    feed.close()


def test_a_run_without_staleness_says_so_and_why(feed):
    feed.take([begin({"name": "Sequential"})])
    assert feed.sentence.startswith("No stale work so far: under Sequential() a proposal begins when the one before has ended")


def test_an_empty_feed_names_the_schedule_in_force_and_the_end_of_the_run(feed):
    feed.take([begin(), Entry(2, 1.0, ev.SettingChanged("schedule", {}, {"name": "Pipelined", "depth": 4}))])
    assert "under Pipelined(depth=4)" in feed.sentence
    feed.take([Entry(3, 2.0, ev.RunStopped("user", "enough"))])
    assert feed.sentence.startswith("No stale work in this run")


def test_the_state_has_every_row_so_a_reload_shows_all(feed):
    feed.take([begin(), judged(2), judged(3, action="discard")])
    front = Front(feed)
    assert front.take(feed.get_state()["snapshot"])
    assert [front.text(i, "action") for i in (0, 1)] == ["accept", "discard"]
    assert front.rows[0][:5] == [2.0, 1, 3, 2, 1]


def test_until_a_front_end_has_answered_rows_travel_as_state_which_a_slow_start_cannot_miss(feed):
    front = Front(feed)
    feed.take([begin(), judged(2)])
    assert (front.states, front.messages) == (["snapshot"], [])


def test_once_a_front_end_has_answered_only_new_rows_travel(feed):
    front = Front(feed)
    feed.take([begin(), judged(2)])
    front.take(feed.get_state()["snapshot"])
    front.have()
    feed.take([judged(3), judged(4)])
    (_, buffers) = front.messages[-1]
    assert len(json.loads(buffers[0])["rows"]) == 2
    assert front.take(buffers[0]) and len(front.rows) == 3


def test_a_front_end_that_missed_rows_gets_them_when_it_asks(feed):
    front = Front(feed)
    front.have()
    for seq in range(2, 6):
        feed.take([begin(), judged(seq)] if seq == 2 else [judged(seq)])
    assert not front.take(front.messages[-1][1][0])  # a gap
    front.have()
    assert front.take(front.messages[-1][1][0])
    assert [front.text(i, "item") for i in range(4)] == ["p2", "p3", "p4", "p5"]


def test_a_text_that_occurs_often_travels_once(feed):
    feed.take([begin(), *(judged(seq, item="p1", artifact="a1") for seq in range(2, 1002))])
    assert len(feed.get_state()["snapshot"]) < 40 * 1000


def test_many_rows_before_the_first_answer_are_not_sent_whole_each_time(feed):
    front = Front(feed)
    feed.take([begin(), *(judged(seq) for seq in range(2, SMALL + 10))])
    for seq in range(SMALL + 10, SMALL + 60):
        feed.take([judged(seq)])
    assert len(front.states) == 1


@pytest.mark.parametrize("text", HOSTILE, ids=["markup", "right to left", "surrogate", "control", "200 kB"])
def test_a_hostile_text_travels_as_text_cut_to_a_line(feed, text):
    feed.take([begin(), judged(2, reason=text, why=text, action=text, item=text, artifact=text, policy=text)])
    front = Front(feed)
    front.take(feed.get_state()["snapshot"])
    for field in ("reason", "why", "action", "item"):
        got = front.text(0, field)
        assert got == text or (len(got) == LONGEST and got[:-1] == text[: LONGEST - 1])


def test_a_click_on_a_row_opens_its_item_and_marks_it(feed):
    opened = []
    feed.on_open(opened.append)
    feed.take([begin(), judged(2)])
    feed._hear(feed, {"kind": "open", "id": "p2"}, [])
    assert (opened, feed.selected) == (["p2"], "p2")


def test_a_listener_that_fails_shows_in_the_feed_and_stops_nothing(feed):
    opened = []
    feed.on_open(lambda id: 1 / 0)
    feed.on_open(opened.append)
    feed._hear(feed, {"kind": "open", "id": "p2"}, [])
    assert opened == ["p2"] and "ZeroDivisionError" in feed.trouble


def test_a_failed_view_says_so(feed):
    feed.fail("this view failed: \ud800")
    assert feed.trouble == "this view failed: ?"


def test_a_plain_text_stands_where_widgets_cannot_work(feed):
    feed.take([begin(), judged(2), judged(3, action="discard")])
    assert repr(feed) == "<Feed 1 accept, 1 discard>"


def test_the_plain_text_can_be_sent_whatever_an_action_is_called(feed):
    feed.take([begin(), judged(2, action="\ud800")])
    assert repr(feed) == "<Feed 1 ?>"


def test_an_unknown_option_is_refused():
    with pytest.raises(TypeError):
        Feed(colour="red")
