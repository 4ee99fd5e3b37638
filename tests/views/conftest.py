"""A log written by hand: `log` to begin one, `story` for a whole run in which everything happens once."""

import pytest

from flashevolve_lab.core import Entry, Spend
from flashevolve_lab.core import events as ev

STAGES = ("rollout", "propose", "gate", "validate")


class Log(list):
    """Entries so far; ``log(at, *events)`` appends events that happen at ``at``."""

    def __call__(self, at, *events):
        for event in events:
            self.append(Entry(len(self) + 1, at, event))
        return self

    def begin(self, **options):
        """A run that has just started with its seed a0 waiting for validation."""
        settings = {
            "schedule": {"name": "Pipelined", "depth": 2},
            "staleness": {"name": "Full"},
            "slots": {"gate": 1},
            **options.pop("settings", {}),
        }
        budget = {"metric_calls": 100, "tokens": 5_000, **options.pop("budget", {})}
        facts = {
            "run": "story",
            "created": "2026-01-01T00:00:00+00:00",
            "seed": 0,
            "clock": "virtual",
            "algorithm": {"name": "GEPA"},
            "task": {"name": "reviews"},
            "llm": {"task": {"kind": "Simulated", "simulated": True}},
            "lab": "0.1.0",
            **options,
        }
        self(0.0, ev.RunStarted(stages=STAGES, settings=settings, budget=budget, **facts))
        self(0.0, ev.ArtifactMade("a0", {"prompt": "Be good."}, "h0", (), "seed", "", "p0"))
        return self(0.0, ev.ItemMade("p0", "seed", "validate", 0, 0, {"child": "a0"}))

    def seed(self, at=4.0):
        """The seed's validation, from 0 to ``at``, and its commit as version 0 with the scores 0 and 1."""
        self(0.0, ev.JobStarted("j0", "validate", 0, "p0", -1, Spend(metric_calls=2)))
        self(at, *(ev.SampleScored("j0", "a0", "val", i, float(i)) for i in (0, 1)), ev.JobFinished("j0"))
        self(at, ev.Committed(0, "a0", "p0", 0, {"0": 0.0, "1": 1.0}, 2), ev.ItemEnded("p0", "committed", "version 0", "a0"))
        return self

    def proposal(self, at, item, *, base=0, batch=1, parent="a0"):
        """A new proposal in front of rollout."""
        data = {"parent": parent, "component": "prompt", "minibatch": [3, 4], "cursor": 7}
        return self(at, ev.ItemMade(item, "proposal", "rollout", base, batch, data))

    def call(self, start, end, call, job, outcome="ok", tokens=100, role="task", text="yes"):
        """A model call that starts and ends, charged with ``tokens`` and a thousandth of a dollar for each."""
        spent = Spend(llm_calls=1, tokens=tokens, dollars=tokens / 1000)
        self(start, ev.CallStarted(call, job, role, f"{call}#1", 1, Spend(llm_calls=1, tokens=200)))
        return self(end, ev.CallFinished(call, outcome, spent, tokens - 10, 10, "stop", "model", text))


@pytest.fixture
def log():
    """An empty log to write."""
    return Log()


