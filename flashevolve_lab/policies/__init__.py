"""Pure judgements on small values, each with a reason in words; and how they are written into a log and read back."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from math import isfinite
from types import CodeType
from typing import Any

from flashevolve_lab.errors import SetupError
from flashevolve_lab.policies.acceptance import ACCEPTANCES, Repeated, Strict, Tolerant
from flashevolve_lab.policies.completion import COMPLETION, Complete, Speculative
from flashevolve_lab.policies.schedule import SCHEDULES, Batched, Pipelined, Sequential
from flashevolve_lab.policies.staleness import STALENESS, Full, Guarded, Reflective
from flashevolve_lab.policies.workers import WORKERS, Fixed, RateBalanced, ServerAware

LONG = 500  # characters of a field in words that a description keeps
BUILT_IN: Mapping[str, type] = {**SCHEDULES, **STALENESS, **WORKERS, **ACCEPTANCES, **COMPLETION}


def describe(policy: object) -> dict[str, Any]:
    """A policy as JSON-able facts: its class name, its fields, and for a user's own a hash of its code (so an edit is a change).

    What JSON cannot hold is there in words, so that two policies that differ never have one description.
    """
    values = (
        {f.name: getattr(policy, f.name) for f in fields(policy)} if is_dataclass(policy) else getattr(policy, "__dict__", {})
    )
    facts = {"name": type(policy).__name__, **{k: _jsonable(v) for k, v in values.items()}}
    if type(policy) in BUILT_IN.values():
        return {name: value for name, value in facts.items() if name not in getattr(policy, "unsaid", ())}
    depth = _depth(policy)
    return {**facts, **({"depth": depth} if depth else {}), "code": _code(type(policy))}


def _depth(policy: object) -> int | str:
    """The depth of a schedule of one's own, for views (which cannot ask it); 0 where there is none."""
    try:
        depth = getattr(policy, "depth", None)
    except Exception:
        return 0
    if depth == "auto":
        return "auto"
    return depth if isinstance(depth, int) and not isinstance(depth, bool) and depth > 0 else 0


def _code(cls: type) -> str:
    functions: list[Any] = [value.fget if isinstance(value, property) else value for value in vars(cls).values()]
    bodies = [_body(function.__code__) for function in functions if hasattr(function, "__code__")]
    return _digest("\n".join(bodies))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:8]


def _body(code: CodeType) -> str:
    """What a function does, as text that is the same in every process (no addresses, no order of sets)."""
    return f"{code.co_code!r} {code.co_names} {[_constant(value) for value in code.co_consts]}"


def _constant(value: object) -> str:
    if isinstance(value, CodeType):
        return _body(value)
    return repr(sorted(map(repr, value))) if isinstance(value, frozenset) else repr(value)


class Policies:
    """Recorded descriptions back into live policies: built-in ones by name, a user's own as registered with `live`."""

    def __init__(self) -> None:
        self._live: dict[str, object] = {}
        self._last: dict[int, tuple[Any, object]] = {}  # by identity of the description: asked many times a turn

    def live(self, policy: object) -> dict[str, Any]:
        """Register a policy object; returns its description for the log."""
        described = describe(policy)
        self._live[_key(described)] = policy
        self._last.clear()
        return described

    def __call__(self, described: Any) -> Any:
        """The live policy of a description.

        Raises:
            SetupError: a policy defined in a notebook cell that was not given again.
        """
        last = self._last.get(id(described))
        if last is not None and last[0] is described:
            return last[1]
        key = _key(described)
        if key not in self._live:
            cls = BUILT_IN.get(described.get("name", ""))
            if cls is None:
                known = ", ".join(sorted(BUILT_IN))
                raise SetupError(f"the policy {described!r} is not built in ({known}): pass the object itself again")
            said = {**getattr(cls, "before", {}), **described}
            self._live[key] = cls(**{k: v for k, v in said.items() if k != "name"})
        self._last[id(described)] = (described, self._live[key])
        return self._live[key]


def _key(described: Any) -> str:
    return repr(sorted(described.items()))


def _jsonable(value: object) -> object:
    """The value where JSON has it (it has no infinity and no NaN), otherwise in words."""
    if value is None or isinstance(value, (str, int, float, bool)):
        return str(value) if isinstance(value, float) and not isfinite(value) else value
    words = _words(value)
    return words if len(words) <= LONG else f"{words[:LONG]}… #{_digest(words)}"


def _words(value: object) -> str:
    """The same text in every process, as far as the value's own ``repr`` allows."""
    if isinstance(value, (set, frozenset)):
        return f"{{{', '.join(sorted(map(_words, value)))}}}"
    code = getattr(value, "__code__", None)
    return f"{getattr(value, '__name__', '')} #{_digest(_body(code))}" if isinstance(code, CodeType) else repr(value)


__all__ = [
    "ACCEPTANCES", "BUILT_IN", "Repeated", "Strict", "Tolerant", "COMPLETION", "SCHEDULES", "Complete", "Speculative", "STALENESS", "WORKERS", "Batched", "Fixed", "Full", "Guarded", "Pipelined", "Policies", "RateBalanced", "Reflective", "Sequential",
    "ServerAware", "describe",
]  # fmt: skip
