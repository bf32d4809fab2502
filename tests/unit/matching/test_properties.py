"""What must hold for any traffic: order of partitions, redelivery, echoes, borders, crashes."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from libs.contracts import TrafficRaw, encode
from libs.dialects import partition_key
from libs.matching.identity import identify
from libs.matching.matcher import Matcher
from libs.matching.memory import MemoryStore
from tests.unit.matching.traffic import traffics

Pairs = set[tuple[str, str]]
Both = tuple[list[TrafficRaw], list[TrafficRaw]]
many = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)


def outputs(records: Sequence[TrafficRaw]) -> tuple[Pairs, dict[str, list[bytes]]]:
    """Bindings (turn, answer), and everything each record gave."""

    async def run() -> tuple[Pairs, dict[str, list[bytes]]]:
        matcher = Matcher(MemoryStore())
        pairs: Pairs = set()
        given_: dict[str, list[bytes]] = defaultdict(list)
        for record in records:
            outcome = await matcher.match(record)
            pairs |= {(b.turn_id, b.answered_by) for b in outcome.bindings if b.evidence == "next_state"}
            given_[record.exchange_id].append(b"".join(encode(r) for r in (*outcome.bindings, *outcome.classified)))
        return pairs, given_

    return asyncio.run(run())


@st.composite
def interleaved(draw: st.DrawFn) -> tuple[list[TrafficRaw], list[TrafficRaw]]:
    """Traffic in order of arrival, and with its partitions delivered in any interleaving."""
    records = draw(traffics())
    partitions: dict[str, list[TrafficRaw]] = defaultdict(list)
    for record in records:
        partitions[partition_key(record)].append(record)
    queues = list(partitions.values())
    mixed: list[TrafficRaw] = []
    for pick in draw(st.lists(st.integers(0, 7), min_size=len(records), max_size=len(records))):
        queues = [q for q in queues if q]
        mixed.append(queues[pick % len(queues)].pop(0))
    return records, mixed


@many
@given(interleaved())
def test_any_interleaving_of_partitions_gives_the_same_bindings(
    both: tuple[list[TrafficRaw], list[TrafficRaw]],
) -> None:
    arrived, mixed = both
    assert outputs(mixed)[0] == outputs(arrived)[0]


@many
@given(traffics(), st.data())
def test_a_record_delivered_twice_changes_nothing(records: list[TrafficRaw], data: st.DataObject) -> None:
    repeated = list(records)
    for _ in range(data.draw(st.integers(1, 4))):
        n = data.draw(st.integers(0, len(records) - 1))
        after = next(i for i, r in enumerate(repeated) if r.exchange_id == records[n].exchange_id)
        repeated.insert(data.draw(st.integers(after + 1, len(repeated))), records[n])
    pairs, once = outputs(records)
    again, given_ = outputs(repeated)
    assert again == pairs
    assert all(set(given_[name]) == set(once[name]) for name in once)


@many
@given(traffics())
def test_bindings_stay_inside_their_borders_and_point_back_in_time(records: list[TrafficRaw]) -> None:
    known = {r.exchange_id: r for r in records}
    for turn, answer in outputs(records)[0]:
        a, b = known[turn], known[answer]
        assert turn != answer and a.received_at < b.received_at
        assert identify(a).space == identify(b).space, "no crossing of tags, tenants or scenarios"
        assert a.request != b.request, "a reply to the same request is no turn of it"


@many
@given(traffics())
def test_each_exchange_answers_one_turn_at_most(records: list[TrafficRaw]) -> None:
    answers = [answer for _, answer in outputs(records)[0]]
    assert len(answers) == len(set(answers))
