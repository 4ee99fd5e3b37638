"""Reflective staleness: a model reads a stale text against the history; what it writes takes the gate like any other."""

from __future__ import annotations

import os
import sqlite3
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace as Facts

import pytest

import flashevolve_lab as lab
from flashevolve_lab.algorithms.gepa_work import GEPAWork
from flashevolve_lab.algorithms.patching import CommitRecord, Reconcile, StaleBrief, read_verdict, read_verdicts
from flashevolve_lab.core import Entry, Member, Population, RunState, check
from flashevolve_lab.core import events as ev
from flashevolve_lab.llm import Request
from flashevolve_lab.store import Writer
from flashevolve_lab.views import Evidence

LANDSCAPE = lab.UnitingRules(n_rules=20, p_improve=0.6)
ALONE = lab.Reflective(onto="counterpart", batch=1)  # one stale text a reply, for the version in its parent's place
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
    wanted = {"staleness": ALONE, "schedule": lab.Pipelined(8), "budget": lab.Budget(metric_calls=1_500)} | settings
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
def test_an_unusable_patch_is_refused_with_its_raw_text_and_the_child_is_updated_instead(
    end: str, why: str, tmp_path: Path
) -> None:
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
    policy = lab.Reflective(onto="counterpart", batch=1, saturated=saturated, queue=1)  # type: ignore[arg-type]
    run = run_with(lab.Simulated(LANDSCAPE), tmp_path, staleness=policy, schedule=lab.Pipelined(24))
    full = [e for e in of(run.entries, ev.StalenessJudged) if "wait for the patch stage" in e.reason]
    assert full and any(e.action == expected for e in full)


# --- several stale texts, one reply -----------------------------------------------------------------------------------------

THREE = """IDEA 1: subsumed: quote the source
DECISION 1: discard
REASON 1: nothing is left of it
IDEA 2: complementary: name the unit
IDEA 2: conflicting: answer in one word
DECISION 2: patch
REASON 2: the unit was missing
DECISION 3: accept
"""


def test_a_verdict_on_each_of_several_stale_texts_is_read() -> None:
    first, second, third = read_verdicts(reply(THREE + "```\nName the unit.\n```"), 3)
    assert (first.decision, first.reason, first.text, first.ideas) == (
        "discard", "nothing is left of it", "", ("subsumed: quote the source",)
    )  # fmt: skip
    assert (second.decision, second.text, len(second.ideas)) == ("patch", "Name the unit.", 2)
    assert (third.decision, third.reason, third.text) == ("accept", "no reason was given", "")


def test_a_number_is_not_taken_for_the_beginning_of_another() -> None:
    lines = "".join(f"DECISION {n}: {'discard' if n == 1 else 'accept'}\n" for n in range(1, 13))
    assert [patch.decision for patch in read_verdicts(reply(lines), 12)] == ["discard"] + ["accept"] * 11


@pytest.mark.parametrize(
    ("text", "finish", "why"),
    [
        (THREE.replace("DECISION 3: accept", ""), "stop", "no_text"),
        (THREE.replace("DECISION 3: accept", ""), "length", "truncated"),
        (THREE, "stop", "no_text"),
        (THREE + "```\nName", "stop", "unclosed"),
        (THREE + "```\nName\n```\nand\n```\nanother\n```", "stop", "ambiguous"),
    ],
)
def test_a_reply_on_several_that_cannot_be_read_is_refused_as_a_whole(text: str, finish: str, why: str) -> None:
    with pytest.raises(lab.BadReply) as caught:
        read_verdicts(reply(text, finish), 3)
    assert (caught.value.why, caught.value.raw) == (why, text)


def test_the_prompt_for_several_numbers_them_and_shows_the_longest_history() -> None:
    commits = tuple(CommitRecord(n, f"a{n}", f"text {n}", n / 10) for n in (1, 2))
    briefs = [
        StaleBrief("prompt", "stale {current}", "old", "now", commits[1:]),
        StaleBrief("prompt", "other", "older", "now", commits),
    ]
    prompt = Reconcile().render_together(briefs)
    assert "Revision 1:\n\n```\nstale {current}\n```" in prompt and "Revision 2:\n\n```\nother\n```" in prompt
    assert "> old" in prompt and "> older" in prompt and "> text 1" in prompt and "revision, 1 to 2" in prompt
    assert prompt.count("```\nnow\n```") == 1


