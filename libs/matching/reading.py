"""Reading traffic.raw records that strict JSON readers refuse: lone surrogates pass through clients and logs."""

from __future__ import annotations

import json
import re

import msgspec

from libs.contracts import TrafficRaw, decode
from libs.dialects.loose import clean
from libs.errors import ContractError

_ID = re.compile(r"(?!\?)[^\n]+")


def read_record(data: bytes) -> TrafficRaw:
    """One record. Lone surrogates become U+FFFD. Raises ContractError that names the field at fault."""
    try:
        record = decode(data, TrafficRaw)
    except ContractError:
        loose = _loose(data)
        if loose is None:
            raise
        record = decode(loose, TrafficRaw)
    if not _ID.fullmatch(record.exchange_id):  # the state keeps ids as lines, and marks some lines with a "?"
        raise ContractError('exchange_id must be one line that is not empty and does not begin with "?"')
    return record


def _loose(data: bytes) -> bytes | None:
    try:
        value = json.loads(data.decode("utf-8", "surrogatepass"))
        return msgspec.json.encode(clean(value))
    except (ValueError, RecursionError):
        return None
