"""The few fields of a request that decide whether and how a capture can be asked for."""

from __future__ import annotations

from typing import Any

import msgspec

from libs.dialects.loose import read_json


class Ask(msgspec.Struct):
    """Everything else in the body is skipped, whatever its size."""

    logprobs: Any = None
    top_logprobs: Any = None
    n: Any = None
    stream: Any = None
    return_token_ids: Any = None
    return_meta_info: Any = None
    return_prompt_token_ids: Any = None


_decoder = msgspec.json.Decoder(Ask)


def read(body: bytes) -> Ask | None:
    """The fields, None when the body is no JSON object (the upstream will say so to the client)."""
    try:
        return _decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        pass
    try:
        return msgspec.convert(read_json(body), Ask)
    except (msgspec.ValidationError, ValueError):
        return None
