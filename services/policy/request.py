"""What a completion request asks for, checked. Unknown fields are ignored; wrong ones are named."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from libs.learning.engine.sampling import Sampling
from services.policy.errors import invalid

_AT = re.compile(r" - at `\$\.?(.*)`$")
MAX_STOPS = 16
MAX_TOP_LOGPROBS = 20

Temperature = Annotated[float, Meta(ge=0, le=2)]
TopP = Annotated[float, Meta(gt=0, le=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Positive = Annotated[int, Meta(ge=1)]
Choices = Annotated[int, Meta(ge=1, le=128)]
Tops = Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)]
Stop = Annotated[str, Meta(min_length=1, max_length=1024)]
Bias = Annotated[float, Meta(ge=-100, le=100)]


R = TypeVar("R", bound="Common")


class ChatMessage(msgspec.Struct, omit_defaults=True):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[Any] | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    name: str | None = None


class StreamOptions(msgspec.Struct):
    include_usage: bool = False


class Common(msgspec.Struct, kw_only=True):
    """Fields of both completion forms. null means the default, as OpenAI's clients send it."""

    model: str | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: int | None = None  # as vLLM has it: 0 and -1 mean all
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    logit_bias: dict[str, Bias] | None = None
    max_tokens: Positive | None = None
    stop: Stop | Annotated[list[Stop], Meta(max_length=MAX_STOPS)] | None = None
    seed: int | None = None
    n: Choices | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    @property
    def stops(self) -> list[str]:
        if self.stop is None:
            return []
        return [self.stop] if isinstance(self.stop, str) else self.stop

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    def sampling(self, captured: int, vocab: int) -> Sampling:
        """The sampler's settings; `captured` is how many candidates per token are kept. Raises ApiError."""
        return Sampling(
            temperature=1.0 if self.temperature is None else self.temperature,
            top_p=self.top_p or 1.0,
            top_k=max(0, self.top_k or 0),
            frequency_penalty=self.frequency_penalty or 0.0,
            presence_penalty=self.presence_penalty or 0.0,
            logit_bias=_bias(self.logit_bias, vocab),
            captured=captured,
        )


class Chat(Common, kw_only=True):
    messages: Annotated[list[ChatMessage], Meta(min_length=1)]
    max_completion_tokens: Positive | None = None
    logprobs: bool | None = None
    top_logprobs: Tops | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    response_format: dict[str, Any] | None = None

    @property
    def limit(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def tops(self) -> int | None:
        """Alternatives per token to list; None without logprobs."""
        return (self.top_logprobs or 0) if self.logprobs else None


class Text(Common, kw_only=True):
    """/v1/completions. A list of strings or of token id lists asks for several prompts at once."""

    prompt: str | list[str | int | list[int]]
    logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    echo: bool | None = None
    suffix: str | None = None
    best_of: int | None = None

    @property
    def limit(self) -> int:
        return self.max_tokens or 16  # the form's own default

    @property
    def tops(self) -> int | None:
        return self.logprobs

    def prompts(self) -> list[str | list[int]]:
        """Each prompt by itself. Raises ApiError when there is none."""
        found: list[Any] = [self.prompt] if isinstance(self.prompt, str) else list(self.prompt)
        if found and all(isinstance(prompt, int) for prompt in found):
            found = [found]
        if not found or any(prompt in ("", []) for prompt in found):
            raise invalid("prompt", "prompt must not be empty")
        if len({type(prompt) for prompt in found}) > 1 or isinstance(found[0], int):
            raise invalid("prompt", "prompt must be a text, a list of texts, token ids, or a list of token id lists")
        return found


def parse_chat(body: bytes) -> Chat:
    """Raises ApiError 400, naming the field, when the body is not a request that can be served."""
    chat = _decode(body, Chat)
    if chat.top_logprobs and not chat.logprobs:
        raise invalid("top_logprobs", "top_logprobs needs logprobs to be true")
    if isinstance(chat.response_format, dict) and chat.response_format.get("type", "text") != "text":
        raise invalid("response_format", "only response_format type 'text' is supported: output is not constrained")
    if chat.tool_choice not in (None, "auto", "none"):
        raise invalid("tool_choice", "only 'auto' and 'none' are supported: a tool call cannot be forced")
    return chat


def parse_text(body: bytes) -> Text:
    """Raises ApiError 400, naming the field, when the body is not a request that can be served."""
    text = _decode(body, Text)
    for field, plain in (("echo", False), ("suffix", ""), ("best_of", text.n or 1)):
        if getattr(text, field) not in (None, plain):
            raise invalid(field, f"{field} is not supported")
    return text


def parse_capture(header: str | None, vocab: int) -> int:
    """How many candidates per token x-clawback-capture asks for; 0 without it."""
    if header is None:
        return 0
    if not header.isdecimal() or len(header) > 3 or not 1 <= int(header) <= min(vocab, 256):
        raise invalid("x-clawback-capture", "the header x-clawback-capture must be a number from 1 to 256")
    return int(header)


def _decode(body: bytes, kind: type[R]) -> R:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise _named(str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise invalid("body", f"the request body is not valid JSON: {error}") from error


def _named(text: str) -> Exception:
    """The field out of msgspec's message: its path at the end, or the missing field's name."""
    missing = re.search(r"missing required field `(\w+)`", text)
    at = _AT.search(text)
    path = (at[1] if at else "").removesuffix("[...]")
    if missing:
        path = f"{path}.{missing[1]}" if path else missing[1]
    return invalid(path or "body", f"{path or 'body'}: {_AT.sub('', text)}")


def _bias(given: dict[str, float] | None, vocab: int) -> dict[int, float]:
    wrong = [token for token in given or {} if not token.isdecimal() or int(token) >= vocab]
    if wrong:
        raise invalid("logit_bias", f"logit_bias: {wrong[0]!r} is not a token id from 0 to {vocab - 1}")
    return {int(token): value for token, value in (given or {}).items()}
