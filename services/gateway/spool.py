"""A bounded queue of records on disk, between the client's answer and the broker's acknowledgement.

Append-only segment files of frames `<value length, key length, crc32>` + key + value. A record is in the kernel's page
cache when `append` returns, so kill -9 of the process loses nothing; a background flush bounds what a power failure can
take (`flush`, every CLAWBACK_GATEWAY_SPOOL_FSYNC_SECONDS). The position file says what the broker has acknowledged:
after a crash the records behind it are sent again under their old exchange ids.
"""

from __future__ import annotations

import fcntl
import os
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from libs.errors import ClawbackError, ConfigError
from libs.telemetry import metrics

_FRAME = struct.Struct("<III")
_POSITION = struct.Struct("<QQI")


class SpoolFullError(ClawbackError):
    """The bound is reached: the record is dropped and counted, the client is not affected."""

    action = "dead_letter"


@dataclass(frozen=True, slots=True, order=True)
class Cursor:
    """A place in the spool: segment number and byte offset."""

    segment: int
    offset: int


@dataclass(frozen=True, slots=True)
class Frame:
    """One record and the place behind it."""

    key: bytes | None
    value: bytes
    end: Cursor


class Spool:
    """One writer, one reader, one process (a lock file sees to it). Not thread-safe: call it from one thread."""

    def __init__(self, directory: Path, *, max_bytes: int, segment_bytes: int) -> None:
        """Open or create the spool. Raises ConfigError when another process uses the directory."""
        self._dir, self._max, self._segment_bytes = directory, max_bytes, segment_bytes
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = _exclusive(directory)
        self._position = os.open(directory / "position", os.O_RDWR | os.O_CREAT, 0o600)
        self._sizes: dict[int, int] = {}
        self._reader: tuple[int, BinaryIO] | None = None
        self.corrupt_segments = 0
        self._head = self._load_position()
        self.records = self._recover()
        self._fd = self._open_tail()
        self._dirty = False

    @property
    def size(self) -> int:
        """Bytes that wait for the broker, headers of the frames included."""
        return sum(self._sizes.values()) - min(self._head.offset, self._sizes.get(self._head.segment, 0))

    @property
    def head(self) -> Cursor:
        """The first record that is not acknowledged."""
        return self._head

    def append(self, key: bytes | None, value: bytes) -> None:
        """Write one record. Raises SpoolFullError at the bound and OSError when the disk refuses."""
        frame = _encode(key or b"", value)
        if self.size + len(frame) > self._max:
            raise SpoolFullError(f"the spool holds {self.size} of {self._max} bytes", reason="spool_full")
        if self._sizes[self._tail] >= self._segment_bytes:
            self._roll()
        before = self._sizes[self._tail]
        try:
            view = memoryview(frame)
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError:
            os.ftruncate(self._fd, before)
            raise
        self._sizes[self._tail] = before + len(frame)
        self.records += 1
        self._dirty = True

    def read(self, start: Cursor, *, max_records: int, max_bytes: int) -> list[Frame]:
        """The records from `start` on, in the order in which they were appended; at least one if there is any."""
        frames: list[Frame] = []
        size, at = 0, start
        while len(frames) < max_records and size < max_bytes:
            if at.offset >= self._sizes.get(at.segment, 0):
                later = [n for n in self._sizes if n > at.segment]
                if not later:
                    break
                at = Cursor(min(later), 0)
                continue
            frame = self._frame(at)
            if frame is None:  # damaged on disk: nothing behind it in this segment can be trusted
                self._give_up(at)
                continue
            frames.append(frame)
            size += len(frame.value)
            at = frame.end
        return frames

    def ack(self, upto: Cursor, records: int) -> None:
        """The broker has everything before `upto`: remember it and delete the segments that are done."""
        self._place(upto)
        self.records -= records
        for number in [n for n in self._sizes if n < upto.segment]:
            self._drop(number)

    def flush(self) -> int | None:
        """The descriptor that a caller should fdatasync (in a thread), None when nothing was written since."""
        dirty, self._dirty = self._dirty, False
        return self._fd if dirty else None

    def close(self) -> None:
        """Sync and let the directory go."""
        os.fdatasync(self._fd)
        if self._reader:
            self._reader[1].close()
        for descriptor in (self._fd, self._position, self._lock):
            os.close(descriptor)

    def _place(self, head: Cursor) -> None:
        packed = _POSITION.pack(head.segment, head.offset, 0)[:16]
        os.pwrite(self._position, packed + struct.pack("<I", zlib.crc32(packed)), 0)
        self._head = head

    def _give_up(self, at: Cursor) -> None:
        """What lies behind `at` in its segment waits no more, and is counted."""
        self.corrupt_segments += 1
        self._sizes[at.segment] = at.offset
        if at.segment == self._tail:
            self._roll()
        left = sum(self._whole(number)[0] for number in self._sizes)
        metrics.GATEWAY_DROPPED.labels("spool_damaged").inc(max(0, self.records - left))
        self.records = left

    def _whole(self, number: int) -> tuple[int, int]:
        """How many records of a segment wait and can be read, and where the last of them ends."""
        at = Cursor(number, self._head.offset if number == self._head.segment else 0)
        records = 0
        while at.offset < self._sizes[number] and (frame := self._frame(at)) is not None:
            records, at = records + 1, frame.end
        return records, at.offset

    def _frame(self, at: Cursor) -> Frame | None:
        file = self._file(at.segment)
        file.seek(at.offset)
        header = file.read(_FRAME.size)
        if len(header) < _FRAME.size:
            return None
        value_len, key_len, crc = _FRAME.unpack(header)
        end = at.offset + _FRAME.size + value_len + key_len
        if end > self._sizes[at.segment]:
            return None
        body = file.read(key_len + value_len)
        if zlib.crc32(body) != crc:
            return None
        return Frame(body[:key_len] or None, body[key_len:], Cursor(at.segment, end))

    def _file(self, number: int) -> BinaryIO:
        if self._reader is None or self._reader[0] != number:
            if self._reader:
                self._reader[1].close()
            self._reader = (number, self._path(number).open("rb", buffering=0))
        return self._reader[1]

    def _path(self, number: int) -> Path:
        return self._dir / f"{number:012d}.seg"

    def _roll(self) -> None:
        os.fdatasync(self._fd)
        former, self._fd = self._fd, self._create(self._tail + 1)  # if that fails the former one is still ours
        os.close(former)
        self._tail += 1
        self._sizes[self._tail] = 0

    def _create(self, number: int) -> int:
        return os.open(self._path(number), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def _drop(self, number: int) -> None:
        if self._reader and self._reader[0] == number:
            self._reader[1].close()
            self._reader = None
        self._path(number).unlink(missing_ok=True)
        del self._sizes[number]

    def _load_position(self) -> Cursor:
        raw = os.pread(self._position, _POSITION.size, 0)
        if len(raw) == _POSITION.size:
            segment, offset, crc = _POSITION.unpack(raw)
            if zlib.crc32(raw[:16]) == crc:
                return Cursor(segment, offset)
        return Cursor(0, 0)

    def _recover(self) -> int:
        """Count what waits and cut a frame that a crash left half written. Returns the number of records."""
        self._sizes = {int(p.stem): p.stat().st_size for p in sorted(self._dir.glob("*.seg"))}
        for number in [n for n in self._sizes if n < self._head.segment]:
            self._drop(number)
        if self._head.offset > (size := self._sizes.get(self._head.segment, 0)):
            # A power failure kept the position and took what lay before it: new records must not end up behind it.
            self._place(Cursor(self._head.segment, size))
            os.fdatasync(self._position)
        records = 0
        for number in sorted(self._sizes):
            here, end = self._whole(number)
            if end < self._sizes[number]:
                self._cut(number, end, last=number == max(self._sizes))
            records += here
        return records

    def _cut(self, number: int, offset: int, *, last: bool) -> None:
        # A torn frame can only be the last one written; anywhere else it is damage, and is counted.
        self.corrupt_segments += 0 if last else 1
        os.truncate(self._path(number), offset)
        self._sizes[number] = offset

    def _open_tail(self) -> int:
        self._tail = max([*self._sizes, self._head.segment])
        if self._tail not in self._sizes:
            self._sizes[self._tail] = 0
        return self._create(self._tail)


def _encode(key: bytes, value: bytes) -> bytes:
    body = key + value
    return _FRAME.pack(len(value), len(key), zlib.crc32(body)) + body


def _exclusive(directory: Path) -> int:
    descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise ConfigError(
            f"the spool {directory} is in use by another gateway; give each its own CLAWBACK_GATEWAY_SPOOL_DIR"
        ) from error
    return descriptor
