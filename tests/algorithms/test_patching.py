"""Reflective staleness: a model reads a stale text against the history; what it writes takes the gate like any other."""

from __future__ import annotations

from pathlib import Path

import pytest

import flashevolve_lab as lab
from flashevolve_lab.algorithms.patching import CommitRecord, Reconcile, StaleBrief, read_verdict
from flashevolve_lab.core import Entry
from flashevolve_lab.core import events as ev
from flashevolve_lab.llm import Request

LANDSCAPE = lab.UnitingRules(n_rules=20, p_improve=0.6)
VERDICT = """IDEA: complementary: quote the source
IDEA: conflicting: answer in one word
DECISION: {decision}
REASON: one idea is still missing
"""


def reply(text: str, finish: str = "stop") -> lab.Reply:
    return lab.Reply(text, finish)  # type: ignore[arg-type]


# --- reading a verdict ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("decision", ["accept", "discard"])
def test_a_verdict_without_a_text_is_read(decision: str) -> None:
    patch = read_verdict(reply(VERDICT.format(decision=decision)))
    assert (patch.decision, patch.reason, patch.text) == (decision, "one idea is still missing", "")
    assert patch.ideas == ("complementary: quote the source", "conflicting: answer in one word")


def test_a_patch_brings_its_text() -> None:
    patch = read_verdict(reply(VERDICT.format(decision="patch") + "```\nQuote the source.\n```"))
    assert (patch.decision, patch.text) == ("patch", "Quote the source.")


def test_a_decision_inside_the_new_text_is_not_the_verdict() -> None:
    patch = read_verdict(reply(VERDICT.format(decision="patch") + "```\nDECISION: discard\n```"))
    assert (patch.decision, patch.text) == ("patch", "DECISION: discard")


