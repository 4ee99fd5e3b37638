"""The static summary: right numbers, safe for any text, small, and without anything from outside."""

import re
from html.parser import HTMLParser

import pytest

from flashevolve_lab.core import Spend
from flashevolve_lab.runs import compare
from flashevolve_lab.views import RunFacts, Standing
from flashevolve_lab.widgets import Summary, summary_html, summary_of, summary_text

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)> \u202e \ud800 \x00 ${x}"


class Tags(HTMLParser):
    def __init__(self, page):
        super().__init__()
        self.seen = set()
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.seen.add(tag)
        assert not [name for name, _ in attrs if name.startswith("on") or name in ("src", "href")]


def test_it_tells_what_the_run_came_to(finished):
    summary = summary_of(finished.entries, "stopped")
    text = summary_text(summary)
    status = finished.status
    for words in ("ended", f"{status.proposals} proposals", f"{status.accepted} accepted", f"best score {status.best_score:.3f}"):
        assert words in text and words in summary_html(summary)
    assert "simulated model" in summary_html(summary) and "virtual clock" in summary_html(summary)


def test_it_is_small_and_needs_nothing_from_outside(finished):
    page = summary_html(summary_of(finished.entries, "stopped"))
    assert len(page) < 8_000
    assert Tags(page).seen <= {"style", "div", "b", "i", "svg", "path", "details", "summary", "pre"}


def test_no_typesetter_touches_its_text(finished):
    assert 'class="fl-static mathjax_ignore tex2jax_ignore"' in summary_html(summary_of(finished.entries, "stopped"))
    assert compare({"$x^2$": finished})._repr_html_().startswith('<div class="mathjax_ignore tex2jax_ignore">')


def test_it_says_what_the_proposer_says_about_itself():
    page = summary_html(Summary(RunFacts(run="r", proposer="from a <shipped> bank"), Standing(), "running", ""))
    assert "from a &lt;shipped&gt; bank" in page


def test_an_empty_log_has_a_summary_too():
    assert "Nothing has happened yet" in summary_html(summary_of([], "new"))


@pytest.mark.parametrize("field", ["run", "proposer", "stop_reason", "best"])
def test_hostile_text_in_any_field_is_only_text(field):
    text = HOSTILE * (1 if field != "best" else 5_000)
    facts = RunFacts(run=text if field == "run" else "r", proposer=text if field == "proposer" else "")
    standing = Standing(
        status="stopped", stop_kind="user", stop_reason=text if field == "stop_reason" else "", best=0.5, best_artifact="a1", spent=Spend()
    )
    page = summary_html(Summary(facts, standing, "stopped", "", best_texts={"prompt": text if field == "best" else "x"}))
    Tags(page)
    assert "<script" not in page and "<img" not in page
    assert page.encode() and not re.search("[\u202e\x00]", page)
    assert len(page) < 12_000
