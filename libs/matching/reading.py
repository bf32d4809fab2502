"""Reading traffic.raw records that strict JSON readers refuse: lone surrogates pass through clients and logs."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from libs.contracts import TrafficRaw, decode
from libs.errors import ContractError


def read_record(data: bytes) -> TrafficRaw:
    """One record. Lone surrogates become U+FFFD. Raises ContractError that names the field at fault."""
    try:
        return decode(data, TrafficRaw)
    except ContractError:
        loose = _loose(data)
        if loose is None:
            raise
    return decode(loose, TrafficRaw)


def _loose(data: bytes) -> bytes | None:
    try:
        value = json.loads(data.decode("utf-8", "surrogatepass"))
        return msgspec.json.encode(_clean(value))
    except (ValueError, RecursionError):
        return None


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        return {_clean(k): _clean(v) for k, v in value.items()}
    return [_clean(v) for v in value] if isinstance(value, list) else value