def _proposal_committed(log):
    log.proposal(4.0, "p1")(4.0, ev.JobStarted("j1", "rollout", 0, "p1", 0, Spend(metric_calls=2)))
    log.proposal(4.0, "p2", batch=2)(4.0, ev.JobStarted("j2", "rollout", 1, "p2", 0, Spend(metric_calls=2)))
    log(4.0, ev.CallStarted("c0", "j1", "task", "3#1", 1, Spend(llm_calls=1, tokens=200)))
    log.call(4.0, 5.0, "c1", "j2", "rate_limited", tokens=0, text="429 <b>slow down</b>")
    log(5.5, ev.CallFinished("c0", "ok", Spend(llm_calls=1, tokens=100, dollars=0.1), 90, 10, "stop", "model", "no"))
    log(5.5, ev.SampleScored("j1", "a0", "train", 3, 0.0, "no", "wrong"))
    log(6.0, ev.SampleFailed("j2", "a0", "train", 4, "transient", "the provider broke"))
    log(6.0, ev.JobFinished("j1", {"scores": [0.0, 0.0]}), ev.ItemQueued("p1", "propose", {"scores": [0.0, 0.0]}))
    log(6.0, ev.JobStarted("j3", "propose", 0, "p1", 0))
    log(6.5, ev.JobFailed("j2", "samples", "1 of 2 <train> samples", "raw"), ev.ItemQueued("p2", "rollout", retry=True))
    log(6.5, ev.JobStarted("j4", "rollout", 0, "p2", 0, Spend(metric_calls=1)))
    log.call(6.5, 8.0, "c2", "j3", role="reflection", tokens=300, text="```\nBe better.\n```")
    log(8.0, ev.JobFinished("j3", {"text": "Be better."}))
    log(8.0, ev.ArtifactMade("a1", {"prompt": "Be better."}, "h1", ("a0",), "reflection", "prompt", "p1"))
    log(8.0, ev.ItemQueued("p1", "gate", {"child": "a1"}), ev.JobStarted("j5", "gate", 0, "p1", 0, Spend(metric_calls=2)))
    log(9.0, ev.JobFinished("j5"), ev.Gated("p1", "a1", "a0", True, True, 0.0, 1.0), ev.ItemQueued("p1", "validate"))
    log(9.0, ev.JobStarted("j6", "validate", 0, "p1", 0, Spend(metric_calls=2)))
    log(9.5, ev.JobFinished("j4"), ev.ItemQueued("p2", "propose"), ev.JobStarted("j7", "propose", 0, "p2", 0))
    log(11.0, *(ev.SampleScored("j6", "a1", "val", i, 1.0) for i in (0, 1)), ev.JobFinished("j6"))
    log(11.0, ev.Committed(1, "a1", "p1", 1, {"0": 1.0, "1": 1.0}, 2), ev.ItemEnded("p1", "committed", "version 1", "a1"))


def _proposal_updated_and_discarded(log):
    judged = {"item": "p2", "stage": "validate", "where": "dequeue", "base": 0, "version": 1, "gap": 1, "policy": "Guarded"}
    judged |= {"touched": True, "superseded": False, "counterpart": "a1", "why": "siblings joined: a1"}
    log(12.0, ev.JobFinished("j7"), ev.ArtifactMade("a2", {"prompt": "Hm."}, "h2", ("a0",), "reflection", "prompt", "p2"))
    log(12.0, ev.ItemQueued("p2", "gate", {"child": "a2"}), ev.JobStarted("j8", "gate", 0, "p2", 1))
    log(13.0, ev.JobFinished("j8"), ev.Gated("p2", "a2", "a0", True, True, 0.0, 2.0), ev.ItemQueued("p2", "validate"))
    log(13.0, ev.StalenessJudged(artifact="a2", action="update", reason="gap 1 is beyond 0", **judged))
    log(13.0, ev.ArtifactMade("a3", {"prompt": "Hm!"}, "h3", ("a1", "a2"), "update", "prompt", "p2"))
    log(13.0, ev.ItemQueued("p2", "gate", {"parent": "a1", "child": "a3", "rebased": True}, base=1))
    log(13.0, ev.JobStarted("j9", "gate", 0, "p2", 1))
    log(14.0, ev.JobFinished("j9"), ev.Gated("p2", "a3", "a1", True, False, 1.0, 2.0), ev.ItemQueued("p2", "validate"))
    log(14.0, ev.StalenessJudged(artifact="a3", action="discard", reason="enough", **(judged | {"gap": 3})))
    log(14.0, ev.ItemEnded("p2", "discarded", "enough", "a3"), ev.DepthChanged(2, 1, "too many discards"))
    log(14.0, ev.WorkersReviewed("ServerAware", 10.0, 0.5, 2.0, {"gate": 12.0}, {"gate": 1.5}, {"gate": 1}, 1, 600))
    log(14.0, ev.SlotsChanged("propose", 2, 3, "items wait", "ServerAware"))


