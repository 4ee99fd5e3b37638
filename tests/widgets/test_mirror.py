"""The mirrored document: whole in the state, then numbered changes; whoever missed one gets the whole again."""

import json

import flashevolve_lab.widgets.mirror as mirror
from flashevolve_lab.widgets.mirror import Mirror
from flashevolve_lab.widgets.overview import Part


class Kept(Mirror):
    """Keeps what it sends."""

    _esm = "export default {}"

    def __init__(self):
        self.sent = []
        super().__init__()
        self._resend_at = []  # as when a browser follows

    def send(self, content, buffers=None):
        self.sent.append(json.loads(buffers[0]))


def whole(widget):
    state = widget.get_state()
    widget._resend_at = []  # the browser that asked follows at once
    return json.loads(state["snapshot"])


def test_the_state_holds_the_whole_document_at_any_time():
    widget = Kept()
    widget.push({"a": 1}, [1, 2])
    widget.push({"b": 2}, [3])
    assert whole(widget) == {"whole": True, "revision": 2, "now": {"a": 1, "b": 2}, "rows_from": 0, "rows": [1, 2, 3]}


def test_only_what_changed_is_sent_with_the_next_number_and_where_its_rows_begin():
    widget = Kept()
    widget.push({"a": 1, "b": 1}, [1, 2])
    widget.push({"a": 1, "b": 2}, [3])
    assert widget.sent[-1] == {"revision": 2, "now": {"b": 2}, "rows_from": 2, "rows": [3]}


def test_when_nothing_changed_nothing_is_sent():
    widget = Kept()
    widget.push({"a": 1})
    widget.push({"a": 1})
    assert len(widget.sent) == 1


def test_the_changes_since_any_state_lead_from_it_to_the_whole_of_now():
    widget = Kept()
    widget.push({"a": 1}, [1])
    copy, sent = whole(widget), len(widget.sent)
    widget.push({"b": 2}, [2, 3])
    widget.push({"a": 3}, [4])
    for message in widget.sent[sent:]:
        assert message["revision"] == copy["revision"] + 1 and message["rows_from"] == len(copy["rows"])
        copy = {**copy, "revision": message["revision"], "now": {**copy["now"], **message["now"]}, "rows": copy["rows"] + message["rows"]}
    assert copy == whole(widget)


def test_a_browser_that_missed_something_gets_the_whole_and_one_that_did_not_gets_nothing():
    widget = Kept()
    widget.push({"a": 1}, [1])
    widget._asked(widget, {"kind": "follows", "revision": 0}, [])
    assert widget.sent[-1]["whole"] is True
    sent = len(widget.sent)
    widget._asked(widget, {"kind": "follows", "revision": 1}, [])
    widget._asked(widget, "nonsense", [])
    assert len(widget.sent) == sent


def test_until_a_browser_follows_the_whole_goes_out_as_state_so_that_a_slow_start_misses_nothing():
    widget = Kept()
    widget.get_state()  # a front end asks for everything
    widget.push({"a": 1}, [1])
    assert widget.sent == []
    widget.push({"a": 2})
    assert widget.sent[-1]["revision"] == 2
    assert len(mirror.RESENDS_S) > 1


def test_any_text_survives_the_journey():
    widget = Kept()
    text = "\ud800 </script> \u202e \x00 ünï"
    widget.push({"text": text})
    assert widget.sent[-1]["now"]["text"] == text == whole(widget)["now"]["text"]


def test_a_part_carries_its_module_and_style_and_asks_no_network():
    part = Part(part="score")
    for source in (part._esm, part._css):
        assert "http:" not in source.replace("http://www.w3.org/2000/svg", "") and "https:" not in source
    assert "innerHTML" not in part._esm
