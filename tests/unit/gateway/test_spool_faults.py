"""What a power failure, a full disk and a bad sector leave of the spool."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from prometheus_client import REGISTRY

from tests.unit.gateway.test_spool import abandon, everything, open_spool, values


def test_a_position_that_reached_the_disk_before_its_records_hides_no_later_one(tmp_path: Path) -> None:
    spool = open_spool(tmp_path)
    for number in range(5):
        spool.append(b"k", b"%040d" % number)
    spool.ack(everything(spool)[-1].end, 5)
    abandon(spool)
    segment = next(tmp_path.glob("*.seg"))
    os.truncate(segment, 100)  # the power failed: the newest pages were still in memory, the position was not
    again = open_spool(tmp_path)
    for number in range(3):
        again.append(b"k", b"after %034d" % number)
    assert values(again) == [b"after %034d" % n for n in range(3)]
    assert (again.records, again.corrupt_segments) == (3, 0)
    abandon(again)
    assert len(values(open_spool(tmp_path))) == 3


def test_a_segment_that_is_gone_is_begun_anew(tmp_path: Path) -> None:
    spool = open_spool(tmp_path)
    spool.append(b"k", b"x" * 40)
    spool.ack(everything(spool)[-1].end, 1)
    abandon(spool)
    next(tmp_path.glob("*.seg")).unlink()
    again = open_spool(tmp_path)
    again.append(b"k", b"y" * 90)
    abandon(again)
    assert values(open_spool(tmp_path)) == [b"y" * 90]


def test_a_segment_that_cannot_be_begun_leaves_the_one_before_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = open_spool(tmp_path, segment_bytes=50)
    spool.append(b"k", b"x" * 60)

    def full(*_: object, **__: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched, pytest.raises(OSError, match="No space"):
        patched.setattr(os, "open", full)
        spool.append(b"k", b"refused")
    ours, theirs = socket.socketpair()  # takes the next free descriptors, as a client's connection would
    ours.setblocking(False)
    theirs.setblocking(False)
    spool.append(b"k", b"after")
    for end in (ours, theirs):
        with pytest.raises(BlockingIOError):
            end.recv(1000)
    ours.close()
    theirs.close()
    assert values(spool) == [b"x" * 60, b"after"]
    abandon(spool)
    assert values(open_spool(tmp_path)) == [b"x" * 60, b"after"]


def test_damage_found_while_reading_is_counted_and_what_it_took_waits_no_more(tmp_path: Path) -> None:
    spool = open_spool(tmp_path, segment_bytes=150)
    for number in range(6):
        spool.append(b"k", b"%040d" % number)
    first = sorted(tmp_path.glob("*.seg"))[0]
    data = bytearray(first.read_bytes())
    data[60] ^= 0xFF  # the second record of the first segment
    first.write_bytes(data)
    labels = {"reason": "spool_damaged"}
    before = REGISTRY.get_sample_value("clawback_gateway_dropped_total", labels) or 0.0
    kept = values(spool)
    assert kept == [b"%040d" % n for n in (0, 3, 4, 5)]
    assert REGISTRY.get_sample_value("clawback_gateway_dropped_total", labels) == before + 2
    assert spool.records == len(kept)
    spool.ack(everything(spool)[-1].end, len(kept))
    assert (spool.records, spool.size) == (0, 0)
