"""The offline forms: judge matched turns from a file, and score a judge on labelled next states."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from libs.contracts import TurnJudged, TurnMatched, decode, encode
from libs.contracts.lines import add_inputs, input_files, number_from, prepare_outputs, read_lines
from libs.contracts.terminal import complain, exit_status, plain, plain_json
from libs.errors import ConfigError, ContractError
from libs.feedback import evaluation
from libs.feedback.engine import BallotStore, Options, ballots_for, judge_turn
from libs.feedback.judge import Judge
from libs.feedback.recording import RecordedVotes
from libs.feedback.votes import Rules, TooFewVotes

T = TypeVar("T")
R = TypeVar("R")


def add_judge_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--judge", choices=("rules", "prm"), default="rules", help="default rules, which needs no model"
    )
    parser.add_argument("--votes", type=number_from(1), default=3, help="votes per turn (prm); default %(default)s")
    parser.add_argument("--window", type=number_from(0), default=8, help="earlier turns shown; default %(default)s")
    parser.add_argument(
        "--url", default=os.environ.get("CLAWBACK_JUDGE_PRM_URL", ""), help="PRM: base URL ending in /v1"
    )
    parser.add_argument("--model", default=os.environ.get("CLAWBACK_JUDGE_PRM_MODEL", ""), help="PRM: model name")
    parser.add_argument("--api-key-env", default="CLAWBACK_JUDGE_PRM_API_KEY", help="variable that holds the key")
    seconds = number_from(0, float, above=True)
    parser.add_argument(
        "--temperature", type=number_from(0, float), default=0.6, help="PRM: of sampling; default %(default)s"
    )
    parser.add_argument(
        "--max-tokens", type=number_from(1), default=1024, help="PRM: longest vote; default %(default)s"
    )
    parser.add_argument(
        "--call-timeout", type=seconds, default=30.0, metavar="SECONDS", help="PRM: of one vote; default %(default)g"
    )
    parser.add_argument(
        "--turn-timeout", type=seconds, default=120.0, metavar="SECONDS", help="of all its votes; default %(default)g"
    )
    parser.add_argument(
        "--concurrency", type=number_from(1), default=8, help="turns judged at once; default %(default)s"
    )
    parser.add_argument("--record", type=Path, help="append every question's votes to this file")
    parser.add_argument("--replay", type=Path, help="take votes from this file; ask only for those that it lacks")


@asynccontextmanager
async def open_judge(args: argparse.Namespace) -> AsyncIterator[tuple[Judge, BallotStore | None]]:
    """The judge that the arguments name, and the store of recorded votes. Raises ConfigError."""
    async with AsyncExitStack() as stack:
        store: BallotStore | None = None
        if args.replay:
            if not args.replay.exists():
                raise ConfigError(f"--replay {args.replay}: no such file")
            store = stack.enter_context(RecordedVotes(args.replay))
        if args.record:
            store = stack.enter_context(RecordedVotes(args.record, store, replay=False))
        if args.judge == "rules":
            from libs.feedback.judges.rules import RulesJudge

            yield RulesJudge(), store
            return
        if not (args.url and args.model):
            raise ConfigError("--judge prm needs --url and --model")
        from libs.feedback.judges.prm import PrmJudge, Sampling
        from libs.feedback.transport import open_transport

        key = os.environ.get(args.api_key_env, "")
        transport = await stack.enter_async_context(
            open_transport(args.url, key, max_connections=args.concurrency * args.votes)
        )
        sampling = Sampling(temperature=args.temperature, max_tokens=args.max_tokens)
        yield PrmJudge(transport, args.model, sampling, call_timeout_seconds=args.call_timeout), store


async def judge_file(args: argparse.Namespace) -> int:
    """turns.matched lines in, turns.judged lines out, in order. 1 when a turn could not be judged or read."""
    options = Options(
        window=args.window,
        rules=Rules(args.votes, turn_timeout_seconds=args.turn_timeout),
        require_capture=not args.allow_uncaptured,
    )
    votes = [p for p in (args.record, args.replay) if p]  # these two may be one file
    prepare_outputs([args.output, args.report], [*args.input, *votes])
    prepare_outputs([args.record], args.input)
    turns, left_out = _read_matched(args.input)
    async with open_judge(args) as (judge, store):

        async def one(matched: TurnMatched) -> list[TurnJudged] | TooFewVotes:
            try:
                # The answer's own time, so that the same input gives the same output.
                return await judge_turn(judge, matched, options, now=lambda: matched.answered_at, store=store)
            except TooFewVotes as error:
                return error

        results = await _bounded(one, turns, args.concurrency)
        name, version = judge.name, judge.version
    report = _tally(turns, results) | left_out | {"judge": name, "judge_version": version}
    with args.output.open("wb") as out:
        for result in results:
            for judged in result if isinstance(result, list) else []:
                out.write(encode(judged) + b"\n")
    text = json.dumps(report, indent=2, ensure_ascii=False)
    if args.report:
        args.report.write_text(text + "\n", encoding="utf-8")
    print(plain_json(text), flush=True)
    return 1 if report["failed"] or report["unreadable"] else 0


async def evaluate_files(args: argparse.Namespace) -> int:
    """Print the report of a judge on labelled files."""
    rows = [
        row for path in args.input for row in evaluation.read_rows(path, confidence=args.confidence, split=args.split)
    ]
    if not rows:
        raise ConfigError("no rows to score: check the files, --confidence and --split")
    rules = Rules(args.votes, turn_timeout_seconds=args.turn_timeout)
    async with open_judge(args) as (judge, store):

        async def one(row: evaluation.Row) -> evaluation.Judged:
            question = row.question(window=args.window)
            try:
                ballots = await ballots_for(judge, question, rules, store=store)
            except TooFewVotes as error:
                return evaluation.Judged(
                    row, 0, "none", None, abstentions=tuple(error.abstentions.elements()), failed=True
                )
            return evaluation.judged(row, question, ballots)

        data = evaluation.report(await _bounded(one, rows, args.concurrency))
        data = {"judge": judge.name, "judge_version": judge.version, **data}
    text = plain_json(json.dumps(data, indent=2, ensure_ascii=False)) if args.json else plain(evaluation.table(data))
    print(text, flush=True)
    return 0


def _read_matched(paths: Sequence[Path]) -> tuple[list[TurnMatched], dict[str, int]]:
    """The turns to judge, and how many lines were left out: `repeats` say again what another line says."""
    found: dict[tuple[str, ...], TurnMatched] = {}
    left_out = {"repeats": 0, "unreadable": 0}
    for path, number, line in ((p, n, line) for p in paths for n, line in read_lines(p)):
        try:
            turn = decode(line, TurnMatched)
        except ContractError as error:
            left_out["unreadable"] += 1
            complain(f"{path}:{number}: left out: {error}")
            continue
        key = (turn.tenant, turn.scenario, turn.turn_id, turn.answered_by, turn.evidence)
        if turn.repeat_of or key in found:
            left_out["repeats"] += 1
        else:
            found[key] = turn
    return list(found.values()), left_out


async def _bounded(work: Callable[[T], Awaitable[R]], items: Sequence[T], limit: int) -> list[R]:
    slots = asyncio.Semaphore(max(1, limit))

    async def one(item: T) -> R:
        async with slots:
            return await work(item)

    return await asyncio.gather(*(one(item) for item in items))


def _tally(turns: Sequence[TurnMatched], results: Sequence[list[TurnJudged] | TooFewVotes]) -> dict[str, Any]:
    judged = [j for r in results if isinstance(r, list) for j in r]
    abstained = Counter(v.reason for j in judged for v in j.votes if v.verdict is None)
    failed = []
    for turn, result in zip(turns, results, strict=True):
        if isinstance(result, TooFewVotes):
            abstained.update(result.abstentions)
            failed.append({"turn_id": turn.turn_id, "error": str(result)})
    return {
        "turns": len(turns),
        "records": len(judged),
        "verdicts": dict(sorted(Counter(f"{j.verdict:+d}" for j in judged).items())),
        "targets": dict(sorted(Counter(j.target for j in judged).items())),
        "evidence": dict(sorted(Counter(j.evidence for j in judged).items())),
        "dispositions": dict(sorted(Counter(j.disposition for j in judged).items())),
        "reasons": dict(sorted(Counter(j.reason for j in judged).items())),
        "hinted": sum(bool(j.hints) for j in judged),
        "abstentions": dict(sorted(abstained.items())),
        "failed": failed,
    }


def _forms() -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """The command line, and its two forms by name."""
    parser = argparse.ArgumentParser(prog="python -m libs.feedback", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    judge = commands.add_parser(
        "judge",
        prog="clawback judge",
        usage="%(prog)s FILE... --output FILE [options]",
        description="Judge matched turns from JSONL files.",
        help="judge matched turns",
    )
    add_inputs(judge, "turns.matched records")
    add_judge_arguments(judge)
    judge.add_argument("--output", type=Path, required=True, help="turns.judged records")
    judge.add_argument("--report", type=Path, help="counts as JSON (also printed)")
    judge.add_argument("--allow-uncaptured", action="store_true", help="a turn without capture counts as signal, too")
    score = commands.add_parser(
        "eval",
        prog="clawback judge-eval",
        usage="%(prog)s FILE... [options]",
        description="Score a judge on next states that people labelled (not on turns.judged records).",
        help="score a judge on labelled next states",
    )
    add_inputs(score, "labelled rows as in tests/data/feedback/next_states.jsonl")
    add_judge_arguments(score)
    score.add_argument("--confidence", default="", help="only rows with this confidence")
    score.add_argument("--split", default="", help="only rows of this split")
    score.add_argument("--json", action="store_true", help="print the report as JSON")
    return parser, {"judge": judge, "eval": score}


def main(argv: Sequence[str]) -> int:
    """`judge` (also without the word) or `eval`."""
    parser, forms = _forms()
    words = list(argv)
    args = parser.parse_args(words if words[:1] and words[0] in forms else ["judge", *words])
    args.input = input_files(forms[args.command], args)
    work = judge_file if args.command == "judge" else evaluate_files
    return exit_status(lambda: asyncio.run(work(args)))
