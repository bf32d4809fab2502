"""JSONL files as people have them: byte order marks, CRLF, blank lines, an output that names an input."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from libs.errors import ConfigError

_UTF8_MARK = b"\xef\xbb\xbf"
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")


def add_inputs(parser: argparse.ArgumentParser, what: str) -> None:
    """The files that an offline form reads: `FILE ...`, or `--input FILE ...`. `input_files` gives them."""
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help=f"JSONL of {what}")
    parser.add_argument("--input", nargs="+", type=Path, default=[], metavar="FILE", help="another way to name FILE")


def input_files(parser: argparse.ArgumentParser, args: argparse.Namespace) -> list[Path]:
    """Every file that was named, either way. Exits with the usage when none was."""
    found: list[Path] = [*args.files, *args.input]
    if not found:
        parser.error("name at least one FILE to read, before the options that take several values")
    return found


def read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Number (from 1) and bytes of each line that is not blank. Raises ConfigError that names the file."""
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if number == 1:
                    if line.startswith(_UTF16_MARKS):
                        raise ConfigError(f"{path}:1: the file is UTF-16; save it as UTF-8, one JSON object a line")
                    line = line.removeprefix(_UTF8_MARK)
                if line.strip():
                    yield number, line.strip()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; name a file with one JSON object a line") from error


def prepare_outputs(outputs: Sequence[Path | None], inputs: Sequence[Path]) -> None:
    """Make the folders of `outputs`. Raises ConfigError, before anything is written, when one would overwrite an input
    or another output, or its folder cannot be made."""
    taken = [*inputs]
    for path in (p for p in outputs if p is not None):
        if any(_same(path, other) for other in taken):
            raise ConfigError(f"{path} is named twice, and writing it would lose what is in it; name another output")
        if path.is_dir():
            raise ConfigError(f"{path} is a directory; name a file to write")
        if path.is_file() or not path.exists():  # not /dev/null
            taken.append(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"{path}: its folder cannot be made: {error.strerror}; name another output") from error


def _same(path: Path, other: Path) -> bool:
    """One file under two names: the path, a symbolic link or a hard link."""
    if path.resolve() == other.resolve():
        return True
    try:
        return os.path.samefile(path, other)
    except OSError:  # one of them is not there
        return False


def number_from(least: float, kind: Callable[[str], float] = int, *, above: bool = False) -> Callable[[str], float]:
    """An argparse type: a finite number of at least `least` (`above`: more than it)."""

    def read(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or value < least or (above and value == least):
            what = "whole number" if kind is int else "number"
            raise argparse.ArgumentTypeError(f"{text!r}: give a {what} {'above' if above else 'of at least'} {least:g}")
        return value

    return read


__all__ = ["add_inputs", "input_files", "number_from", "prepare_outputs", "read_lines"]
