"""Claim tickets are verified, relative to our own store, and safe to repeat."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fsspec.implementations.local import LocalFileSystem

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


def test_a_blob_that_is_gone_is_no_outage(tmp_path: Path) -> None:
    """It was stored before its ticket was sent: a store that answers "no such file" will never have it."""
    ticket = claims.store(b"record", tmp_path.as_uri(), "traffic.raw")
    (tmp_path / "file").write_text("")
    for elsewhere in (tmp_path / "elsewhere", tmp_path / "file"):
        with pytest.raises(ContractError, match=r"no claim traffic\.raw/") as missing:
            claims.redeem(ticket, elsewhere.as_uri())
        assert missing.value.reason == "claim_missing"
    with pytest.raises(ContractError, match="no claim"):
        claims.redeem(ticket, "memory://elsewhere")


def test_a_store_that_does_not_answer_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ticket = claims.store(b"record", tmp_path.as_uri(), "traffic.raw")
    with pytest.raises(RetryError, match="cannot read claim"):
        claims.redeem(ticket, "nosuchscheme://bucket")
    (blob,) = tmp_path.rglob("*.json")

    def away(*_: object, **__: object) -> bytes:
        raise ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setattr("fsspec.implementations.local.LocalFileSystem.cat_file", away)
    with pytest.raises(RetryError, match="Connection refused"):
        claims.redeem(ticket, tmp_path.as_uri())
    assert blob.exists()


def test_a_broken_ticket_is_named(tmp_path: Path) -> None:
    with pytest.raises(ContractError, match="ticket"):
        claims.redeem(b'{"claim":7}', tmp_path.as_uri())


def test_the_default_store_is_under_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLAWBACK_HOME", str(tmp_path))
    claims.store(b"record", "", "traffic.raw")
    assert (tmp_path / "claims").stat().st_mode & 0o777 == 0o700, "whole exchanges"
    assert list((tmp_path / "claims" / "traffic.raw").glob("*.json"))


class EndpointConnectionError(Exception):
    """As botocore, google-cloud and azure raise: none of these is an OSError."""


def test_every_error_of_a_store_is_an_outage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ticket = claims.store(b"record", tmp_path.as_uri(), "traffic.raw")

    def away(*_: object, **__: object) -> bytes:
        raise EndpointConnectionError("Could not connect to the endpoint URL")

    for method in ("cat_file", "pipe_file"):
        monkeypatch.setattr(f"fsspec.implementations.local.LocalFileSystem.{method}", away)
    with pytest.raises(RetryError, match="Could not connect"):
        claims.redeem(ticket, tmp_path.as_uri())
    with pytest.raises(RetryError, match="Could not connect"):
        claims.store(b"another", tmp_path.as_uri(), "traffic.raw")


def test_two_gateways_write_beside_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In containers each is process 1, and the same record is stored again after a time-out."""
    parts: list[str] = []
    real = LocalFileSystem.pipe_file

    def pipe_file(self: LocalFileSystem, path: str, value: bytes, **given: object) -> None:
        parts.append(path)
        real(self, path, value, **given)

    monkeypatch.setattr(LocalFileSystem, "pipe_file", pipe_file)
    for name in ("one", "two"):
        claims.store(b"record", (tmp_path / name).as_uri(), "traffic.raw")
    assert Path(parts[0]).name != Path(parts[1]).name
