"""The controls: a click is a command, what is in force is read back from the log, and what cannot be says why."""

import threading
from dataclasses import dataclass, field
from typing import Literal

import pytest

from flashevolve_lab.core import Entry, StaleItem, Verdict
from flashevolve_lab.core import events as ev
from flashevolve_lab.errors import SetupError
from flashevolve_lab.policies import (
    Batched,
    Complete,
    Fixed,
    Full,
    Guarded,
    Pipelined,
    RateBalanced,
    Strict,
    Tolerant,
    describe,
)
from flashevolve_lab.widgets import Controls


@dataclass(frozen=True)
class Mine:
    """Somebody's own."""

    share: float = 0.5
    mode: Literal["soft", "hard"] = "soft"
    strict: bool = True
    word: str = "go"
    table: dict = field(default_factory=lambda: {"x": 1})

    def judge(self, item: StaleItem) -> Verdict:
        return Verdict("accept", self.word)


def started(**settings):
    settings = {"schedule": {"name": "Pipelined", "depth": 8}, "staleness": describe(Guarded(3)), "concurrency": 64, **settings}
    run = ev.RunStarted("r", "", 0, "wall", {}, ("rollout", "gate"), settings, {"metric_calls": 100}, {}, {})
    return Entry(1, 0.0, run)


@pytest.fixture
def run(fake_run):
    return fake_run()


@pytest.fixture
def controls(run):
    controls = Controls(run, budget=lambda limits: ("Budget", limits))
    controls.take([started(slots={"gate": 2})])
    return controls


def happened(controls, *events, at=12.3):
    controls.take([Entry(n, at, event) for n, event in enumerate(events, 2)])


def changed(knob, new):
    return ev.SettingChanged(knob, None, new)


def test_what_the_run_started_with_is_in_force_since_the_start(controls):
    assert controls.staleness.choice.value == "Guarded"
    assert controls.staleness.line.value == "in force: Guarded(max_gap=3, beyond='discard', paper=False) since the start"
    assert controls.schedule.policy().depth == 8
    assert controls.slots.line.value == "in force: gate=2 since the start"


def test_choosing_a_policy_orders_it_and_it_is_pending_until_the_log_has_it(controls, run):
    controls.staleness.choice.value = "Full"
    assert run.commands == [("set", {"staleness": Full()})]
    assert controls.staleness.line.value.startswith("pending: Full() (in force: Guarded(max_gap=3")
    happened(controls, changed("staleness", describe(Full())))
    assert controls.staleness.line.value == "in force: Full() since 12.3 s"


def test_a_field_has_the_input_of_its_type_and_changes_the_policy(controls, run):
    inputs = controls.staleness._inputs["Guarded"]
    inputs["max_gap"].value = 5
    inputs["beyond"].value = "update"
    assert [knobs["staleness"] for _, knobs in run.commands] == [Guarded(5), Guarded(5, beyond="update")]


def test_what_the_log_says_is_followed_without_ordering_it_again(controls, run):
    happened(controls, changed("staleness", describe(Guarded(9, beyond="update"))), changed("schedule", describe(Batched(2, 3))))
    assert controls.staleness.policy() == Guarded(9, beyond="update")
    assert controls.schedule.policy() == Batched(2, 3)
    assert run.commands == []


def test_an_older_answer_does_not_undo_a_newer_wish(controls):
    controls.staleness.choice.value = "Full"
    happened(controls, changed("staleness", describe(Guarded(4))))
    assert controls.staleness.choice.value == "Full"
    assert controls.staleness.line.value.startswith("pending: Full() (in force: Guarded(max_gap=4")


def test_what_is_in_force_already_is_not_ordered_again(controls, run):
    controls.concurrency.number.value = 32
    happened(controls, changed("concurrency", 32))
    controls.concurrency._ask("concurrency", 32)
    assert run.commands == [("set", {"concurrency": 32})]
    assert controls.concurrency.line.value == "in force: 32 since 12.3 s"


def test_a_value_a_policy_refuses_is_explained_beside_it_and_not_ordered(controls, run):
    controls.staleness._inputs["Guarded"]["max_gap"].value = -1
    assert run.commands == []
    assert controls.staleness.line.value.startswith("not changed: Guarded(max_gap=…): expected an integer of at least 0; got -1")


