"""A text is taken out of a model's reply whole, or the reply is refused with its kind and its raw text kept."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashevolve_lab.algorithms.reflecting import TAGS, extract, fenced
from flashevolve_lab.errors import BadReply
from flashevolve_lab.llm import Reply


def block(text: str, tag: str = "", fence: str = "```") -> str:
    """A fenced block."""
    return f"{fence}{tag}\n{text}\n{fence}"


NESTED = "Answer like this:\n```python\nprint(1)\n```\nand nothing else."
TAKEN = {
    "a plain block": (block("Be brief."), "Be brief."),
    "with words around it": (f"I revised it.\n\n{block('Be brief.')}\n\nHope this helps!", "Be brief."),
    "a language tag is not part of the text": (block("Be brief.", "markdown"), "Be brief."),
    "a tag in capitals": (block("Be brief.", "TEXT"), "Be brief."),
    "a tag after a space": (block("Be brief.", " text"), "Be brief."),
    "a first word is not a tag": (block("the capital.", "Name"), "Name\nthe capital."),
    "a first sentence is not a tag": (block("Be brief.", "You are a poet."), "You are a poet.\nBe brief."),
    "a tag's word in a sentence is not a tag": (block("x", "text messages are short"), "text messages are short\nx"),
    "a tag's word on its own line is text": (block("json\nis a format."), "json\nis a format."),
    "a nested example stays inside": (block(NESTED), NESTED),
    "two nested examples": (block(f"{NESTED}\n{NESTED}"), f"{NESTED}\n{NESTED}"),
    "a longer fence around bare ones": (block("Say:\n```\nhi\n```", fence="````"), "Say:\n```\nhi\n```"),
    "a longer fence around a tagged one": (block(NESTED, fence="`````"), NESTED),
    "a closing fence longer than the opening one": ("```\nBe brief.\n`````", "Be brief."),
    "an indented fence": ("  ```\nBe brief.\n  ```", "Be brief."),
    "one line": ("```Be brief.```", "Be brief."),
    "inline code is no fence": (f"Use `x` and ``y``.\n{block('Use `x`.')}", "Use `x`."),
    "windows line ends": ("Here:\r\n```text\r\nBe brief.\r\nBe kind.\r\n```\r\n", "Be brief.\nBe kind."),
    "old line ends": ("```\rBe brief.\rBe kind.\r```", "Be brief.\nBe kind."),
    "blank lines inside": (block("one\n\n\ntwo"), "one\n\n\ntwo"),
    "spaces around": (block("\n\n  Be brief.  \n\n"), "Be brief."),
    "right to left": (block("\u202eكن موجزا\u202c"), "\u202eكن موجزا\u202c"),
    "a lone surrogate": (block("a \ud800 b"), "a \ud800 b"),
    "control characters": (block("a\x00b\x1b[31mc"), "a\x00b\x1b[31mc"),
    "a form feed and other separators do not end a line": (block("a\x0c```\x0bb\u2028```\x85c"), "a\x0c```\x0bb\u2028```\x85c"),
    "markup is text": (block("</script><b>&amp;"), "</script><b>&amp;"),
    "tildes are no fence": (block("~~~\nx\n~~~"), "~~~\nx\n~~~"),
    "thinking in front": (f"<think>maybe</think>\n{block('Be brief.')}", "Be brief."),
    "thinking with a draft in it": (f"<think>{block('A draft.')}</think>\n{block('Be brief.')}", "Be brief."),
    "thinking with an open fence in it": (f"<think>\n```\noh no</think>\n{block('Be brief.')}", "Be brief."),
    "thinking in capitals": (f"<THINKING>hm\n</THINKING>{block('Be brief.')}", "Be brief."),
    "thinking twice": (f"<think>a</think><think>b</think>\n{block('Be brief.')}", "Be brief."),
    "thinking that the template opened": (f"maybe\n{block('A draft.')}\n</think>\n{block('Be brief.')}", "Be brief."),
    "thinking after words": (f"Well. <think>{block('A draft.')}</think>\n{block('Be brief.')}", "Be brief."),
    "tags inside the text belong to the text": (
        block("Reason in <think>…</think>, then answer."),
        "Reason in <think>…</think>, then answer.",
    ),
    "an open tag inside the text": (block("Begin with <think>."), "Begin with <think>."),
    "thinking in front and tags in the text": (f"<think>a</think>\n{block('Use <think>x</think>.')}", "Use <think>x</think>."),
}
REFUSED = {
    "nothing": ("", "no_text"),
    "no block": ("Be brief.", "no_text"),
    "only thinking": ("<think>hm</think>", "no_text"),
    "a block only in the thinking": (f"<think>{block('A draft.')}</think> I give up.", "no_text"),
    "a block only in thinking after words": (f"Well. <think>\n{block('A draft.')}\n</think> I give up.", "no_text"),
    "an empty block": ("```\n```", "empty"),
    "a blank block": ("```text\n \n\t\n```", "empty"),
    "never closed": ("```\nBe brief.", "unclosed"),
    "closed with too short a fence": ("````\nBe brief.\n```", "unclosed"),
    "a nested example never closed": ("```\nSay:\n```python\nprint(1)\n```", "unclosed"),
    "thinking never closed": (f"<think>maybe\n{block('A draft.')}", "unclosed"),
    "thinking opened again and never closed": (f"<think>a</think>\n<think>\n{block('A draft.')}", "unclosed"),
    "two blocks side by side": (f"{block('One.')}\n{block('Two.')}", "ambiguous"),
    "two blocks with words between": (f"{block('One.')}\nor\n{block('Two.', 'text')}", "ambiguous"),
    "a bare example inside splits the block": (block("Say:\n```\nhi\n```\nbye"), "ambiguous"),
    "two one-line blocks": ("```One.```\n```Two.```", "ambiguous"),
    "an unopened closing tag inside the text": (block("End with </think>\n```\nBe brief.", fence="````"), "unclosed"),
    "a block and an open fence": (f"{block('One.')}\n```\nTwo", "unclosed"),
}


@pytest.mark.parametrize("case", TAKEN)
def test_a_text_is_taken_whole(case: str) -> None:
    reply, text = TAKEN[case]
    assert extract(Reply(reply)) == text


@pytest.mark.parametrize("case", REFUSED)
def test_in_doubt_a_reply_is_refused_with_its_kind_and_its_raw_text(case: str) -> None:
    reply, why = REFUSED[case]
    with pytest.raises(BadReply) as caught:
        extract(Reply(reply))
    assert (caught.value.why, caught.value.raw) == (why, reply)


@pytest.mark.parametrize("case", TAKEN)
def test_a_truncated_reply_is_refused_whatever_it_says(case: str) -> None:
    with pytest.raises(BadReply, match="max_tokens") as caught:
        extract(Reply(TAKEN[case][0], finish="length"))
    assert caught.value.why == "truncated"


@pytest.mark.parametrize("tag", sorted(TAGS))
def test_every_tag_is_left_out(tag: str) -> None:
    assert extract(Reply(block("Be brief.", tag))) == "Be brief."


LINES = st.lists(
    st.one_of(
        st.sampled_from(["Be brief.", "", "```", "````", "```python", "``", "<think>", "</think>", "text", "\u202e x"]),
        st.text(st.characters(exclude_characters="\r\n"), max_size=8),
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=120, deadline=None, derandomize=True, database=None)
@given(LINES)
def test_what_is_taken_stands_in_the_reply_as_it_is(lines: list[str]) -> None:
    reply = "\n".join(lines)
    try:
        text = extract(Reply(reply))
    except BadReply as error:
        assert error.raw == reply
    else:
        assert text and text in reply
        assert text == text.strip()


@settings(max_examples=80, deadline=None, derandomize=True, database=None)
@given(LINES)
def test_a_text_in_a_fence_longer_than_any_in_it_comes_back_or_is_refused_but_is_never_changed(lines: list[str]) -> None:
    text = "\n".join(lines)
    try:
        assert extract(Reply(fenced(text))) == text.strip()
    except BadReply as error:
        assert error.why in ("unclosed", "empty", "ambiguous")
