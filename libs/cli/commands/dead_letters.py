"""Records that were set aside: list them by reason, show one whole, send them to their topic again."""

from __future__ import annotations

import asyncio
import base64
import time
from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from libs.cli.say import say, say_json

if TYPE_CHECKING:
    from libs.contracts import DeadLetter

RETRIED = "retried"  # reason of the copy that says that a letter was sent again


@click.group("dead-letters", help=__doc__)
def command() -> None:
    pass


@command.command("list")
@click.option("--service", help="only what this service set aside")
@click.option("--reason", help="only letters with this reason")
@click.option("--topic", help="only letters of this topic")
@click.option("--retried", is_flag=True, help="those that were sent again, too")
@click.option("--json", "as_json", is_flag=True, help="the letters as JSON, without their values")
def list_(service: str | None, reason: str | None, topic: str | None, retried: bool, as_json: bool) -> None:
    """What was set aside, newest last."""
    letters = [x for x in asyncio.run(read(retried=retried)) if _fits(x, service, reason, topic)]
    if as_json:
        say_json([_public(x) for x in letters])
        return
    for letter in letters:
        when = datetime.fromtimestamp(letter.failed_at, UTC).strftime("%m-%d %H:%M:%S")
        say(f"{when}  {letter.dead_letter_id:32}  {letter.service}/{letter.reason}  {letter.error[:90]}")
    counts = Counter(f"{x.service}/{x.reason}" for x in letters)
    say("  ".join(f"{label}: {n}" for label, n in counts.most_common()) or "no dead letters")


@command.command("show")
@click.argument("dead_letter_id")
def show(dead_letter_id: str) -> None:
    """One letter with its record as text."""
    letter = _find(asyncio.run(read(retried=True)), dead_letter_id)
    value = base64.b64decode(letter.value)
    shown = _public(letter) | {"key": _text(letter.key), "value": value.decode("utf-8", "backslashreplace")}
    say_json(shown)


@command.command("retry")
@click.argument("ids", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="all that fit the filters")
@click.option("--service", help="only what this service set aside")
@click.option("--reason", help="only letters with this reason")
@click.option("--topic", help="only letters of this topic")
def retry(ids: tuple[str, ...], everything: bool, service: str | None, reason: str | None, topic: str | None) -> None:
    """Send records to their topic again, byte for byte; mend the cause first. What fails again is a new letter."""
    if bool(ids) == everything:
        raise click.UsageError("give ids, or --all (with --service, --reason or --topic to choose)")
    letters = asyncio.run(read(retried=False))
    chosen = [_find(letters, i) for i in ids] or [x for x in letters if _fits(x, service, reason, topic)]
    sendable = [x for x in chosen if x.value]
    asyncio.run(_send_again(sendable))
    for letter in chosen:
        if letter.value:
            say(f"{letter.dead_letter_id} -> {letter.source_topic}")
        else:
            say(f"{letter.dead_letter_id}: its bytes were left out (too large); read them from the source topic")
    say(f"sent {len(sendable)} again")


async def read(*, retried: bool) -> list[DeadLetter]:
    """The newest state of each letter, in the order they were written; sent ones only with `retried`."""
    from libs.cli.connect import settings
    from libs.contracts import DeadLetter
    from libs.contracts.dead_letters import TOPIC
    from libs.streams.tap import tap

    used = settings()
    letters: dict[str, DeadLetter] = {}
    sent: set[str] = set()
    async for tapped in tap(used, [used.input_topic(TOPIC)]):
        if isinstance(tapped.record, DeadLetter):
            letter = tapped.record
            if letter.reason == RETRIED:
                sent.add(letter.dead_letter_id)
            elif letter.dead_letter_id not in letters or letter.service != "monitor":
                letters[letter.dead_letter_id] = letter  # who should have handled it says more than who only looked
    return [x for i, x in letters.items() if retried or i not in sent]


async def _send_again(letters: list[DeadLetter]) -> None:
    import msgspec

    from libs.cli.connect import settings
    from libs.cli.produce import produce
    from libs.contracts import encode
    from libs.contracts.dead_letters import TOPIC
    from libs.streams.types import Output

    used = settings()
    outputs = []
    for letter in letters:
        outputs.append(Output(letter.source_topic, _text(letter.key), base64.b64decode(letter.value)))
        mark = msgspec.structs.replace(
            letter, reason=RETRIED, error=f"sent again, was {letter.reason}", failed_at=time.time(), value=""
        )
        outputs.append(Output(used.input_topic(TOPIC), letter.dead_letter_id, encode(mark)))
    await produce(used, outputs)


def _find(letters: list[DeadLetter], dead_letter_id: str) -> DeadLetter:
    for letter in letters:
        if letter.dead_letter_id == dead_letter_id:
            return letter
    raise click.ClickException(f"no dead letter {dead_letter_id} that waits; `clawback dead-letters list` shows them")


def _fits(letter: DeadLetter, service: str | None, reason: str | None, topic: str | None) -> bool:
    return (
        service in (None, letter.service) and reason in (None, letter.reason) and topic in (None, letter.source_topic)
    )


def _public(letter: DeadLetter) -> dict[str, Any]:
    import msgspec

    shown: dict[str, Any] = msgspec.to_builtins(letter)
    del shown["value"]
    return shown


def _text(key: str | None) -> str | None:
    return None if key is None else base64.b64decode(key).decode("utf-8", "replace")