def test_a_command_that_raises_is_explained_beside_its_control(controls, run):
    run.refuse = SetupError("the run has ended")
    controls.staleness.choice.value = "Full"
    controls.pause.click()
    assert "the run has ended" in controls.staleness.line.value
    assert controls.note.value == "pause failed: the run has ended"


def test_a_policy_of_ones_own_gets_an_input_for_each_plain_field_and_keeps_the_rest(controls, run):
    controls.offer([Mine])
    controls.staleness.choice.value = "Mine"
    assert list(controls.staleness._inputs["Mine"]) == ["share", "mode", "strict", "word"]
    assert run.commands[-1] == ("set", {"staleness": Mine()})


def test_a_policy_of_ones_own_that_is_set_on_the_run_joins_the_menu(run):
    mine = Mine(share=0.25, table={"y": 2})
    controls = Controls(run, resolve=lambda described: mine)
    controls.take([started(staleness=describe(mine))])
    assert controls.staleness.choice.value == "Mine"
    assert "code" not in controls.staleness.line.value
    controls.staleness._inputs["Mine"]["word"].value = "stay"
    assert run.commands == [("set", {"staleness": Mine(share=0.25, word="stay", table={"y": 2})})]


def test_a_policy_known_only_by_name_is_named_and_not_offered(run):
    def resolve(described):
        raise SetupError("pass the object itself again")

    controls = Controls(run, resolve=resolve)
    controls.take([started(staleness=describe(Mine()))])
    assert controls.staleness.choice.value is None
    assert controls.staleness.line.value.startswith("in force: Mine(share=0.5")


def test_slots_of_0_are_left_to_the_schedule(controls, run):
    controls.slots._numbers["rollout"].value = 3
    controls.slots._numbers["gate"].value = 0
    assert [knobs["slots"] for _, knobs in run.commands] == [{"rollout": 3, "gate": 2}, {"rollout": 3}]


def test_extending_the_budget_adds_to_the_limit_in_force(controls, run):
    controls.budget.amount.value = 50
    controls.budget.button.click()
    assert run.commands == [("set", {"budget": ("Budget", {"metric_calls": 150})})]
    happened(controls, changed("budget", {"metric_calls": 150}))
    assert controls.budget.line.value == "in force: metric_calls=150 since 12.3 s"


def test_pause_and_resume_are_possible_when_they_make_sense(controls, run):
    assert (controls.pause.disabled, controls.resume.disabled, controls.step.disabled) == (False, True, True)
    controls.pause.click()
    assert controls.note.value.endswith("pause asked for")
    happened(controls, ev.Paused())
    assert (controls.pause.disabled, controls.resume.disabled, controls.step.disabled) == (True, False, False)
    assert controls.note.value == "paused since 12.3 s"
    assert run.commands == [("pause",)]


def test_a_step_runs_as_many_jobs_of_the_stage_as_asked(controls, run):
    happened(controls, ev.Paused())
    controls.count.value, controls.stage.value = 2, "gate"
    controls.step.click()
    assert run.commands == [("step", 2, "gate")]


def test_a_stop_needs_a_second_click(controls, run):
    controls.stop.click()
    assert run.commands == [] and controls.stop.description == "Click again to stop"
    controls.stop.click()
    assert run.commands == [("stop",)] and controls.stop.description == "Stop"


def test_an_ended_run_allows_nothing_and_says_so(controls):
    happened(controls, ev.RunStopped("budget", "spent"))
    assert all(widget.disabled for knob in controls.knobs for widget in knob.inputs())
    assert controls.stop.disabled
    assert controls.note.value.startswith("The run ended at 12.3 s")


@pytest.mark.parametrize(("growing", "words"), [(True, "Another process executes this run"), (False, "The process of this run is gone")])
def test_a_run_that_commands_do_not_reach_is_read_only_and_says_why(fake_run, growing, words):
    run = fake_run(available=False)
    controls = Controls(run, growing=lambda: growing)
    controls.take([started()])
    assert controls.pause.disabled and controls.note.value.startswith(words)


def test_what_the_pollers_thread_sets_is_never_taken_for_a_click(controls, run):
    entries = [Entry(2, 1.0, changed("staleness", describe(Guarded(7)))), Entry(3, 1.0, changed("concurrency", 5))]
    poller = threading.Thread(target=controls.take, args=(entries,))
    poller.start()
    poller.join()
    assert run.commands == []


