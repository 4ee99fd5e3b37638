"""A run to show without an engine: a log to grow by hand, and commands that are only noted."""

import pytest

import flashevolve_lab as lab


class FakeRun:
    """Entries that tests append, and every command with its arguments."""

    def __init__(self, entries=(), *, available=True, growing=True):
        self.entries, self.available, self.growing, self.commands = list(entries), available, growing, []
        self.refuse = None

    def after(self, seq, limit):
        return [entry for entry in self.entries if entry.seq > seq][:limit]

    def _note(self, *command):
        if self.refuse is not None:
            raise self.refuse
        self.commands.append(command)

    def pause(self):
        self._note("pause")

    def resume(self):
        self._note("resume")

    def step_soon(self, n=1, stage=""):
        self._note("step", n, stage)

    def stop(self, reason=""):
        self._note("stop")

    def set(self, *, why="", **knobs):
        self._note("set", knobs)

    def judge(self, item, action, *, reason=""):
        self._note("judge", item, action)

    def inject(self, components, *, parent=None):
        self._note("inject", components, parent)


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """A small finished run in virtual time."""
    land = lab.IndependentRules(n_rules=20, p_improve=0.6)
    run = lab.start(
        lab.simulated_task(land, 40, 30),
        llm=lab.Simulated(land),
        budget=lab.Budget(metric_calls=900),
        schedule=lab.Pipelined(8),
        staleness=lab.Guarded(2, beyond="update"),
        clock=lab.Virtual(),
        folder=tmp_path_factory.mktemp("runs"),
        name="finished",
    )
    run.wait(60)
    return run


@pytest.fixture
def fake_run():
    """`FakeRun`, to make one."""
    return FakeRun
