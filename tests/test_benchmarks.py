"""The benchmarks say what they measure, and their verdicts are about what was measured."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "benchmarks"


def test_every_script_has_a_row_in_the_readme() -> None:
    rows = [line for line in (FOLDER / "README.md").read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    assert sorted(row.split("`")[1] for row in rows) == sorted(path.name for path in FOLDER.glob("*.py"))


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ({"cpu_s": 19.0, "lab_hours": 3.0, "calls": 49_999}, "49,999 calls are fewer than 50,000"),
        ({"cpu_s": 19.0, "lab_hours": 2.9, "calls": 50_000}, "2.90 lab hours are fewer than 3"),
        ({"cpu_s": 20.1, "lab_hours": 3.0, "calls": 100_000}, "20.1 s of CPU are more than 20"),
        ({"cpu_s": 19.9, "lab_hours": 3.0, "calls": 50_000}, ""),
    ],
)
def test_virtual_times_target_is_held_against_whole_runs_and_nothing_is_extrapolated(
    row: dict[str, float], sentence: str
) -> None:
    spec = importlib.util.spec_from_file_location("virtual_time", FOLDER / "virtual_time.py")
    assert spec is not None and spec.loader is not None
    virtual_time = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(virtual_time)
    assert virtual_time.misses([row]) == [sentence] * bool(sentence)
