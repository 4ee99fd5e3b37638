"""The dashboard: everything on one page from one poller, one selection, and no harm to the run whatever happens to it."""

import gc
import subprocess
import sys
import threading
import time
import weakref
from dataclasses import replace

import pytest

import flashevolve_lab as lab
from flashevolve_lab.core import events as ev
from flashevolve_lab.errors import SetupError
from flashevolve_lab.runs.showing import _examples, dashboard, static_bundle
from flashevolve_lab.widgets import Dashboard, Poller
from flashevolve_lab.widgets.dashboard import Links
from flashevolve_lab.widgets.overview import Overview


@pytest.fixture(scope="module")
def shown(finished):
    """The dashboard of a finished run."""
    made = Dashboard(finished)
    yield made
    made.close()


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "lab-view"]


def gone(what, seconds=3.0):
    ends = time.monotonic() + seconds
    while what() and time.monotonic() < ends:
        time.sleep(0.02)
    return not what()


def test_it_shows_a_finished_run_from_its_first_moment(shown, finished):
    assert shown.overview.standing.seq == finished.state.seq == shown._poller.seq
    assert len(shown.overview.points) == len(finished.state.pool.order)
    assert finished.name in repr(shown) and "ended" in repr(shown)


def test_a_run_that_shares_its_server_says_so_until_it_ends(fake_run, finished):
    told = "the run 'other' of this process also sends its calls to http://127.0.0.1:8000/v1"
    entries = list(finished.entries)
    shared = [*entries[:40], replace(entries[39], seq=41, event=ev.Warned("runs", told))]
    made = Dashboard(fake_run(shared))
    assert made.overview.header._now["company"] == told
    made.close()


def test_the_views_agree_with_the_runs_own_status(shown, finished):
    status, now = finished.status, shown.overview.standing
    assert (now.proposals, now.accepted, now.best) == (status.proposals, status.accepted, status.best_score)
    assert shown.lineage._view.snapshot().best == finished.best.artifact
    assert dict(shown.overview.best_texts) == dict(finished.best.components)


def test_its_parts_stand_in_the_order_in_which_a_run_is_read(shown):
    header, controls, gantt, reading, score, facts = shown.children
    assert (header.part, gantt, facts.part) == ("header", shown.gantt, "facts")
    assert controls is shown.controls.widget
    assert reading.children == (shown.feed, shown.inspector)
    assert score.children == (shown.overview.score, shown.lineage)


@pytest.mark.parametrize("by", ["job", "item", "artifact"])
def test_a_selection_shows_everywhere(shown, finished, by):
    artifact = finished.state.pool.order[-1]
    item = finished.state.artifacts[artifact.id].item
    job = shown._links.around(item)[0]
    shown.select({"job": job, "item": item, "artifact": artifact.id}[by])
    assert (shown.gantt.selected, shown.feed.selected, shown.lineage.selected) == (job, item, artifact.id)
    assert shown.inspector.shown in (job, item, artifact.id)


def test_a_click_in_one_view_selects_in_the_others(shown, finished):
    first, last = finished.state.pool.order[1], finished.state.pool.order[-1]
    shown.lineage.selected = first.id
    assert shown.inspector.shown == first.id == shown.overview.score.selected
    shown.gantt.selected = shown._links.around(last.id)[0]
    assert shown.lineage.selected == last.id


def test_selecting_what_the_log_does_not_know_says_so_and_raises_nothing(shown):
    shown.select("p99999")
    assert "p99999" in shown.inspector.trouble


def test_links_tell_job_item_and_artifact_of_any_of_them(finished):
    links = Links()
    links.take(finished.entries)
    seed = finished.state.pool.order[0]
    job, item, artifact = links.around(seed.id)
    assert (item, artifact) == ("p0", seed.id) and links.around(job) == links.around(item) == (job, item, artifact)
    assert links.around("nothing") == ("", "", "")


def test_closing_ends_its_poller_and_leaves_the_run_alone(fake_run, finished):
    before = len(threads())
    run = fake_run(finished.entries[:200])
    made = Dashboard(run, period_s=0.02)
    made.close()
    assert gone(lambda: len(threads()) > before)
    assert made.closed and run.commands == []


def test_a_poller_that_nobody_holds_ends(fake_run):
    before = len(threads())
    poller = Poller(fake_run(), [], 0.02)
    held = weakref.ref(poller)
    del poller
    gc.collect()
    assert gone(lambda: held() is not None or len(threads()) > before)


def test_an_error_in_a_view_shows_in_that_view_and_leaves_the_others_alone(fake_run, finished):
    run = fake_run(finished.entries[:100])
    made = Dashboard(run, period_s=30)
    made.lineage.take = None  # calling it raises
    run.entries = finished.entries
    made._poller.poll()
    assert made.lineage.failed.startswith("this view failed: TypeError")
    assert made.overview.standing.seq == finished.state.seq
    made.close()


