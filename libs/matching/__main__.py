"""Match a log offline: `python -m libs.matching traffic.jsonl --output matched.jsonl ...`."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from libs.contracts import TrafficRaw, encode
from libs.contracts.lines import add_inputs, input_files, number_from, prepare_outputs, read_lines
from libs.contracts.terminal import complain, exit_status, plain_json
from libs.errors import ContractError
from libs.matching.matcher import Matcher, Outcome
from libs.matching.memory import MemoryStore
from libs.matching.plan import Limits
from libs.matching.reading import read_record
from libs.matching.report import Report, score


def parser() -> argparse.ArgumentParser:
    """The command line."""
    ap = argparse.ArgumentParser(
        prog="clawback match",
        usage="%(prog)s FILE... [options]",
        description="Bind served replies to what answered them.",
    )
    add_inputs(ap, "traffic.raw records")
    ap.add_argument("--output", type=Path, help="turns.matched records, one a binding")
    ap.add_argument("--exchanges", type=Path, help="exchanges.classified records, one an exchange")
    ap.add_argument("--report", type=Path, help="counts (and scores) as JSON; without it they are printed")
    ap.add_argument("--labels", nargs="*", type=Path, default=[], help="ground truth: exchange_id, kind, answers")
    ap.add_argument(
        "--ttl-seconds",
        type=number_from(0, float, above=True),
        default=Limits().ttl_seconds,
        help="longest time from a reply to its answer, and how long a session lives; default %(default)g",
    )
    ap.add_argument("--implicit", action="store_true", help="write regenerations and edits as bindings too")
    return ap


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0; 1 when no line of the input is a record; 2 when a file cannot be read or written."""
    ap = parser()
    args = ap.parse_args(argv)
    args.input = input_files(ap, args)
    return exit_status(lambda: _report(args))


def _report(args: argparse.Namespace) -> int:
    prepare_outputs([args.output, args.exchanges, args.report], [*args.input, *args.labels])
    found = asyncio.run(_run(args))
    text = json.dumps(found, indent=2, ensure_ascii=False)
    if args.report:
        args.report.write_text(text + "\n", encoding="utf-8")
    else:
        print(plain_json(text), flush=True)
    if found["unreadable"] and not found["exchanges"]:
        complain(f"error: none of the {found['unreadable']} lines is a traffic.raw record; see above")
        return 1
    return 0


async def _run(args: argparse.Namespace) -> dict[str, Any]:
    limits = Limits(ttl_seconds=args.ttl_seconds, tombstone_seconds=max(Limits().tombstone_seconds, args.ttl_seconds))
    report = Report()
    labels = [label for path in args.labels for label in read_labels(path)]
    records = list(_read(args.input, report))  # all of them, before an output is opened
    pairs: set[tuple[str, str]] = set()
    classes: dict[str, str] = {}
    with _Lines(args.output) as matched, _Lines(args.exchanges) as exchanges:
        async for outcome in replay(records, limits):
            report.add(outcome.bindings, outcome.classified, outcome.result.level)
            for binding in outcome.bindings:
                if binding.evidence == "next_state":
                    pairs.add((binding.turn_id, binding.answered_by))
                if args.implicit or binding.evidence == "next_state":
                    matched.write(encode(binding))
            for one in outcome.classified:
                classes[one.exchange_id] = one.exchange_class
                exchanges.write(encode(one))
    out = report.as_dict(args.ttl_seconds)
    if args.labels:
        out["scores"] = score(pairs, classes, labels).as_dict()
    return out


async def replay(records: Iterable[TrafficRaw], limits: Limits) -> AsyncIterator[Outcome]:
    """Match records in the order in which a gateway would have written them: by the time they were complete."""
    matcher = Matcher(MemoryStore(), limits)
    for record in sorted(records, key=lambda r: (r.completed_at, r.received_at, r.exchange_id)):
        yield await matcher.match(record)


def _read(paths: Sequence[Path], report: Report) -> Iterator[TrafficRaw]:
    for path in paths:
        for number, line in read_lines(path):
            try:
                yield read_record(line)
            except ContractError as error:
                report.unreadable += 1
                complain(f"{path}:{number}: left out: {error}")


def read_labels(path: Path) -> Iterator[dict[str, Any]]:
    """The labels in a JSONL file. Raises ContractError that names file, line and field."""
    for number, line in read_lines(path):
        try:
            label = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ContractError(f"{path}:{number}: not a label in JSON: {error}") from error
        wants: dict[str, type | tuple[type, ...]] = {"exchange_id": str, "kind": str, "answers": (str, type(None))}
        wrong = [n for n, kind in wants.items() if not isinstance(label, dict) or not isinstance(label.get(n, 0), kind)]
        if wrong:
            raise ContractError(f"{path}:{number}: a label needs {', '.join(wrong)} as text (answers may be null)")
        yield label


class _Lines:
    """A JSONL file, or nowhere."""

    def __init__(self, path: Path | None) -> None:
        self._file = path.open("wb") if path else None

    def __enter__(self) -> _Lines:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file:
            self._file.close()

    def write(self, line: bytes) -> None:
        if self._file:
            self._file.write(line + b"\n")


__all__ = ["Outcome", "main", "replay"]

if __name__ == "__main__":
    sys.exit(main())
