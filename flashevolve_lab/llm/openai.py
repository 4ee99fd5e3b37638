"""Any OpenAI-compatible server (vLLM, llama.cpp, hosted) through the `openai` package.

Owns the translation between the seam and HTTP: one attempt per call, no retry hidden in the client, errors by who should react.
One rule a change must keep: the key lives in the client only, and is cut out of every message.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from flashevolve_lab.errors import BadReply, ModelError, RateLimited, Refused, SetupError, Transient
from flashevolve_lab.llm.seam import Finish, Reply, Request

_FINISH: Mapping[str, Finish] = {"stop": "stop", "length": "length", "content_filter": "filter"}


class OpenAI:
    """A model behind an OpenAI-compatible URL.

    Args:
        base_url: Like ``"http://localhost:8000/v1"``; by default OpenAI's own.
        model: The model's name on that server.
        api_key: By default from the environment variable ``OPENAI_API_KEY``; servers of your own usually need none.
        timeout_s: Seconds until the client itself gives up (the gateway's deadline is normally shorter).
        price: Dollars per million (input, output) tokens; by default looked up for providers that `genai-prices` knows.
        context_tokens: The model's context, prompt and answer together; by default asked from the server (vLLM tells it).
        extra_body: Further fields of the request body, e.g. ``{"top_p": 0.9}``.
    """

    def __init__(
        self,
        base_url: str | None = None,
        model: str = "",
        *,
        api_key: str | None = None,
        timeout_s: float = 600.0,
        price: tuple[float, float] | None = None,
        context_tokens: int | None = None,
        extra_body: Mapping[str, Any] | None = None,
    ) -> None:
        if not isinstance(model, str) or not model:
            raise SetupError("OpenAI(model=…): expected the model's name, e.g. 'Qwen/Qwen3-8B'; got none")
        if base_url is not None and urlsplit(str(base_url)).scheme not in ("http", "https"):
            raise SetupError(f"OpenAI(base_url=…): expected a URL like 'http://localhost:8000/v1'; got {base_url!r}")
        self.base_url = base_url or "https://api.openai.com/v1"
        self.model = model
        self.price = price or _known_price(model, self.base_url)
        self.context_tokens = context_tokens
        self.timeout_s = timeout_s
        self.extra_body = dict(extra_body or {})
        self._key = api_key or os.environ.get("OPENAI_API_KEY") or ""
        if not self._key and base_url is None:
            raise SetupError(
                "OpenAI(): no key. Set the environment variable OPENAI_API_KEY, or pass api_key=…, or a base_url=…"
            )
        self._client: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def __repr__(self) -> str:
        return f"OpenAI({_public(self.base_url)!r}, model={self.model!r})"

    def describe(self) -> dict[str, Any]:
        """Kind, address and model; no key."""
        return {"kind": "openai", "base_url": _public(self.base_url), "model": self.model, "price": self.price}

    async def check(self) -> None:
        """Ask for the list of models: reachable, authorised, and the model is there."""
        import openai

        try:
            listed = await self._connected().get("/models", cast_to=object, options={"timeout": 10.0})
        except openai.NotFoundError:
            return  # a server without the listing
        except openai.AuthenticationError as error:
            raise SetupError(f"{_public(self.base_url)} refuses the key: set OPENAI_API_KEY or pass api_key=…") from error
        except openai.APIStatusError as error:
            raise SetupError(f"{_public(self.base_url)} answers {error.status_code}: {self._clean(str(error))}") from None
        except openai.APIConnectionError as error:
            where = _public(self.base_url)
            raise SetupError(f"no server answers at {where}: start it, or correct base_url=…") from error
        self._note_context(listed)
        names = [m.get("id") for m in listed.get("data", []) if isinstance(m, dict)] if isinstance(listed, dict) else []
        if names and self.model not in names:
            raise SetupError(f"{_public(self.base_url)} has no model {self.model!r}; it has {', '.join(map(str, names[:20]))}")

    def _note_context(self, listed: Any) -> None:
        """vLLM tells a model's context in its listing."""
        models = listed.get("data", []) if isinstance(listed, dict) else []
        for model in models:
            if self.context_tokens is None and isinstance(model, dict) and model.get("id") == self.model:
                size = model.get("max_model_len")
                self.context_tokens = size if isinstance(size, int) and size > 0 else None

    async def complete(self, request: Request) -> Reply:
        """One attempt."""
        import openai

        try:
            answer = await self._connected().post("/chat/completions", cast_to=object, body=self._body(request))
        except openai.RateLimitError as error:
            raise RateLimited(self._clean(str(error)), _retry_after(error.response.headers)) from None
        except openai.APITimeoutError:
            raise Transient(f"no answer within {self.timeout_s:g} s") from None
        except openai.APIConnectionError as error:
            raise Transient(
                self._clean(f"the connection to {_public(self.base_url)} broke: {error.__cause__ or error}")
            ) from None
        except openai.APIStatusError as error:
            raise self._status_error(error) from None
        except openai.OpenAIError as error:
            raise Transient(self._clean(str(error))) from None
        return _reply(answer)

    async def aclose(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None and self._loop is asyncio.get_running_loop():
            await client.close()

    def _connected(self) -> Any:
        """The client, made on the running loop at first use."""
        loop = asyncio.get_running_loop()
        if self._client is None or self._loop is not loop:
            import openai

            self._loop = loop
            self._client = openai.AsyncOpenAI(
                base_url=self.base_url,
                api_key=self._key or "none",
                max_retries=0,
                timeout=self.timeout_s,
                http_client=openai.DefaultAioHttpClient(),
            )
        return self._client

    def _body(self, request: Request) -> dict[str, Any]:
        messages = [{k: _sendable(v) for k, v in m.items()} for m in request.messages]
        body = {"model": self.model, "messages": messages, "max_tokens": request.max_tokens, **self.extra_body}
        if request.temperature is not None:
            body["temperature"] = request.temperature
        if request.choices:
            body["structured_outputs"] = {"choice": list(request.choices)}
        return body

    def _status_error(self, error: Any) -> ModelError:
        message = self._clean(f"{error.status_code}: {error}")
        return Transient(message) if error.status_code >= 500 or error.status_code in (408, 409) else Refused(message)

    def _clean(self, message: str) -> str:
        return message.replace(self._key, "[key]") if self._key else message


def _reply(answer: Any) -> Reply:
    try:
        choice = answer["choices"][0]
        text = choice["message"]["content"]
        usage = answer.get("usage") or {}
        prompt_tokens, completion_tokens = int(usage.get("prompt_tokens") or 0), int(usage.get("completion_tokens") or 0)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError):
        raise BadReply("the reply is not a chat completion", repr(answer)[:2000]) from None
    finish = _FINISH.get(str(choice.get("finish_reason")), "unknown")
    if finish == "filter":
        raise Refused("the provider's content filter stopped the reply")
    if not isinstance(text, str):
        raise BadReply("the reply has no text", repr(answer)[:2000])
    return Reply(_receivable(text), finish, prompt_tokens, completion_tokens, str(answer.get("model", "")))


def _sendable(text: str) -> str:
    """Text that UTF-8 can carry: a lone surrogate becomes a replacement character."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


_receivable = _sendable


def _known_price(model: str, base_url: str) -> tuple[float, float] | None:
    """Dollars per million (input, output) tokens from genai-prices' shipped table, or None for what it does not know."""
    from genai_prices import Usage, calc_price

    million = Usage(input_tokens=1_000_000, output_tokens=1_000_000)
    try:
        price = calc_price(million, model_ref=model, provider_api_url=base_url)
    except LookupError:
        return None
    return float(price.input_price), float(price.output_price)


def _retry_after(headers: Any) -> float | None:
    try:
        return max(0.0, float(headers.get("retry-after")))
    except (TypeError, ValueError):
        return None


def _public(url: str) -> str:
    """The address without a user name, password or query."""
    parts = urlsplit(url)
    host = (parts.hostname or "") + (f":{parts.port}" if parts.port else "")
    return urlunsplit((parts.scheme, host, parts.path, "", ""))
