"""The whole error tree, ordered by who should react and how.

    LabError
    ├── SetupError        the user can fix it, before anything is spent
    │   └── LogError      a run file that cannot be read, written or resumed (it is left untouched)
    ├── RunError          ends a run; the work done so far is kept
    │   └── BudgetSpent   a call or job that no longer fits the budget (ends its job, then the run)
    ├── ModelError        what a model or its provider did; the gateway retries or records it
    │   ├── RateLimited   429: wait (``retry_after_s`` if the provider said so), then again
    │   ├── Transient     timeout, broken connection, 5xx: try again
    │   ├── Refused       the request was understood and refused (4xx, content filter): do not repeat it
    │   └── BadReply      a reply arrived and cannot be used (empty, truncated, unchanged, …)
    └── InvariantError    a bug of ours; carries the story that led there

A message says what was expected, what came, and what to do. Keys never appear in one.
"""

from __future__ import annotations


class LabError(Exception):
    """Base of every error this package raises on purpose."""


class SetupError(LabError, ValueError):
    """Something the user can fix before a run; nothing has been spent."""


class LogError(SetupError):
    """A run file that is truncated, locked, foreign, or of a newer format. The file is left as it was."""


class RunError(LabError):
    """Ends a run. Everything finished before it is kept in the log."""


class BudgetSpent(RunError):
    """A call or a job that does not fit into what is left of the budget."""


class ModelError(LabError):
    """Base of what a model or its provider did."""

    kind = "model"


class RateLimited(ModelError):
    """The provider said 429. ``retry_after_s``: seconds it asked us to wait, or None."""

    kind = "rate_limited"

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Transient(ModelError):
    """A timeout, a broken connection or a 5xx: worth another attempt."""

    kind = "transient"


class Refused(ModelError):
    """The provider understood the request and refused it: repeating it would not help."""

    kind = "refused"


class BadReply(ModelError):
    """A reply arrived and cannot be used. ``raw`` keeps the text as it came."""

    kind = "bad_reply"

    def __init__(self, message: str, raw: str = "", why: str = "bad_reply") -> None:
        super().__init__(message)
        self.raw = raw
        self.why = why


class InvariantError(LabError):
    """A bug of ours. ``story``: the last events that led here, oldest first."""

    def __init__(self, message: str, story: tuple[str, ...] = ()) -> None:
        super().__init__("\n".join([message, *(f"  {line}" for line in story)]))
        self.story = story