BATCH = lab.Reflective(onto="best", batch=4, queue=99)


def batched(folder: Path, llm: lab.LLM | None = None, **settings: object) -> lab.Run:
    return run_with(llm or lab.Simulated(LANDSCAPE), folder, **({"staleness": BATCH, "schedule": lab.Pipelined(24)} | settings))


def test_several_stale_texts_are_distilled_into_one_and_each_has_its_verdict_and_its_end(tmp_path: Path) -> None:
    run = batched(tmp_path)
    entries, state = run.entries, run.state
    jobs = {e.job: e for e in of(entries, ev.JobStarted) if e.stage == "patch"}
    assert max(1 + len(e.also) for e in jobs.values()) == 4
    ends = Counter(e.item for e in of(entries, ev.ItemEnded))
    assert set(ends.values()) == {1} and set(ends) == {e.item for e in of(entries, ev.ItemMade)}
    distilled = {e.item: e for e in of(entries, ev.ItemEnded) if e.outcome == "distilled"}
    said = [e for e in of(entries, ev.Patched) if e.together]
    assert distilled and {e.item for e in said} >= set(distilled)
    last = {e.item: e for e in said}
    for one in (e for item, e in last.items() if item in distilled):
        assert one.decision == "patch" and one.reason
        into = next(word for word in distilled[one.item].reason.replace(",", "").split() if word in state.artifacts)
        assert one.artifact in state.artifacts[into].parents[1:] and state.artifacts[into].origin == "patch"
    assert run.status.outcomes["distilled"] == len(distilled)


def test_a_distilled_text_is_gated_on_the_minibatch_of_the_first_it_was_made_from_against_what_it_was_written_for(
    tmp_path: Path,
) -> None:
    run = batched(tmp_path)
    minibatch = {e.item: e.data["minibatch"] for e in of(run.entries, ev.ItemMade) if e.kind == "proposal"}
    joint = {e.artifact: e for e in of(run.entries, ev.ArtifactMade) if e.origin == "patch" and len(e.parents) > 2}
    gates = [e for e in of(run.entries, ev.Gated) if e.artifact in joint]
    assert gates and all(e.parent == joint[e.artifact].parents[0] and not e.first for e in gates)
    item_of = {e.job: e.item for e in of(run.entries, ev.JobStarted) if e.stage == "gate"}
    tried = {
        (e.artifact, e.example)
        for e in of(run.entries, ev.SampleScored)
        if e.artifact in joint and item_of.get(e.job) == joint[e.artifact].item
    }
    ran = {id for id, _ in tried if id in joint}
    assert ran and all({e for id, e in tried if id == one} == set(minibatch[joint[one].item]) for one in ran)


def test_a_batch_is_charged_as_one_call(tmp_path: Path) -> None:
    run = batched(tmp_path)
    calls = run.frame("calls")
    jobs = [e for e in of(run.entries, ev.JobStarted) if e.stage == "patch"]
    assert (calls.role == "patch").sum() == len(jobs) < len(of(run.entries, ev.Patched))


class Together(Says):
    """The simulated model, except that several stale texts at once are answered with this text."""

    async def complete(self, request: Request) -> lab.Reply:
        joint = request.role == "patch" and "Revision 2:" in request.messages[-1]["content"]
        return reply(self.text) if joint else await self.simulated.complete(request)


