"""A model given as a function, and a role without one."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

import flashevolve_lab as lab
from flashevolve_lab.llm import chat
from flashevolve_lab.testing import llm_contract


def asked(model: Any, prompt: str = "hello") -> lab.Reply:
    return asyncio.run(model.complete(lab.Request(chat(prompt))))


def raises(code: int | None) -> Any:
    def function(messages: Any) -> str:
        error = RuntimeError("what the provider said")
        if code is not None:
            error.status_code = code  # type: ignore[attr-defined]
        raise error

    return function


def test_a_function_keeps_the_contract_of_a_model() -> None:
    llm_contract(lab.FunctionModel(lambda messages: messages[-1]["content"][:10]), failing=lab.FunctionModel(raises(500)))


def test_it_gets_plain_messages_in_a_thread_of_its_own() -> None:
    seen: list[Any] = []

    def function(messages: list[dict[str, str]]) -> str:
        seen.append((messages, threading.current_thread().name))
        return "yes"

    assert asked(lab.FunctionModel(function)).text == "yes"
    assert seen == [([{"role": "user", "content": "hello"}], "lab-function-model")]


@pytest.mark.parametrize(
    ("code", "kind"), [(429, lab.RateLimited), (400, lab.Refused), (401, lab.Refused), (503, lab.Transient), (None, lab.Transient)]
)
def test_what_it_raises_is_sorted_by_its_http_code(code: int | None, kind: type[Exception]) -> None:
    with pytest.raises(kind, match="RuntimeError: what the provider said"):
        asked(lab.FunctionModel(raises(code)))


def test_what_is_no_text_is_refused() -> None:
    with pytest.raises(lab.Refused, match="returned NoneType, not a text"):
        asked(lab.FunctionModel(lambda messages: None))  # type: ignore[arg-type,return-value]
    with pytest.raises(lab.SetupError, match="expected a function"):
        lab.FunctionModel("gpt")  # type: ignore[arg-type]


def test_its_name_is_the_models_or_the_functions() -> None:
    class Named:
        model = "openai/m"

        def __call__(self, messages: Any) -> str:
            return ""

    assert lab.FunctionModel(Named()).name == "openai/m"
    assert lab.FunctionModel(asked).name == "asked"  # type: ignore[arg-type]
    assert repr(lab.FunctionModel(asked, name="mine")) == "FunctionModel(mine)"  # type: ignore[arg-type]


def test_no_model_refuses_and_says_what_to_give() -> None:
    with pytest.raises(lab.Refused, match=r"no model was given for the role 'task' \(it has its own\): lab.start\(…, llm=…\)"):
        asked(lab.NoModel("it has its own"))
    assert lab.NoModel().describe()["in_process"] and "not counted" in repr(lab.NoModel())
