"""JSONL files as people have them: byte order marks, CRLF, blank lines, an output that names an input."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
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
    taken = [p.resolve() for p in inputs]
    for path in (p for p in outputs if p is not None):
        if path.resolve() in taken:
            raise ConfigError(f"{path} is named twice, and writing it would lose what is in it; name another output")
        if path.is_dir():
            raise ConfigError(f"{path} is a directory; name a file to write")
        if path.is_file() or not path.exists():  # not /dev/null
            taken.append(path.resolve())
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"{path}: its folder cannot be made: {error.strerror}; name another output") from error


__all__ = ["add_inputs", "input_files", "prepare_outputs", "read_lines"]