VERDICTS = "".join(f"DECISION {n}: patch\nREASON {n}: why not\n" for n in range(1, 5))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("I cannot decide.", "no_text"),
        (VERDICTS, "no_text"),
        (VERDICTS + "```\n\n```", "empty"),
        (VERDICTS + "```\nAnswer.", "unclosed"),
    ],
)
def test_a_batch_that_cannot_be_used_is_refused_and_each_is_read_alone(text: str, why: str, tmp_path: Path) -> None:
    run = batched(tmp_path, Together(text))
    jobs = {e.job: e for e in of(run.entries, ev.JobStarted) if e.stage == "patch"}
    failed = [e for e in of(run.entries, ev.JobFailed) if e.job in jobs]
    assert failed and all(e.kind == why and e.raw == text and jobs[e.job].also for e in failed)
    assert not [e for e in of(run.entries, ev.Patched) if e.together]
    assert not run.state.counts["distilled"]
    parted = {item for e in failed for item in (jobs[e.job].item, *jobs[e.job].also)}
    read = {e.item for e in of(run.entries, ev.Patched)}
    assert len(parted & read) > len(parted) / 2  # the budget may end before the last of them
    ends = Counter(e.item for e in of(run.entries, ev.ItemEnded))
    assert all(ends[item] == 1 for item in parted)


def test_a_batch_whose_text_is_known_already_is_refused_for_all_it_would_have_patched(tmp_path: Path) -> None:
    run = batched(tmp_path, Together(VERDICTS + "```\nThe same text each time.\n```"))
    ends = [e for e in of(run.entries, ev.ItemEnded) if e.outcome == "refused" and "patched text is that of" in e.reason]
    assert len(ends) >= 2


def test_a_batch_of_which_some_are_accepted_and_some_discarded_makes_no_text(tmp_path: Path) -> None:
    mixed = "".join(f"DECISION {n}: {'accept' if n % 2 else 'discard'}\nREASON {n}: it is number {n}\n" for n in range(1, 5))
    run = batched(tmp_path, Together(mixed))
    said = [e for e in of(run.entries, ev.Patched) if e.together]
    assert {e.decision for e in said} == {"accept", "discard"} and {e.reason for e in said} >= {
        "it is number 1",
        "it is number 2",
    }
    joint = {e.item for e in said if e.decision == "discard"}
    assert {e.outcome for e in of(run.entries, ev.ItemEnded) if e.item in joint} == {"discarded"}


class Alone:
    """A patcher of one's own that reads one stale text at a time."""

    async def patch(self, brief: StaleBrief, llm: object) -> object:
        return await Reconcile().patch(brief, llm)  # type: ignore[arg-type]


def test_a_patcher_that_reads_one_at_a_time_is_given_one_at_a_time(tmp_path: Path) -> None:
    run = batched(tmp_path, algorithm=lab.GEPA(patcher=Alone()))  # type: ignore[arg-type]
    assert of(run.entries, ev.Patched) and not [e for e in of(run.entries, ev.JobStarted) if e.also]


def test_the_batch_can_change_while_the_run_goes_on(tmp_path: Path) -> None:
    run = lab.start(
        lab.simulated_task(LANDSCAPE, 60, 40), llm=lab.Simulated(LANDSCAPE), clock=lab.Virtual(), folder=tmp_path, paused=True,
        staleness=ALONE, schedule=lab.Pipelined(24), budget=lab.Budget(metric_calls=1_500),
    )  # fmt: skip
    run.set(staleness=BATCH)
    run.resume()
    run.wait(60)
    assert any(e.also for e in of(run.entries, ev.JobStarted))


def batches_of(entries: list[Entry]) -> Iterator[tuple[str, int, int]]:
    """Each batch's job, and the entries after its start and after its reply."""
    for start, entry in enumerate(entries, 1):
        if isinstance(entry.event, ev.JobStarted) and entry.event.also:
            job = entry.event.job
            call = next(e.call for e in of(entries[start:], ev.CallStarted) if e.job == job)
            ends = (i for i, e in enumerate(entries, 1) if isinstance(e.event, ev.CallFinished) and e.event.call == call)
            yield job, start, next(ends)