@pytest.mark.parametrize(
    ("text", "finish", "why"),
    [
        ("I would keep it, I think.", "stop", "no_text"),
        (VERDICT.format(decision="patch"), "stop", "no_text"),
        (VERDICT.format(decision="patch") + "```\nQuote", "stop", "unclosed"),
        (VERDICT.format(decision="patch") + "```\nQuote\n```", "length", "truncated"),
        (VERDICT.format(decision="patch") + "```\n \n```", "stop", "empty"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_raw_text(text: str, finish: str, why: str) -> None:
    with pytest.raises(lab.BadReply) as caught:
        read_verdict(reply(text, finish))
    assert (caught.value.why, caught.value.raw) == (why, text)


def test_the_prompt_fences_what_may_be_taken_over_and_quotes_what_is_only_told() -> None:
    history = (CommitRecord(3, "a3", "with ``` ticks", 0.5),)
    prompt = Reconcile().render(StaleBrief("prompt", "the stale text", "the base", "the current text", history))
    assert "```\nthe stale text\n```" in prompt and "```\nthe current text\n```" in prompt
    assert "> the base" in prompt and "> with ''' ticks" in prompt and "version 3, score 0.500" in prompt


# --- in a run -------------------------------------------------------------------------------------------------------------


def run_with(llm: lab.LLM, folder: Path, **settings: object) -> lab.Run:
    wanted = {"staleness": lab.Reflective(), "schedule": lab.Pipelined(8), "budget": lab.Budget(metric_calls=1_500)} | settings
    run = lab.start(lab.simulated_task(LANDSCAPE, 60, 40), llm=llm, clock=lab.Virtual(), folder=folder, **wanted)
    run.wait(60)
    return run


def of(entries: list[Entry], kind: type) -> list[ev.Event]:
    return [entry.event for entry in entries if isinstance(entry.event, kind)]


def test_every_patched_text_passes_the_gate_against_the_current_version_before_it_is_validated(tmp_path: Path) -> None:
    run = run_with(lab.Simulated(LANDSCAPE), tmp_path)
    patched = {e.artifact: e for e in of(run.entries, ev.ArtifactMade) if e.origin == "patch"}
    gates = {e.artifact: e for e in of(run.entries, ev.Gated) if e.artifact in patched}
    committed = [e.artifact for e in of(run.entries, ev.Committed) if e.artifact in patched]
    assert len(patched) >= 5 and committed
    for id in committed:
        assert gates[id].passed and gates[id].parent == patched[id].parents[0]
        assert not gates[id].first  # a patch is not a proposal


def test_a_patch_is_based_on_the_version_the_patcher_saw(tmp_path: Path) -> None:
    run = run_with(lab.Simulated(LANDSCAPE), tmp_path)
    for place, entry in enumerate(run.entries):
        if isinstance(entry.event, ev.Patched) and entry.event.decision == "patch":
            after = [e.event for e in run.entries[place : place + 4]]
            queued = [e for e in after if isinstance(e, ev.ItemQueued) and e.item == entry.event.item]
            assert not queued or queued[0].base == entry.event.version


def test_a_stale_item_is_patched_twice_at_most(tmp_path: Path) -> None:
    run = run_with(lab.Simulated(LANDSCAPE), tmp_path, schedule=lab.Pipelined(24))
    orders = [e.item for e in of(run.entries, ev.StalenessJudged) if e.action == "patch"]
    assert orders and max(orders.count(item) for item in orders) <= 2


def test_what_patching_costs_is_charged_and_shown(tmp_path: Path) -> None:
    run = run_with(lab.Simulated(LANDSCAPE), tmp_path)
    calls = run.frame("calls")
    assert (calls.role == "patch").sum() == len(of(run.entries, ev.Patched))
    assert run.status.spent["llm_calls"] == len(calls)


class Says:
    """The simulated model, except that patches are answered with this text."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.simulated = lab.Simulated(LANDSCAPE)

    async def complete(self, request: Request) -> lab.Reply:
        return reply(self.text) if request.role == "patch" else await self.simulated.complete(request)

    async def check(self) -> None:
        pass

    def describe(self) -> dict[str, object]:
        return self.simulated.describe()


def test_a_discard_by_reflection_ends_the_item_and_keeps_its_evidence(tmp_path: Path) -> None:
    run = run_with(Says(VERDICT.format(decision="discard")), tmp_path, budget=lab.Budget(metric_calls=700))
    items = {e.item for e in of(run.entries, ev.StalenessJudged) if e.action == "patch"}
    ends = {e.item: e for e in of(run.entries, ev.ItemEnded) if e.item in items}
    assert items and {end.outcome for end in ends.values()} == {"discarded"}
    assert all(end.artifact in run.state.artifacts for end in ends.values())


@pytest.mark.parametrize(("end", "why"), [("```\n\n```", "empty"), ("```\nAnswer.", "unclosed")])
def test_an_unusable_patch_is_refused_with_its_raw_text_and_the_child_is_updated_instead(end: str, why: str, tmp_path: Path) -> None:
    run = run_with(Says(VERDICT.format(decision="patch") + end), tmp_path, budget=lab.Budget(metric_calls=700))
    refused = [e for e in of(run.entries, ev.JobFailed) if e.kind == why]
    assert refused and all(e.raw.endswith(end) for e in refused)
    assert not [e for e in of(run.entries, ev.ArtifactMade) if e.origin == "patch"]
    said = of(run.entries, ev.Patched)
    assert {e.decision for e in said} == {"update"} and all(why in e.reason for e in said)
    gated_again = {e.item for e in of(run.entries, ev.Gated) if not e.first}
    assert gated_again & {e.item for e in said}


def test_an_accepted_stale_text_goes_on_as_it_is(tmp_path: Path) -> None:
    run = run_with(Says(VERDICT.format(decision="accept")), tmp_path, budget=lab.Budget(metric_calls=700))
    said = of(run.entries, ev.Patched)
    assert said and {e.decision for e in said} == {"accept"}
    assert not [e for e in of(run.entries, ev.ArtifactMade) if e.origin == "patch"]
    assert {e.artifact for e in said} & set(run.state.pool.members)


@pytest.mark.parametrize(("saturated", "expected"), [("update", "update"), ("discard", "discard")])
def test_when_the_patch_stage_is_full_the_policy_prefers_something_cheaper_and_says_why(
    saturated: str, expected: str, tmp_path: Path
) -> None:
    policy = lab.Reflective(saturated=saturated, queue=1)  # type: ignore[arg-type]
    run = run_with(lab.Simulated(LANDSCAPE), tmp_path, staleness=policy, schedule=lab.Pipelined(24))
    full = [e for e in of(run.entries, ev.StalenessJudged) if "wait for the patch stage" in e.reason]
    assert full and any(e.action == expected for e in full)
