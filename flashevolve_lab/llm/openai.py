"""Any OpenAI-compatible server (vLLM, llama.cpp, hosted) through the `openai` package.

Owns the translation between the seam and HTTP: one attempt per call, no retry hidden in the client, errors by who should react.
One rule a change must keep: the key lives in the client only, and a secret one is cut out of everything a server says.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Mapping, Sequence
from email.utils import parsedate_to_datetime
from math import isfinite
from typing import Any
from urllib.parse import urlsplit, urlunsplit
from weakref import WeakKeyDictionary

from flashevolve_lab.errors import BadReply, ModelError, RateLimited, Refused, SetupError, Transient
from flashevolve_lab.llm.metrics import seen
from flashevolve_lab.llm.seam import Finish, Reply, Request
from flashevolve_lab.llm.simulator import LABEL

MOST = 100_000  # connections: the gateway is what limits (None would mean aiohttp's own 100)
SECRET = 12  # a shorter key ("EMPTY", "x") is no secret: cutting it out would only spoil what models say
HOSTED = "api.openai.com"
RAW = 2000  # characters kept of an answer that cannot be used
_FINISH: Mapping[str, Finish] = {"stop": "stop", "length": "length", "content_filter": "filter"}


class OpenAI:
    """A model behind an OpenAI-compatible URL.

    A request's ``choices`` constrain the reply where the server takes ``structured_outputs`` (vLLM does); OpenAI's own server
    does not and is not sent them, so a program must still check what it said.

    Args:
        base_url: Like ``"http://localhost:8000/v1"``; by default OpenAI's own.
        model: The model's name on that server.
        api_key: By default from the environment variable ``OPENAI_API_KEY``, which is sent to whatever ``base_url`` names (as
            OpenAI's own client does); servers of your own usually need none: ``api_key="none"`` keeps yours to yourself.
        timeout_s: Seconds until the client itself gives up (the gateway's deadline is normally shorter).
        price: Dollars per million (input, output) tokens; by default looked up for providers that `genai-prices` knows.
        context_tokens: The model's context, prompt and answer together; by default asked from the server (vLLM tells it).
        extra_body: Further fields of the request body, e.g. ``{"top_p": 0.9}``.
        metrics: Read vLLM's ``/metrics`` of this server into a run (every two seconds while calls are in flight). Ask for it only
            of a server that has them; `vllm` does.
        priority: Send each request's priority, rounded: for a vLLM with ``--scheduling-policy priority`` (any other refuses it).
    """

    per_loop = True  # see `LLM`: closing concerns the running loop's connections only

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
        metrics: bool = False,
        priority: bool = False,
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
        self.metrics, self.priority = metrics, priority
        self._key = api_key or os.environ.get("OPENAI_API_KEY") or ""
        if not self._key and base_url is None:
            raise SetupError(
                "OpenAI(): no key. Set the environment variable OPENAI_API_KEY, or pass api_key=…, or a base_url=…"
            )
        self._simulated = False  # until a server says so
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, Any] = WeakKeyDictionary()  # each run has a loop of its own

    def __repr__(self) -> str:
        return f"OpenAI({_public(self.base_url)!r}, model={self.model!r})"

    def describe(self) -> dict[str, Any]:
        """Kind, address and model; no key. Once `check` has met the simulated server, that it is one."""
        facts = {"kind": "openai", "base_url": _public(self.base_url), "model": self.model, "price": self.price}
        return {**facts, "simulated": True, "label": LABEL} if self._simulated else facts

    async def check(self) -> None:
        """Ask for the list of models: reachable, authorised, the model is there, and whether it is a simulated one."""
        import openai

        try:
            listed = await self._connected().get("/models", cast_to=object, options={"timeout": 10.0})
        except openai.NotFoundError:
            return  # a server without the listing
        except openai.AuthenticationError:
            raise SetupError(f"{_public(self.base_url)} refuses the key: set OPENAI_API_KEY or pass api_key=…") from None
        except openai.APIStatusError as error:
            raise SetupError(f"{_public(self.base_url)} answers {error.status_code}: {self._clean(str(error))}") from None
        except openai.APIConnectionError as error:
            where = _public(self.base_url)
            raise SetupError(f"no server answers at {where}: start it, or correct base_url=…") from error
        except (json.JSONDecodeError, UnicodeDecodeError):
            raise SetupError(
                f"{_public(self.base_url)}: its list of models is not JSON; is base_url=… the API's address?"
            ) from None
        except ValueError as error:
            raise SetupError(f"{_public(self.base_url)} cannot be asked: {self._unsendable(error)}") from None
        models = _models(listed)
        self._note_context(models)
        self._simulated = any(m.get("id") == self.model and m.get("owned_by") == LABEL for m in models)
        names = [str(model.get("id")) for model in models]
        if names and self.model not in names:
            has = self._clean(", ".join(names[:20]))
            raise SetupError(f"{_public(self.base_url)} has no model {self.model!r}; it has {has}")

    def _note_context(self, models: Sequence[Mapping[str, Any]]) -> None:
        """vLLM tells a model's context in its listing."""
        for model in models:
            if self.context_tokens is None and model.get("id") == self.model:
                size = model.get("max_model_len")
                self.context_tokens = size if isinstance(size, int) and size > 0 else None

    async def complete(self, request: Request) -> Reply:
        """One attempt."""
        import openai

        body = self._body(request)
        try:
            answer = await self._connected().post("/chat/completions", cast_to=object, body=body)
        except openai.RateLimitError as error:
            raise RateLimited(self._clean(str(error)), _retry_after(error.response.headers)) from None
        except openai.APIConnectionError as error:  # a timeout is one too, and so is a refused connection
            broken = _broken_by(error)
            if isinstance(error, openai.APITimeoutError) and not broken:
                raise Transient(f"no answer within {self.timeout_s:g} s") from None
            where = _public(self.base_url)
            raise Transient(self._clean(f"the connection to {where} broke: {broken or error.__cause__ or error}")) from None
        except openai.APIStatusError as error:
            raise self._status_error(error) from None
        except openai.OpenAIError as error:
            raise Transient(self._clean(str(error))) from None
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raw = self._clean(str(getattr(error, "doc", "")))[:RAW]
            raise BadReply(f"the reply is not JSON: {self._clean(str(error))[:200]}", raw) from None
        except ValueError as error:
            raise Refused(f"the request cannot be sent: {self._unsendable(error)}") from None
        return self._reply(answer)

    def _reply(self, answer: Any) -> Reply:
        """The reply in an answer; the key is cut out of it too, should the server say it."""
        try:
            choice = answer["choices"][0]
            text = choice["message"]["content"]
            usage = answer.get("usage") or {}
            prompt_tokens, completion_tokens = int(usage.get("prompt_tokens") or 0), int(usage.get("completion_tokens") or 0)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError):
            raise BadReply("the reply is not a chat completion", self._clean(repr(answer))[:RAW]) from None
        finish = _FINISH.get(str(choice.get("finish_reason")), "unknown")
        if finish == "filter":
            raise Refused("the provider's content filter stopped the reply")
        if not isinstance(text, str):
            raise BadReply("the reply has no text", self._clean(repr(answer))[:RAW])
        model = self._clean(str(answer.get("model", "")))
        return Reply(self._clean(_receivable(text)), finish, prompt_tokens, completion_tokens, model)

    async def seen(self) -> Mapping[str, float] | None:
        """What the server tells of itself (see `LLM`); None unless ``metrics`` was asked for.

        Raises:
            ModelError: when it does not tell.
        """
        if not self.metrics:
            return None
        import openai

        try:
            page = await self._connected().get(self.metrics_url, cast_to=str, options={"timeout": 10.0})
        except openai.OpenAIError as error:
            raise Transient(f"{_public(self.metrics_url)} cannot be read: {self._clean(str(error))[:200]}") from None
        return seen(str(page))

    @property
    def metrics_url(self) -> str:
        """Where vLLM tells its metrics: beside ``/v1``."""
        return self.base_url.rstrip("/").removesuffix("/v1") + "/metrics"

    async def aclose(self) -> None:
        """Close the running loop's connections; other runs on this model keep theirs."""
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.close()

    def _connected(self) -> Any:
        """The running loop's client, made at its first use."""
        loop = asyncio.get_running_loop()
        if loop not in self._clients:
            import httpx2
            import openai

            self._clients[loop] = openai.AsyncOpenAI(
                base_url=self.base_url,
                api_key=self._key or "none",
                max_retries=0,
                timeout=self.timeout_s,
                http_client=openai.DefaultAioHttpClient(
                    limits=httpx2.Limits(max_connections=MOST, max_keepalive_connections=MOST)
                ),  # the gateway limits
            )
        return self._clients[loop]

    def _body(self, request: Request) -> dict[str, Any]:
        messages = [{k: _sendable(v) for k, v in m.items()} for m in request.messages]
        body = {"model": self.model, "messages": messages, "max_tokens": request.max_tokens, **self.extra_body}
        if request.temperature is not None:
            body["temperature"] = request.temperature
        if self.priority:
            body["priority"] = round(request.priority)
        if request.choices and urlsplit(self.base_url).hostname != HOSTED:
            body["structured_outputs"] = {"choice": [_sendable(choice) for choice in request.choices]}
        return body

    def _status_error(self, error: Any) -> ModelError:
        message = self._clean(f"{error.status_code}: {error}")
        return Transient(message) if error.status_code >= 500 or error.status_code in (408, 409) else Refused(message)

    def _clean(self, message: str) -> str:
        return message.replace(self._key, "[key]") if len(self._key) >= SECRET else message

    def _unsendable(self, error: ValueError) -> str:
        """Why a request could not even be written down: mostly a key with a character that HTTP cannot carry."""
        if isinstance(error, UnicodeEncodeError):
            return "the key has a character that HTTP cannot carry: copy it again, or pass api_key=…"
        return self._clean(f"{type(error).__name__}: {error}")


def _models(listed: Any) -> list[Mapping[str, Any]]:
    """The entries of a list of models; servers differ."""
    models = listed.get("data") if isinstance(listed, dict) else None
    return [model for model in models if isinstance(model, dict)] if isinstance(models, list) else []


def _broken_by(error: BaseException | None) -> str:
    """What the network said, when it said more than that time ran out."""
    while error is not None:
        if isinstance(error, OSError) and not isinstance(error, TimeoutError):
            return str(error)
        error = error.__cause__ or error.__context__
    return ""


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
    """Seconds to wait as a server asked: a number, or a date, reckoned from the server's own clock where it tells it."""
    asked = headers.get("retry-after")
    try:
        seconds = float(asked)
    except (TypeError, ValueError):
        until, now = _moment(asked), _moment(headers.get("date"))
        if until is None:
            return None
        seconds = until - (time.time() if now is None else now)
    return max(0.0, seconds) if isfinite(seconds) else None


def _moment(date: Any) -> float | None:
    try:
        return parsedate_to_datetime(date).timestamp()
    except (TypeError, ValueError, OverflowError):
        return None


def _public(url: str) -> str:
    """The address without a user name, password or query."""
    parts = urlsplit(url)
    host = (parts.hostname or "") + (f":{parts.port}" if parts.port else "")
    return urlunsplit((parts.scheme, host, parts.path, "", ""))