def _steered_stopped_and_resumed(log):
    guarded = {"name": "Guarded", "max_gap": 8, "beyond": "discard"}
    log(14.5, ev.SettingChanged("staleness", {"name": "Full"}, guarded, "user", "<i>why not</i>"))
    log(14.5, ev.SettingChanged("budget", {"metric_calls": 100}, {"metric_calls": 200}))
    log(15.0, ev.Paused(), ev.Stepped(1, "rollout"))
    log.proposal(15.0, "p3", base=1, batch=3, parent="a1")(15.0, ev.JobStarted("j10", "rollout", 0, "p3", 1, stepped=True))
    log(16.0, ev.Continued(), ev.Warned("slow", "the server is slow"), ev.ServerSeen("http://s/v1", 3.0, 1.0, 0.25, {"n": 2.0}))
    log.proposal(16.0, "p4", base=1, batch=4, parent="a1")(16.0, ev.JobStarted("j11", "rollout", 1, "p4", 1))
    log(16.5, ev.JobFinished("j11"), ev.ItemEnded("p4", "skipped", "perfect"))
    log(16.5, ev.CallStarted("c3", "j10", "task", "3#1", 1, Spend(llm_calls=1, tokens=200)))
    log(17.0, ev.CallFinished("c3", "cancelled", Spend(llm_calls=1, tokens=200), text="cancelled by the stop"))
    log(17.0, ev.JobAbandoned("j10", "enough", still_running=True), ev.ItemQueued("p3", "rollout", front=True))
    log(17.0, ev.RunStopped("user", "enough"), ev.RunResumed("2026-01-02T00:00:00+00:00"))
    log(17.0, ev.JobStarted("j12", "rollout", 0, "p3", 1))
    log(18.0, ev.JobLost("j12"), ev.ItemQueued("p3", "rollout", front=True), ev.RunResumed("2026-01-03T00:00:00+00:00"))
    log(18.0, ev.JobStarted("j13", "rollout", 0, "p3", 1))
    log(19.0, ev.CallStarted("c4", "j13", "task", "3#1", 1, Spend(llm_calls=1, tokens=200)))


@pytest.fixture(scope="module")
def story():
    """A run of 19 s: a commit, a failure and a retry, an update, a discard, a pause, a stop, two resumes; p3 still at work."""
    log = Log().begin().seed()
    _proposal_committed(log)
    _proposal_updated_and_discarded(log)
    _steered_stopped_and_resumed(log)
    return tuple(log)


def _child(log, at, n, parent, *, gate=True):
    """Proposal ``p<n>`` of ``parent`` with its text ``a<n>`` in front of its gate, or past it and in front of its validation."""
    item, child = f"p{n}", f"a{n}"
    log.proposal(at, item, batch=n, parent=parent)
    log(at, ev.ArtifactMade(child, {"prompt": child}, f"h{n}", (parent,), "reflection", "prompt", item))
    log(at, ev.ItemQueued(item, "gate", {"child": child}))
    if gate:
        log(at, ev.JobStarted(f"j{n}0", "gate", 0, item, 0), ev.JobFinished(f"j{n}0"))
        log(at, ev.Gated(item, child, parent, True, True, 0.0, 1.0), ev.ItemQueued(item, "validate"))
    return log