@pytest.mark.parametrize("replied", [False, True])
def test_a_run_killed_with_a_batch_in_flight_reads_it_again_and_loses_nobody(replied: bool, tmp_path: Path) -> None:
    whole = batched(tmp_path).entries
    job_id, started, ended = next(quiet for quiet in batches_of(whole) if not of(whole[quiet[1] : quiet[2]], ev.Committed))
    cut = ended if replied else started
    before = RunState().apply_all(whole[:cut])
    job = before.jobs[job_id]
    path = tmp_path / "cut.sqlite"
    writer = Writer(path)
    writer.append(whole[:cut])
    writer.close()
    with sqlite3.connect(path) as db:
        db.execute("UPDATE meta SET value = ? WHERE key = 'writer'", (f"{os.getpid()}@{os.uname().nodename}",))
    db.close()
    run = lab.resume(path, task=lab.simulated_task(LANDSCAPE, 60, 40), llm=lab.Simulated(LANDSCAPE), clock=lab.Virtual())
    run.wait(60)
    check(run.state)
    after = [e.event for e in run.entries[cut:]]
    again = next(e for e in after if isinstance(e, ev.JobStarted) and e.stage == "patch" and e.item == job.item)
    assert again.also == job.also
    assert replied != any(isinstance(e, ev.CallStarted) and e.job == again.job for e in after), "a reply is not paid twice"
    ends = Counter(e.item for e in of(run.entries, ev.ItemEnded))
    assert all(ends[item] == 1 for item in job.items) and max(ends.values()) == 1


def test_the_inspector_shows_the_stale_texts_of_a_batch_beside_each_other(tmp_path: Path) -> None:
    run = batched(tmp_path)
    evidence = Evidence()
    evidence.feed(run.entries)
    started = next(e for e in of(run.entries, ev.JobStarted) if len(e.also) == 3)
    told = {item: evidence.about(item) for item in (started.item, *started.also)}
    texts = {item: next(e.artifact for e in of(run.entries, ev.Patched) if e.item == item and e.together) for item in told}
    for item, dossier in told.items():
        if dossier.beside and len(dossier.work) and [w.job for w in dossier.work if w.stage == "patch"][-1] == started.job:
            assert {text.id for text in dossier.beside} == {texts[other] for other in told if other != item}
        assert started.job in {work.job for work in dossier.work}
        assert any(spoken.role == "patch" for spoken in dossier.spoken)
    assert sum(evidence.about(e.item).spent.llm_calls for e in of(run.entries, ev.ItemMade)) == run.status.spent["llm_calls"]


# --- onto the best ----------------------------------------------------------------------------------------------------------


def test_onto_the_best_a_patch_is_written_for_and_gated_against_the_best_at_that_time(tmp_path: Path) -> None:
    run = run_with(
        lab.Simulated(LANDSCAPE), tmp_path, staleness=lab.Reflective(onto="best", batch=1), schedule=lab.Pipelined(16)
    )
    state, best = RunState(), {}
    for entry in run.entries:
        RunState.apply_all(state, [entry])
        if isinstance(entry.event, ev.JobStarted) and entry.event.stage == "patch":
            best[entry.event.item] = state.pool.best().id  # type: ignore[union-attr]
        if isinstance(entry.event, ev.Patched) and entry.event.decision == "patch":
            assert entry.event.counterpart == best[entry.event.item]
    judged = [e for e in of(run.entries, ev.StalenessJudged) if e.action == "patch"]
    assert judged and all(e.target and f"the best, {e.target}" in e.reason for e in judged)
    assert any(e.target != e.counterpart for e in judged)
    spared = [e for e in of(run.entries, ev.StalenessJudged) if "from the best" in e.reason]
    assert all(e.action == "accept" for e in spared)


def test_a_counterpart_that_was_rolled_back_meanwhile_gives_way_to_the_best() -> None:
    pool = Population()
    pool.add(Member("a0", 0, 0, (), "", {0: 1.0}, 1.0, 1.0))
    pool.add(Member("a1", 1, 1, ("a0",), "prompt", {1: 1.0}, 1.0, 0.5, rival="a0"))
    bench = Facts(state=Facts(pool=pool), item=Facts(data={"counterpart": "a1"}))
    work = GEPAWork(lab.GEPA(), lab.simulated_task(LANDSCAPE), bench)  # type: ignore[arg-type]
    assert work._target() == "a1"
    pool.remove("a1")
    assert work._target() == "a0"


def test_onto_the_best_beats_leaving_stale_work_alone_at_equal_metric_calls(tmp_path: Path) -> None:
    best = [batched(tmp_path, staleness=policy).status.best_score for policy in (lab.Full(), BATCH)]
    assert best[1] > 2 * best[0]