def test_words_of_a_user_are_shown_as_text_that_no_typesetter_touches(controls):
    happened(controls, changed("staleness", {"name": "<b>x</b>", "word": "$x^2$ \ud800"}))
    line = controls.staleness.line
    assert "<b>x</b>" in line.value and line.value.encode()
    assert "mathjax_ignore" in line._dom_classes


def test_the_depth_of_a_pipeline_may_be_a_number_or_auto(controls, run):
    depth = controls.schedule._inputs["Pipelined"]["depth"]
    depth.value = "auto"
    depth.value = "12"
    assert [knobs["schedule"] for _, knobs in run.commands] == [Pipelined("auto"), Pipelined(12)]
    depth.value = "deep"
    assert len(run.commands) == 2 and "which may also be 'auto'" in controls.schedule.line.value
    happened(controls, changed("schedule", describe(Pipelined("auto", most=40))))
    assert controls.schedule.policy() == Pipelined("auto", most=40) and depth.value == "auto"


def test_what_a_found_depth_and_a_worker_policy_changed_is_said_with_its_reason(controls, run):
    happened(controls, ev.DepthChanged(4, 8, "it has room", "Pipelined"), ev.SlotsChanged("gate", 2, 3, "items wait", "ServerAware"))
    assert controls.schedule.line.value == "effective depth 8 since 12.3 s: it has room"
    assert controls.workers.line.value == "gate: 2 → 3 slots since 12.3 s: items wait"


def test_worker_policies_have_a_menu_and_ones_own_joins_it(controls, run):
    @dataclass(frozen=True)
    class Greedy:
        """More."""

        every_s: float = 5.0

        def judge(self, load):
            return ()

    controls.offer([Greedy])
    assert list(controls.workers._classes) == ["Fixed", "RateBalanced", "ServerAware", "Greedy"]
    controls.workers.choice.value = "RateBalanced"
    controls.workers._inputs["RateBalanced"]["most"].value = 9
    assert [knobs["workers"] for _, knobs in run.commands] == [RateBalanced(), RateBalanced(most=9)]


def test_less_used_settings_are_folded_away_and_said_in_words(run):
    controls = Controls(run)
    controls.take([started(acceptance=describe(Strict()), completion=describe(Complete()), workers=describe(Fixed()), slots={})])
    assert not controls.more.opened
    assert [part[0] for part in controls.more.parts] == ["Complete", "Strict", "Fixed", "up to 64 calls in flight"]
    assert not any(marked for _, _, marked in controls.more.parts)
    assert set(controls.knobs) - set(controls.folded) == {controls.schedule, controls.staleness, controls.budget}


def test_what_is_out_of_the_ordinary_in_the_fold_is_marked_and_nothing_opens_it(run):
    controls = Controls(run)
    controls.take([started(completion=describe(Complete("front")), workers=describe(Fixed()), slots={"gate": 2})])
    happened(controls, changed("concurrency", 8), changed("acceptance", describe(Tolerant(0.5))))
    assert [[words, marked] for words, _, marked in controls.more.parts] == [
        ["Complete, proven front", True], ["Tolerant, margin 0.5", True], ["Fixed", False], ["slots gate 2", True],
        ["up to 8 calls in flight", True],
    ]  # fmt: skip
    assert controls.more.parts[-1][1] == "Gateway: in force: 8 since 12.3 s"
    assert not controls.more.opened


def test_fields_that_mean_nothing_beside_the_others_are_not_shown(controls, run):
    schedule = controls.schedule

    def shown():
        return [widget.description for widget in schedule.fields.children]

    assert shown() == ["depth"]
    schedule._inputs["Pipelined"]["depth"].value = "auto"
    assert shown() == ["depth", "least", "most"]
    schedule._inputs["Pipelined"]["least"].value = 9_999  # no policy: it stays as it was
    assert shown() == ["depth", "least", "most"]
    happened(controls, changed("schedule", describe(Pipelined("auto"))), changed("schedule", describe(Pipelined(4))))
    assert shown() == ["depth"]
    schedule.choice.value = "Batched"
    assert "depth" not in shown()
