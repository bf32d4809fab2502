"""What the engine calls its releases is not what was said: it is never redacted and never costs the capture."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from libs.contracts import Array, Capture, TrafficRaw, decode
from services.gateway.answers import Answer
from services.gateway.recorder import Exchange, Recorder, Served
from services.gateway.redaction import Redactor
from services.gateway.spool import Spool
from tests.unit.gateway.test_redaction import redact as redact  # the fixture

CARD = "4111111111111111"  # the well-known test number: 16 digits with a right check digit


def record(redactor: Redactor, directory: Path, *, said: str, fingerprint: str, **ids: object) -> TrafficRaw:
    spool = Spool(directory, max_bytes=2**20, segment_bytes=2**16)
    recorder = Recorder(
        spool, key_of=lambda _: "k", wake=lambda: None, wait_seconds=1.0, max_bytes=2**20, redactor=redactor
    )
    body = json.dumps({"model": "m", **ids, "messages": [{"role": "user", "content": "Hello"}]}).encode()
    exchange = Exchange(path="/v1/chat/completions", scenario="s", tenant="t", headers={}, body=body)
    capture = Capture(
        prompt_token_ids=Array.ints([1]),
        response_token_ids=Array.ints([2]),
        logprobs=Array.floats([-1.0]),
        topk_ids=Array.ints([2], [1, 1]),
        topk_logprobs=Array.floats([-1.0], [1, 1]),
    )
    response = {
        "id": "x",
        "system_fingerprint": fingerprint,
        "choices": [{"message": {"role": "assistant", "content": said}}],
    }
    served = Served(read=lambda: Answer(response, "completed"), release_id=fingerprint, capture=capture)
    recorder.prepare(exchange)
    recorder._write(exchange, served, lambda: recorder._build(exchange, served))
    (frame,) = spool.read(spool.head, max_records=10, max_bytes=2**20)
    return decode(frame.value, TrafficRaw)


def test_a_release_id_that_looks_like_a_card_keeps_the_capture(redact: Redactor, tmp_path: Path) -> None:
    kept = record(redact, tmp_path, said="Hi there", fingerprint=f"{CARD}@00001-ab")
    assert kept.capture is not None
    assert kept.response["system_fingerprint"] == f"{CARD}@00001-ab"
    assert list(kept.response) == ["id", "system_fingerprint", "choices"]


@pytest.mark.parametrize("said", [f"Your card is {CARD}."])
def test_a_card_in_the_reply_still_costs_it(redact: Redactor, tmp_path: Path, said: str) -> None:
    kept = record(redact, tmp_path, said=said, fingerprint="base")
    assert kept.capture is None and CARD not in json.dumps(kept.response)


def test_the_client_s_name_for_a_person_is_redacted_but_keeps_the_capture(redact: Redactor, tmp_path: Path) -> None:
    kept = record(redact, tmp_path, said="Hi", fingerprint="base", user="jane.doe@example.com", metadata={"n": CARD})
    assert kept.capture is not None
    assert "jane" not in json.dumps(kept.request) and CARD not in json.dumps(kept.request)
    assert list(kept.request) == ["model", "user", "metadata", "messages"]


def test_a_secret_as_a_field_name_is_redacted_too(redact: Redactor, tmp_path: Path) -> None:
    kept = record(redact, tmp_path, said="Hi", fingerprint="base", **{"jane.doe@example.com": 1})
    assert kept.capture is None and "jane" not in json.dumps(kept.request)
    assert kept.request["messages"] == [{"role": "user", "content": "Hello"}]
