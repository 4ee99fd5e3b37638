"""The instruction bank: which changes it offers, what it asks, and what it refuses."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from flashevolve_lab.algorithms.bank import Change, InstructionBank, lines_of
from flashevolve_lab.algorithms.proposing import Brief, Draft, Record
from flashevolve_lab.errors import BadReply, SetupError
from flashevolve_lab.llm.seam import Reply

LINES = ["Be brief.", "Name the mood.", "Answer in French.", "Think."]
REVIEWS = Path(__file__).resolve().parents[2] / "data" / "reviews"


class Scripted:
    """An asker that gives one reply and remembers the question."""

    def __init__(self, reply: str) -> None:
        self.reply = reply
        self.question = ""
        self.options: dict[str, Any] = {}

    async def complete(self, messages: Any, **options: Any) -> Reply:
        self.question, self.options = messages, options
        return Reply(self.reply)

    def ask(self, messages: Any, **options: Any) -> str:
        raise AssertionError("a proposer is asynchronous")


def brief(current: str = "Answer.", seed: int = 0) -> Brief:
    records = (Record("fine", "good", 1.0, "right"), Record("sad song", "happy", 0.0, "the answer is sad"))
    return Brief({"prompt": current, "other": "kept"}, "prompt", records, Random(seed))


def propose(bank: InstructionBank, given: Brief, reply: str) -> Draft:
    return asyncio.run(bank.propose(given, Scripted(reply)))


def offered(bank: InstructionBank, given: Brief) -> list[Change]:
    """The changes the bank draws for a brief like this one."""
    return list(bank.draw(given.current, given.draw))


def kinds(changes: Sequence[Change]) -> set[str]:
    return {change.words.rpartition("(")[2].split()[0] for change in changes}


def test_the_reply_is_constrained_to_the_words_of_the_candidates() -> None:
    bank = InstructionBank(LINES, candidates=3)
    llm = Scripted(offered(bank, brief())[0].words)
    asyncio.run(bank.propose(brief(), llm))
    assert llm.options["choices"] == [change.words for change in offered(bank, brief())]
    assert (len(llm.options["choices"]), llm.options["temperature"]) == (3, 0.0)


def test_every_candidate_fits_into_the_reply_even_at_one_byte_a_token() -> None:
    bank = InstructionBank(["Sei höflich. " * 40, *LINES], candidates=100)
    llm = Scripted(offered(bank, brief())[0].words)
    asyncio.run(bank.propose(brief(), llm))
    assert llm.options["max_tokens"] > max(len(words.encode()) for words in llm.options["choices"])


def test_the_question_shows_the_instruction_the_worst_rollout_and_each_change() -> None:
    bank = InstructionBank(LINES)
    words = [change.words for change in offered(bank, brief())]
    llm = Scripted(words[0])
    asyncio.run(bank.propose(brief(), llm))
    assert all(text in llm.question for text in ("Answer.", "sad song", "happy", "the answer is sad", *words))
    assert "fine" not in llm.question


def test_the_chosen_change_becomes_the_text() -> None:
    bank = InstructionBank(LINES)
    for change in offered(bank, brief()):
        assert propose(bank, brief(), change.words) == Draft(change.text, change.words)


def test_the_same_brief_gets_the_same_candidates() -> None:
    bank = InstructionBank(LINES)
    assert offered(bank, brief(seed=7)) == offered(bank, brief(seed=7))


def test_every_line_of_a_new_text_comes_from_the_parent_or_the_bank() -> None:
    bank = InstructionBank(LINES)
    for seed in range(50):
        for change in offered(bank, brief("Answer.\nThink.", seed)):
            assert set(lines_of(change.text)) <= {"Answer.", *LINES}


def test_no_change_leads_back_to_the_same_text_or_to_none() -> None:
    bank = InstructionBank(LINES, candidates=100)
    for current in ("Answer.", "Answer.\nThink.", "Be brief.", ""):
        texts = [change.text for change in bank.draw(current, Random(0))]
        assert current not in texts
        assert "" not in texts
        assert len(set(texts)) == len(texts)


def test_a_single_line_is_neither_dropped_nor_moved() -> None:
    assert kinds(InstructionBank(LINES, candidates=100).draw("Answer.", Random(0))) == {"add", "instead"}


def test_several_lines_can_be_added_to_replaced_dropped_and_moved() -> None:
    changes = InstructionBank(LINES, candidates=100).draw("Answer.\nThink.", Random(0))
    assert kinds(changes) == {"add", "instead", "drop", "move"}


def test_no_kind_of_change_crowds_out_the_others() -> None:
    bank = InstructionBank([f"Line {i}." for i in range(50)], candidates=4)
    met = [kinds(bank.draw("Answer.\nThink.", Random(seed))) for seed in range(100)]
    for kind in ("add", "instead", "drop", "move"):
        assert sum(kind in kinds_of_one for kinds_of_one in met) > 40


def test_an_instruction_never_grows_past_most_lines() -> None:
    bank = InstructionBank(LINES, candidates=100, most_lines=2)
    assert all(len(change.lines) <= 2 for change in bank.draw("Answer.\nThink.", Random(0)))


@pytest.mark.parametrize("reply", ["", "1", "the first", "Be brief. (add"])
def test_a_reply_that_is_none_of_the_changes_is_refused_with_the_raw_text(reply: str) -> None:
    with pytest.raises(BadReply, match="expected one of the 4 changes") as caught:
        propose(InstructionBank(LINES), brief(), reply)
    assert caught.value.raw == reply


@pytest.mark.parametrize("current", ["", " \n", "Be brief.", "Think.\nThink.", "\n".join(LINES)])
def test_there_is_always_a_change_to_choose(current: str) -> None:
    assert InstructionBank(LINES, most_lines=1).draw(current, Random(0))


def test_a_rollout_without_records_still_gets_a_proposal() -> None:
    bank = InstructionBank(LINES)
    words = bank.draw("Answer.", Random(0))[0].words
    assert propose(bank, Brief({"prompt": "Answer."}, "prompt", (), Random(0)), words).text


def test_braces_in_texts_are_shown_as_they_are() -> None:
    bank, given = InstructionBank(LINES), brief("Answer {input} {nothing}.")
    llm = Scripted(offered(bank, brief(given.current))[0].words)
    asyncio.run(bank.propose(given, llm))
    assert "Answer {input} {nothing}." in llm.question


def test_the_label_says_that_the_words_come_from_a_bank() -> None:
    label = InstructionBank(LINES).describe()["label"]
    assert "chooses and recombines from a shipped bank of 4 instructions" in label
    assert "cannot reflect freely" in label


def test_a_bank_reads_text_files_and_json_lines(tmp_path: Path) -> None:
    text, rows = tmp_path / "bank.txt", tmp_path / "bank.jsonl"
    text.write_text("\n\n".join(LINES), encoding="utf-8")
    rows.write_text("\n".join(json.dumps({"line": line, "label": "?"}) for line in LINES), encoding="utf-8")
    assert InstructionBank(text).lines == InstructionBank(str(rows)).lines == tuple(LINES)


def test_the_shipped_bank_loads_and_labels_each_line() -> None:
    rows = [json.loads(row) for row in (REVIEWS / "instructions.jsonl").read_text(encoding="utf-8").splitlines()]
    assert InstructionBank(REVIEWS / "instructions.jsonl").lines == tuple(row["line"] for row in rows)
    assert {row["label"] for row in rows} == {"helpful", "useless", "harmful"}


@pytest.mark.parametrize("lines", [[], ["one"], ["one", " one "], ["", "one"]])
def test_a_bank_of_fewer_than_two_different_lines_is_refused(lines: list[str]) -> None:
    with pytest.raises(SetupError, match="at least two different lines"):
        InstructionBank(lines)


@pytest.mark.parametrize("limits", [{"candidates": 1}, {"most_lines": 0}])
def test_limits_that_leave_no_choice_are_refused(limits: dict[str, int]) -> None:
    with pytest.raises(SetupError, match="candidates must be at least 2"):
        InstructionBank(LINES, **limits)


def test_a_bank_file_that_is_missing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="cannot read"):
        InstructionBank(tmp_path / "none.txt")


@pytest.mark.parametrize("row", ["{broken", '{"text": "a"}', '["a"]'])
def test_a_bank_row_without_a_line_is_refused(tmp_path: Path, row: str) -> None:
    path = tmp_path / "bank.jsonl"
    path.write_text(row, encoding="utf-8")
    with pytest.raises(SetupError, match="expected rows like"):
        InstructionBank(path)