@pytest.fixture(scope="module")
def early():
    """A run of 12 s: p1 released, inserted as a1 and confirmed; a2 of p2 rolled back with p3 and a4 made from it; p5, p6 proven."""
    log = Log().begin(settings={"slots": {}}).seed()
    log.proposal(4.0, "p1")(4.0, ev.JobStarted("j1", "rollout", 0, "p1", 0, Spend(metric_calls=2)))
    log(5.0, ev.SampleScored("j1", "a0", "train", 3, 0.0, "no", "wrong"))
    log(5.0, ev.Released("j1", {"seen": [3], "scores": [0.0]}, "1 of 2 samples are in"))
    log(5.0, ev.ItemQueued("p1", "propose", {"seen": [3], "scores": [0.0]}), ev.JobStarted("j2", "propose", 0, "p1", 0))
    log(6.0, ev.JobFinished("j2"), ev.ArtifactMade("a1", {"prompt": "a1"}, "h1", ("a0",), "reflection", "prompt", "p1"))
    log(6.0, ev.SampleScored("j1", "a0", "train", 4, 1.0, "yes", ""), ev.JobFinished("j1"))
    log(6.0, ev.ItemQueued("p1", "validate", {"child": "a1"}))
    log(6.0, ev.JobStarted("j3", "validate", 0, "p1", 0, Spend(metric_calls=2), first=(0,)))
    log(7.0, ev.SampleScored("j3", "a1", "val", 0, 1.0))
    log(7.0, ev.Provisional(1, "a1", "p1", 1, {"0": 1.0}, 2, "a0", "1.000 on the first 1 of 2 examples"))
    log(7.5, ev.SampleScored("j3", "a1", "val", 1, 0.5), ev.JobFinished("j3"))
    log(7.5, ev.Confirmed("a1", "p1", {"0": 1.0, "1": 0.5}, 2), ev.ItemEnded("p1", "committed", "version 1, confirmed", "a1"))
    _child(log, 8.0, 2, "a1")(8.0, ev.JobStarted("j21", "validate", 0, "p2", 1, Spend(metric_calls=2), first=(1,)))
    log(8.0, ev.SampleScored("j21", "a2", "val", 1, 1.0))
    log(8.5, ev.Provisional(2, "a2", "p2", 2, {"1": 1.0}, 2, "a1", "1.000 on the first 1 of 2 examples"))
    log.proposal(8.5, "p3", base=2, batch=3, parent="a2")
    _child(log, 8.5, 4, "a2")(8.5, ev.Committed(3, "a4", "p4", 4, {"0": 0.0, "1": 0.5}, 2))
    log(8.5, ev.ItemEnded("p4", "committed", "version 3", "a4"))
    log(9.0, ev.SampleScored("j21", "a2", "val", 0, 0.0), ev.JobFinished("j21"))
    log(9.0, ev.RolledBack(4, "a2", "p2", "its prefix promised more", ("p3", "a4")))
    log(9.0, ev.ItemEnded("p2", "rolled_back", "its prefix promised more", "a2"))
    _child(log, 10.0, 5, "a1", gate=False)(10.0, ev.JobStarted("j50", "gate", 0, "p5", 4, Spend(metric_calls=2)))
    log(10.5, ev.SampleScored("j50", "a5", "train", 3, 0.0), ev.Proven("j50", "p5", "a5", "gate", 1, 2, 0.5, "it can reach 0.500"))
    log(10.5, ev.JobFinished("j50", {"proven": True}), ev.Gated("p5", "a5", "a1", False, True, 1.0, 1.0, bound=True))
    log(10.5, ev.ItemEnded("p5", "rejected", "it can reach 0.500", "a5"))
    _child(log, 11.0, 6, "a1")(11.0, ev.JobStarted("j61", "validate", 0, "p6", 4, Spend(metric_calls=2)))
    log(12.0, ev.SampleScored("j61", "a6", "val", 0, 0.0), ev.Proven("j61", "p6", "a6", "validate", 1, 2, 0.5, "it can reach 0.5"))
    log(12.0, ev.JobFinished("j61", {"proven": True}), ev.ItemEnded("p6", "outdone", "it can reach 0.5", "a6"))
    return tuple(log)
