"""The spool keeps order, survives torn writes and damage, and stays inside its bound."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.errors import ConfigError
from services.gateway.spool import Cursor, Frame, Spool, SpoolFullError


def open_spool(directory: Path, **bounds: int) -> Spool:
    return Spool(directory, **{"max_bytes": 10**6, "segment_bytes": 10**5, **bounds})


def everything(spool: Spool) -> list[Frame]:
    return spool.read(spool.head, max_records=10**6, max_bytes=10**9)


def values(spool: Spool) -> list[bytes]:
    return [frame.value for frame in everything(spool)]


def abandon(spool: Spool) -> None:
    """What kill -9 leaves: nothing flushed or closed by us, the lock let go by the kernel."""
    os.close(spool._lock)


def test_records_come_back_in_order_with_their_keys(tmp_path: Path) -> None:
    spool = open_spool(tmp_path)
    spool.append(b"k1", b"one")
    spool.append(None, b"two")
    assert [(f.key, f.value) for f in everything(spool)] == [(b"k1", b"one"), (None, b"two")]
    assert spool.records == 2


def test_acknowledged_records_do_not_come_back(tmp_path: Path) -> None:
    spool = open_spool(tmp_path)
    for number in range(5):
        spool.append(b"k", b"%d" % number)
    spool.ack(everything(spool)[1].end, 2)
    assert values(spool) == [b"2", b"3", b"4"]
    abandon(spool)
    again = open_spool(tmp_path)
    assert values(again) == [b"2", b"3", b"4"]
    assert again.records == 3


def test_segments_roll_and_are_deleted_when_done(tmp_path: Path) -> None:
    spool = open_spool(tmp_path, segment_bytes=50)
    for number in range(10):
        spool.append(b"k", b"%030d" % number)
    assert len(list(tmp_path.glob("*.seg"))) == 5
    spool.ack(everything(spool)[7].end, 8)
    assert values(spool) == [b"%030d" % n for n in (8, 9)]
    assert len(list(tmp_path.glob("*.seg"))) <= 2
    spool.ack(everything(spool)[1].end, 2)
    assert spool.size == 0


def test_the_bound_refuses_and_frees(tmp_path: Path) -> None:
    spool = open_spool(tmp_path, max_bytes=200)
    spool.append(b"k", b"x" * 100)
    with pytest.raises(SpoolFullError) as raised:
        spool.append(b"k", b"x" * 100)
    assert raised.value.reason == "spool_full"
    assert values(spool) == [b"x" * 100]
    spool.ack(everything(spool)[0].end, 1)
    spool.append(b"k", b"y" * 100)
    assert values(spool) == [b"y" * 100]


@settings(max_examples=60)
@given(st.lists(st.binary(max_size=40), min_size=1, max_size=6), st.integers(0, 10**6))
def test_a_torn_tail_loses_only_itself(tmp_path_factory: pytest.TempPathFactory, records: list[bytes], at: int) -> None:
    directory = tmp_path_factory.mktemp("spool")
    spool = open_spool(directory)
    ends = [0]
    for record in records:
        spool.append(b"key", record)
        ends.append(spool.size)
    abandon(spool)
    segment = next(directory.glob("*.seg"))
    cut = at % (ends[-1] + 1)
    os.truncate(segment, cut)
    again = open_spool(directory)
    whole = sum(end <= cut for end in ends[1:])
    assert values(again) == records[:whole]
    again.append(b"key", b"next")
    assert values(again) == [*records[:whole], b"next"]
    again.close()
    shutil.rmtree(directory)


def test_damage_in_the_middle_is_counted_and_skipped(tmp_path: Path) -> None:
    spool = open_spool(tmp_path, segment_bytes=50)
    for number in range(4):
        spool.append(b"k", b"%040d" % number)
    abandon(spool)
    first = sorted(tmp_path.glob("*.seg"))[0]
    data = bytearray(first.read_bytes())
    data[20] ^= 0xFF
    first.write_bytes(data)
    again = open_spool(tmp_path, segment_bytes=50)
    assert again.corrupt_segments == 1
    assert values(again) == [b"%040d" % n for n in (1, 2, 3)]


def test_a_lost_position_file_sends_again_rather_than_loses(tmp_path: Path) -> None:
    spool = open_spool(tmp_path)
    spool.append(b"k", b"one")
    spool.append(b"k", b"two")
    spool.ack(everything(spool)[0].end, 1)
    abandon(spool)
    (tmp_path / "position").write_bytes(b"rubbish of some length")
    assert values(open_spool(tmp_path)) == [b"one", b"two"]


def test_a_full_disk_leaves_no_half_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = open_spool(tmp_path)
    spool.append(b"k", b"before")
    write, calls = os.write, []

    def short(descriptor: int, data: memoryview) -> int:
        calls.append(len(data))
        if len(calls) == 1:
            return write(descriptor, data[:5])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched, pytest.raises(OSError, match="No space"):
        patched.setattr(os, "write", short)
        spool.append(b"k", b"during")
    spool.append(b"k", b"after")
    assert values(spool) == [b"before", b"after"]
    abandon(spool)
    assert values(open_spool(tmp_path)) == [b"before", b"after"]


def test_two_gateways_cannot_share_a_directory(tmp_path: Path) -> None:
    first = open_spool(tmp_path)
    with pytest.raises(ConfigError, match="CLAWBACK_GATEWAY_SPOOL_DIR"):
        open_spool(tmp_path)
    first.close()
    open_spool(tmp_path)


def test_read_respects_its_limits_but_gives_at_least_one(tmp_path: Path) -> None:
    spool = open_spool(tmp_path)
    for _ in range(4):
        spool.append(b"k", b"x" * 100)
    assert len(spool.read(spool.head, max_records=3, max_bytes=10**6)) == 3
    assert len(spool.read(spool.head, max_records=10, max_bytes=1)) == 1
    assert spool.read(Cursor(99, 0), max_records=10, max_bytes=1) == []


def test_flush_names_the_descriptor_only_after_writes(tmp_path: Path) -> None:
    spool = open_spool(tmp_path)
    assert spool.flush() is None
    spool.append(b"k", b"x")
    assert spool.flush() is not None
    assert spool.flush() is None
