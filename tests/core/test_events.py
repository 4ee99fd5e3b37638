"""Every event survives JSON; what a newer version wrote is refused with advice."""

from __future__ import annotations

import json
from dataclasses import MISSING, fields
from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashevolve_lab.core import Event, Spend, decode, encode, events
from flashevolve_lab.errors import LogError

LOW = "".join(map(chr, range(0xDC00, 0xE000)))
TEXTS = st.one_of(
    st.text(st.characters(exclude_characters=LOW)),  # lone high surrogates included; a high before a low one would be a pair
    st.text(st.characters(exclude_categories=["Cs"]), max_size=5).map(lambda text: text + "\udfff"),
    st.sampled_from(["\x00blob:12", "</script>", "\u202e\u2066", "\x00\x1b[0m\r\n", "\u2028", "😀\ud83d"]),
)
NUMBERS = st.one_of(st.integers(-(2**60), 2**60), st.floats(allow_nan=False, allow_infinity=False))
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=6,
)
SPENDS = st.builds(
    Spend, st.integers(0, 10**9), st.integers(0, 10**9), st.integers(0, 10**9), st.floats(0, 1e6), st.integers(0, 10**6)
)
BY_NAME: dict[str, st.SearchStrategy[Any]] = {
    "components": st.dictionaries(TEXTS, TEXTS, max_size=3),
    "scores": st.dictionaries(st.integers(0, 999).map(str), st.floats(-1, 1), max_size=3),
    "budget": st.dictionaries(TEXTS, st.floats(0, 1e9), max_size=3),
}
BY_HINT: dict[Any, st.SearchStrategy[Any]] = {
    str: TEXTS, int: st.integers(-(2**60), 2**60), float: st.floats(allow_nan=False, allow_infinity=False), bool: st.booleans(),
    Any: JSON, Spend: SPENDS, tuple[str, ...]: st.lists(TEXTS, max_size=3).map(tuple), int | None: st.none() | st.integers(0, 99),
    float | None: st.none() | st.floats(0, 1), tuple[int, ...]: st.lists(st.integers(0, 999), max_size=3).map(tuple),
}  # fmt: skip
KINDS = get_args(Event)


def values_of(kind: type, name: str, hint: Any) -> st.SearchStrategy[Any]:
    """Values for a field, by its name or its type; a type this test does not know fails here."""
    if name in BY_NAME:
        return BY_NAME[name]
    if hint in BY_HINT:
        return BY_HINT[hint]
    choices = get_args(hint)
    if choices and all(isinstance(choice, str) for choice in choices):
        return st.sampled_from(choices)
    assert "Mapping[str" in str(hint), f"{kind.__name__}.{name}: {hint} is new here; say how it becomes JSON"
    return st.dictionaries(TEXTS, JSON, max_size=3)


def events_of(kind: type) -> st.SearchStrategy[Any]:
    """Any event of a kind."""
    hints = get_type_hints(kind, vars(events))
    return st.builds(kind, **{f.name: values_of(kind, f.name, hints[f.name]) for f in fields(kind)})


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@settings(max_examples=15, deadline=None, derandomize=True, database=None)
@given(data=st.data())
def test_every_event_survives_json(kind: type, data: st.DataObject) -> None:
    event = data.draw(events_of(kind))
    name, body = encode(event)
    text = json.dumps(body, ensure_ascii=True, allow_nan=False)
    assert text.isascii()
    back = decode(name, json.loads(text))
    assert back == event
    assert {f.name: type(getattr(back, f.name)) for f in fields(back)} == {
        f.name: type(getattr(event, f.name)) for f in fields(event)
    }


def test_an_unknown_kind_is_refused_with_advice() -> None:
    with pytest.raises(LogError, match="'Reincarnated'.*newer"):
        decode("Reincarnated", {})


def test_an_unknown_field_is_refused_with_advice() -> None:
    with pytest.raises(LogError, match="Paused.*newer"):
        decode("Paused", {"by": "user", "mood": "calm"})


def test_a_missing_field_without_a_default_is_refused() -> None:
    with pytest.raises(LogError, match="JobLost"):
        decode("JobLost", {})


def test_a_missing_field_with_a_default_is_an_older_log_and_is_read() -> None:
    assert decode("Paused", {}) == events.Paused("user")


def test_an_amount_with_a_dimension_too_many_is_refused() -> None:
    body = {"job": "j0", "stage": "s", "slot": 0, "item": "p0", "version": 0, "reserved": [1, 2, 3, 4.0, 5, 6]}
    with pytest.raises(LogError, match="JobStarted"):
        decode("JobStarted", body)


def test_every_field_that_a_later_version_added_has_a_default() -> None:
    """The required fields of schema 1: a further one would keep logs written before from opening. New kinds may be added below."""
    assert events.SCHEMA == 1
    required = {kind.__name__: " ".join(f.name for f in fields(kind) if _required(f)) for kind in KINDS}
    assert {kind: required[kind] for kind in REQUIRED_IN_SCHEMA_1} == REQUIRED_IN_SCHEMA_1


def _required(f: Any) -> bool:
    return f.default is MISSING and f.default_factory is MISSING


REQUIRED_IN_SCHEMA_1 = {
    "RunStarted": "run created seed clock algorithm stages settings budget task llm",
    "RunResumed": "created",
    "SettingChanged": "knob old new",
    "Stepped": "jobs",
    "Warned": "kind message",
    "ItemMade": "item kind stage base batch data",
    "ItemQueued": "item stage",
    "ItemEnded": "item outcome",
    "JobStarted": "job stage slot item version",
    "JobFinished": "job",
    "JobFailed": "job kind message",
    "JobAbandoned": "job reason",
    "JobLost": "job",
    "CallStarted": "call job role key attempt reserved",
    "CallFinished": "call outcome spent",
    "SampleScored": "job artifact split example score",
    "SampleFailed": "job artifact split example kind message",
    "ArtifactMade": "artifact components hash parents origin",
    "Gated": "item artifact parent passed first parent_sum child_sum",
    "StalenessJudged": "item artifact stage where base version gap touched superseded counterpart action reason policy",
    "Committed": "version artifact item batch scores examples",
    "DepthChanged": "old new why",
    "LimitChanged": "endpoint old new why",
    "ServerSeen": "endpoint running waiting",
    "RunStopped": "kind reason",
}