@pytest.mark.parametrize("broken", ["after", "growing"])
def test_a_log_that_cannot_be_read_any_more_shows_in_every_view(fake_run, finished, broken):
    class Breaking(type(fake_run())):
        whole = True

        def after(self, seq, limit):
            if broken == "after" and not self.whole:
                raise OSError("the disk is gone")
            return super().after(seq, limit)

        @property
        def growing(self):
            if broken == "growing" and not self.whole:
                raise OSError("the disk is gone")
            return True

        @growing.setter
        def growing(self, value):
            pass

    run = Breaking(finished.entries[:100])
    made = Dashboard(run, period_s=0.02)
    made.feed.fail = None  # calling it raises: the others are told all the same
    run.whole = False
    made._poller._thread.join(10)
    told = (made.gantt.failure, made.inspector.trouble, made.lineage.failed, made.overview.header.failed, made.controls.note.value)
    assert all("the disk is gone" in words and "as of entry 100" in words for words in told), told
    made.close()


def test_the_header_says_what_the_proposer_says_about_itself(fake_run, finished):
    first = finished.entries[0]
    algorithm = {**first.event.algorithm, "proposer": {"name": "Bank", "label": "from a shipped bank"}}
    labelled = replace(first, event=replace(first.event, algorithm=algorithm))
    made = Dashboard(fake_run([labelled, *finished.entries[1:100]]), period_s=30)
    assert made.overview.header._now["proposer"] == made.summary().run.proposer == "from a shipped bank"
    made.close()


def test_an_example_without_a_text_in_the_log_is_shown_by_the_task(finished):
    task = finished._shell.task
    assert _examples(finished)("train", 3) == task.show(task.train[3])
    assert _examples(lab.open(finished.path)) is None


def test_a_run_that_grows_is_followed(fake_run, finished):
    run = fake_run(finished.entries[:50])
    made = Dashboard(run, period_s=0.02)
    run.entries = finished.entries
    assert gone(lambda: made.overview.standing.seq < finished.state.seq)
    assert made.overview.standing.status == "stopped"
    made.close()


def test_a_run_whose_process_is_gone_is_called_interrupted(fake_run, finished):
    made = Dashboard(fake_run(finished.entries[:300], available=False, growing=False))
    assert "interrupted" in repr(made)
    assert made.controls.note.value.startswith("The process of this run is gone")
    made.close()


ELSEWHERE = """
import sys, flashevolve_lab as lab
land = lab.IndependentRules(n_rules=20, p_improve=0.6)
run = lab.start(lab.simulated_task(land, 40, 30), llm=lab.Simulated(land), budget=lab.Budget(metric_calls=2000),
                schedule=lab.Pipelined(8), folder=sys.argv[1], name="elsewhere")
print("begun", flush=True)
run.wait()
"""


def test_a_run_that_another_process_writes_is_followed_and_cannot_be_steered_here(tmp_path):
    with subprocess.Popen([sys.executable, "-c", ELSEWHERE, str(tmp_path)], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"begun\n"
        made = Dashboard(lab.open(tmp_path / "elsewhere.sqlite"), period_s=0.05)
        before = made.overview.standing.seq
        assert gone(lambda: made.overview.standing.seq <= before, 10)
        assert made.controls.note.value.startswith("Another process executes this run")
        assert made.controls.pause.disabled and made.overview.state == "running"
        process.terminate()
    made.close()


def test_a_run_has_one_dashboard_until_it_is_closed(finished):
    first = dashboard(finished)
    assert lab.dashboard(finished) is first
    first.close()
    again = dashboard(finished)
    assert again is not first and not again.closed
    again.close()


def test_policies_given_later_join_the_menus(finished):
    class Late:
        def judge(self, item):
            return lab.Verdict("accept", "")

    shown = dashboard(finished)
    assert dashboard(finished, policies=[Late]) is shown
    assert "Late" in shown.controls.staleness.choice.options
    shown.close()


def test_what_is_no_run_is_refused_with_advice():
    with pytest.raises(SetupError, match="expected a run from lab.start"):
        dashboard("data/runs/x.sqlite")


def test_where_there_is_no_kernel_a_run_is_a_line_of_text(finished, capsys):
    finished._ipython_display_()
    assert capsys.readouterr().out.startswith("<Run finished")


def test_what_shows_no_widgets_gets_text_and_static_html(finished):
    bundle = static_bundle(finished)
    assert set(bundle) == {"text/plain", "text/html"} == set(finished._repr_mimebundle_())
    assert bundle["text/plain"] == repr(finished)


def test_the_facts_show_a_server_that_tells_its_load(finished):
    facts = Overview()
    facts.take(finished.entries)
    rows = facts.facts._now["servers"]
    assert [row[0] for row in rows] == ["Simulated"]
    assert rows[0][2:4] == [finished.state.servers["Simulated"].running, finished.state.servers["Simulated"].waiting]
    silent = Overview()
    silent.take(finished.entries[:1])
    assert silent.facts._now["servers"] == []
