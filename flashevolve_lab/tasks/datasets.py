"""Ready tasks over data folders: ``load_task("reviews", "data/reviews")``.

Owns reading rows of JSON lines and, per data set, the seed instruction, the program and a metric whose feedback names
what was expected. Ships no data and downloads none: the caller says where the folder is. One rule a change must keep:
an answer of a model is compared as text or as a parsed number, never evaluated as code.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from flashevolve_lab.errors import SetupError
from flashevolve_lab.tasks.task import Prompt, Score, Task

Row = Mapping[str, Any]

NUMBER = re.compile(r"(?<!\d)[-+−]?\d[\d,]*(?:\.\d+)?(?:[eE][-+]?\d+)?|[-+−]?\.\d+")
QUOTED = 60
"""Characters of a model's answer that a feedback repeats."""


@dataclass(frozen=True, slots=True)
class Dataset:
    """How the rows of a data set become a task.

    Attributes:
        train, val: File names inside the folder.
        question, answer: Field names of a row.
        seed: The starting instruction.
        metric: ``(row, output) -> Score``.
        max_tokens: Upper bound of an answer, in tokens.
        choices: Allowed answers, where the server can constrain them.
    """

    train: str
    val: str
    question: str
    answer: str
    seed: str
    metric: Callable[[Row, Any], Score]
    max_tokens: int
    choices: tuple[str, ...] = ()


def load_task(name: str, path: str | os.PathLike[str], *, n_train: int | None = None, n_val: int | None = None) -> Task:
    """A ready `Task` over a data folder.

    Args:
        name: ``"reviews"`` (two labels, answers constrained to them), ``"formula"`` (numeric answers) or
            ``"symptom_diagnosis"`` (22 labels).
        path: The folder that holds the files of the data set.
        n_train: Take only the first rows for training; None takes all.
        n_val: Likewise for validation.

    Raises:
        SetupError: unknown name, missing or empty file, a row that is not JSON or lacks a field; says what to do.
    """
    if name not in DATASETS:
        raise SetupError(f"load_task: no data set is called {name!r}. Choose one of: {', '.join(DATASETS)}")
    data, folder = DATASETS[name], Path(path).expanduser()
    if not folder.is_dir():
        raise SetupError(f"load_task({name!r}): {folder} is no folder. Give the one with {data.train} and {data.val}")
    fields = (data.question, data.answer)
    return Task(
        train=_first(read_rows(folder / data.train, fields), n_train, "n_train"),
        val=_first(read_rows(folder / data.val, fields), n_val, "n_val"),
        seed=data.seed,
        program=Prompt(input=data.question, max_tokens=data.max_tokens, choices=data.choices),
        metric=data.metric,
        name=name,
    )


def read_rows(path: Path, fields: Sequence[str]) -> list[dict[str, Any]]:
    """The rows of a JSON-lines file, each with the given fields; blank lines are skipped.

    Raises:
        SetupError: with the file and the line number.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise SetupError(f"{path} does not exist. Check the folder given to load_task") from error
    except (OSError, UnicodeDecodeError) as error:
        raise SetupError(f"{path} cannot be read ({error}). Expected a UTF-8 file of JSON lines") from error
    lines = enumerate(text.split("\n"), start=1)
    rows = [_row(f"{path}, line {number}", line, fields) for number, line in lines if line.strip()]
    if not rows:
        raise SetupError(f"{path} is empty. Expected one JSON object a line with the fields {', '.join(fields)}")
    return rows


def number_in(text: str) -> float | None:
    """The last number in a text, without thousands separators; None when there is none."""
    found = NUMBER.findall(text)
    return float(found[-1].replace(",", "").replace("−", "-")) if found else None


def label_score(row: Row, output: Any, *, answer: str = "answer") -> Score:
    """1 when the output is the row's label, ignoring case, spaces and a final full stop."""
    expected, given = str(row[answer]), str(output)
    if _plain(given) == _plain(expected):
        return Score(1.0, f"Correct: the answer is {expected!r}.")
    return Score(0.0, f"Wrong: the right answer is {expected!r}, the given one was {_quoted(given)}.")


def number_score(row: Row, output: Any, *, answer: str = "target", relative: float = 0.001) -> Score:
    """1 when the last number of the output is the row's, within 0.01 or ``relative`` of it (rounding is forgiven)."""
    expected, given = float(str(row[answer]).replace(",", "")), number_in(str(output))
    if given is None:
        return Score(0.0, f"Wrong: the answer {_quoted(str(output))} holds no number; expected {expected:.10g}.")
    if abs(given - expected) <= max(0.01, relative * abs(expected)) + 1e-9:
        return Score(1.0, f"Correct: expected {expected:.10g}, got {given:.10g}.")
    return Score(0.0, f"Wrong: expected {expected:.10g}, got {given:.10g}.")


def _row(where: str, line: str, fields: Sequence[str]) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise SetupError(f"{where} is not JSON ({error}). Repair or remove the line") from error
    if not isinstance(row, dict):
        raise SetupError(f"{where}: expected a JSON object, got {type(row).__name__}. Repair or remove the line")
    if lacking := [field for field in fields if field not in row]:
        raise SetupError(f"{where} lacks {', '.join(lacking)}; it has {', '.join(row)}. Is it the right data set?")
    return row


def _first(rows: list[dict[str, Any]], count: int | None, name: str) -> list[dict[str, Any]]:
    if count is not None and count < 1:
        raise SetupError(f"{name}: expected at least 1, or None for all {len(rows)}; got {count}")
    return rows[:count]


def _plain(text: str) -> str:
    return " ".join(text.split()).rstrip(".").casefold()


def _quoted(text: str) -> str:
    return repr(text if len(text) <= QUOTED else text[: QUOTED - 1] + "…")


DATASETS: Mapping[str, Dataset] = {
    "reviews": Dataset(
        train="train.jsonl",
        val="val.jsonl",
        question="input",
        answer="answer",
        seed="Answer the question.",
        metric=label_score,
        max_tokens=8,
        choices=("positive", "negative"),
    ),
    "formula": Dataset(
        train="formula_train_subset_500.jsonl",
        val="formula_val_subset_300.jsonl",
        question="context",
        answer="target",
        seed="Answer the question with a number.",
        metric=partial(number_score, answer="target"),
        max_tokens=512,
    ),
    "symptom_diagnosis": Dataset(
        train="train.jsonl",
        val="val.jsonl",
        question="question",
        answer="answer",
        seed="Name the diagnosis that fits the symptoms. Answer with its name only.",
        metric=label_score,
        max_tokens=64,
    ),
}
"""The data sets by name: the place to add one."""
