"""Which tables a run has, and the columns of each, in the order they are shown.

Owns the names only. One rule a change must keep: a column, once there, keeps its name and its meaning: notebooks rely
on both.
"""

from __future__ import annotations

from collections.abc import Mapping


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


COLUMNS: Mapping[str, tuple[str, ...]] = {
    "jobs": _names(
        "job stage slot item kind parent artifact base version gap started_at ended_at seconds outcome item_outcome "
        "calls tokens dollars note stepped released_at inserted_at fate"
    ),
    "calls": _names(
        "call job stage item role key attempt started_at ended_at seconds outcome prompt_tokens completion_tokens "
        "tokens dollars finish model request text hedge"
    ),
    "artifacts": _names(
        "artifact at parents origin component item version mean coverage gate parent_sum child_sum outcome reason hash texts "
        "status bound"
    ),
    "items": _names(
        "item kind parent child component minibatch base batch tries updates stage place made_at ended_at seconds "
        "outcome reason status"
    ),
    "staleness": _names(
        "at item artifact stage where base version gap touched superseded counterpart action reason policy why target"
    ),
    "completion": _names(
        "at event item artifact job stage version scored wanted score bound rival rival_score saved reason examples late derived "
        "prefix prefix_score"
    ),
    "budget": _names("dimension limit spent reserved left"),
    "settings": _names("at knob old new by why"),
    "slots": _names("stage slots used_max used_now busy_s jobs waiting"),
    "scores": _names("artifact version example score"),
    "failures": _names("at what kind message stage job item call artifact split example raw"),
    "servers": _names("at endpoint running waiting kv_cache facts"),
    "reviews": _names("at policy seconds busy in_flight rates waiting wishes accepted tokens"),
    "samples": _names("at job stage item artifact split example outcome score output feedback"),
}

NAMES = tuple(COLUMNS)
