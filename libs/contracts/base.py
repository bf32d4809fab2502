"""What every record shares: strict decoding with clear errors, token arrays, plain-text messages."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from math import prod
from typing import Any, Literal, TypeVar

import msgspec

from libs.errors import ContractError

T = TypeVar("T", bound="Record")

# "q"/"d" never appear: token ids and log-probs travel as 4-byte little-endian values.
_ITEM_BYTES = 4


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the topic records. Unknown fields are ignored so that a newer producer does not stop a consumer."""


class Array(msgspec.Struct, frozen=True):
    """A dense array as base64 of little-endian values beside its shape.

    `shape` is e.g. [R] or [R, K] (R response tokens, K candidates); `data` holds prod(shape) * 4 bytes.
    """

    dtype: Literal["int32", "float32"]
    shape: list[int]
    data: str

    def raw(self) -> bytes:
        """The little-endian bytes. Raises ContractError when base64 or length do not fit the shape."""
        try:
            raw = base64.b64decode(self.data, validate=True)
        except (binascii.Error, ValueError) as error:
            raise ContractError(f"array data is not base64: {error}") from error
        if any(n < 0 for n in self.shape) or len(raw) != prod(self.shape) * _ITEM_BYTES:
            raise ContractError(f"array data has {len(raw)} bytes, shape {self.shape} needs {prod(self.shape) * 4}")
        return raw

    def values(self) -> list[int] | list[float]:
        """The values, flat, in row-major order."""
        view = memoryview(self.raw())
        return view.cast("i" if self.dtype == "int32" else "f").tolist()

    @classmethod
    def ints(cls, values: Sequence[int], shape: Sequence[int] | None = None) -> Array:
        """Pack token ids. `shape` defaults to [len(values)]."""
        return cls._pack("int32", "i", values, shape)

    @classmethod
    def floats(cls, values: Sequence[float], shape: Sequence[int] | None = None) -> Array:
        """Pack log-probabilities (natural log). `shape` defaults to [len(values)]."""
        return cls._pack("float32", "f", values, shape)

    @classmethod
    def _pack(
        cls,
        dtype: Literal["int32", "float32"],
        code: str,
        values: Sequence[float],
        shape: Sequence[int] | None,
    ) -> Array:
        from array import array

        packed = array(code, values)
        dims = list(shape) if shape is not None else [len(values)]
        if prod(dims) != len(packed):
            raise ContractError(f"{len(packed)} values do not fill shape {dims}")
        return cls(dtype=dtype, shape=dims, data=base64.b64encode(packed.tobytes()).decode("ascii"))


class Capture(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine saw while it sampled one response: P prompt tokens, R response tokens, K candidates a step.

    Log-probabilities are natural logs of the full-vocabulary softmax at temperature 1.
    """

    prompt_token_ids: Array  # int32 [P]
    response_token_ids: Array  # int32 [R]
    logprobs: Array  # float32 [R]
    topk_ids: Array  # int32 [R, K]
    topk_logprobs: Array  # float32 [R, K]

    def check(self) -> None:
        """Raise ContractError, naming the field, when a dtype, a rank or R disagrees."""
        want = {
            "prompt_token_ids": ("int32", 1),
            "response_token_ids": ("int32", 1),
            "logprobs": ("float32", 1),
            "topk_ids": ("int32", 2),
            "topk_logprobs": ("float32", 2),
        }
        for name, (dtype, rank) in want.items():
            array: Array = getattr(self, name)
            if array.dtype != dtype or len(array.shape) != rank:
                raise ContractError(f"capture.{name} must be {dtype} of rank {rank}, is {array.dtype} {array.shape}")
            try:
                array.raw()
            except ContractError as error:
                raise ContractError(f"capture.{name}: {error}") from error
        r = self.response_token_ids.shape[0]
        for name in ("logprobs", "topk_ids", "topk_logprobs"):
            if getattr(self, name).shape[0] != r:
                raise ContractError(f"capture.{name} has {getattr(self, name).shape[0]} rows for {r} response tokens")
        if self.topk_ids.shape != self.topk_logprobs.shape:
            raise ContractError("capture.topk_ids and capture.topk_logprobs differ in shape")


class Message(msgspec.Struct, frozen=True):
    """A role and the text under it, as a person or a judge reads them. Roles: system, user, assistant, tool."""

    role: str
    text: str


def writable(text: str) -> str:
    """The text as a record can hold it: an error may quote half a character, which no UTF-8 has."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def encode(record: msgspec.Struct) -> bytes:
    """The record as one line of JSON (UTF-8)."""
    return msgspec.json.encode(record)


def decode(data: bytes | str, kind: type[T], *, version: int = 1) -> T:
    """Parse and validate a record.

    Raises ContractError, naming the field, when the JSON or a field is wrong, or the version is not known.
    """
    try:
        record = msgspec.json.decode(data, type=kind)
    except (msgspec.ValidationError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ContractError(f"not a valid {kind.__name__} record: {error}") from error
    except RecursionError as error:
        raise ContractError(f"not a valid {kind.__name__} record: nested too deeply") from error
    found: Any = getattr(record, "version", None)
    if found != version:
        raise ContractError(f"{kind.__name__}.version is {found}, this release reads version {version}")
    _check_capture(record, "")
    for name in ("samples", "earlier"):
        for number, part in enumerate(getattr(record, name, ())):
            _check_capture(part, f"{name}[{number}].")
    return record


def _check_capture(holder: Any, where: str) -> None:
    capture = getattr(holder, "capture", None)
    if isinstance(capture, Capture):
        try:
            capture.check()
        except ContractError as error:
            raise ContractError(f"{where}{error}") from error
