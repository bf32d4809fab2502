"""Claim tickets are verified, relative to our own store, and safe to repeat."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from libs.contracts import claims
from libs.errors import ContractError, RetryError


def test_a_ticket_gives_the_record_back(tmp_path: Path) -> None:
    url = tmp_path.as_uri()
    ticket = claims.store(b"record", url, "traffic.raw")
    assert claims.store(b"record", url, "traffic.raw") == ticket
    assert claims.redeem(ticket, url) == b"record"
    assert not claims.is_ticket(b'{"version":1}')


def test_other_bytes_are_refused(tmp_path: Path) -> None:
    ticket = claims.store(b"record", tmp_path.as_uri(), "traffic.raw")
    (blob,) = tmp_path.rglob("*.json")
    blob.write_bytes(b"rec0rd")
    with pytest.raises(ContractError, match="sha256"):
        claims.redeem(ticket, tmp_path.as_uri())


@pytest.mark.parametrize("name", ["../secret.json", "/etc/passwd", "a/../../b.json", "http://x/y.json"])
def test_a_forged_name_cannot_leave_the_store(tmp_path: Path, name: str) -> None:
    ticket = json.dumps({"claim": {"name": name, "sha256": "0" * 64, "bytes": 1}}, separators=(",", ":")).encode()
    assert claims.is_ticket(ticket)
    with pytest.raises(ContractError, match=r"claim\.name"):
        claims.redeem(ticket, tmp_path.as_uri())


def test_a_missing_blob_may_still_come(tmp_path: Path) -> None:
    ticket = claims.store(b"record", tmp_path.as_uri(), "traffic.raw")
    with pytest.raises(RetryError):
        claims.redeem(ticket, (tmp_path / "elsewhere").as_uri())


def test_a_broken_ticket_is_named(tmp_path: Path) -> None:
    with pytest.raises(ContractError, match="ticket"):
        claims.redeem(b'{"claim":7}', tmp_path.as_uri())


def test_the_default_store_is_under_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLAWBACK_HOME", str(tmp_path))
    claims.store(b"record", "", "traffic.raw")
    assert list((tmp_path / "claims" / "traffic.raw").glob("*.json"))
