"""The records that travel between services: one module per topic, one struct each, plain JSON on the wire."""

from libs.contracts.base import Array, Capture, Message, Record, decode, encode
from libs.contracts.dead_letters import DeadLetter
from libs.contracts.exchanges_classified import ExchangeClassified
from libs.contracts.policy_releases import BASE_RELEASE, Adapter, PolicyRelease
from libs.contracts.tombstones import Tombstone
from libs.contracts.traffic_raw import TrafficRaw
from libs.contracts.training_batches import Sample, TrainingBatch
from libs.contracts.turns_judged import TurnJudged, Vote
from libs.contracts.turns_matched import EarlierTurn, TurnMatched

TOPICS: dict[str, type[Record]] = {
    "traffic.raw": TrafficRaw,
    "exchanges.classified": ExchangeClassified,
    "turns.matched": TurnMatched,
    "turns.judged": TurnJudged,
    "training.batches": TrainingBatch,
    "policy.releases": PolicyRelease,
    "dead.letters": DeadLetter,
    "tombstones": Tombstone,
}

__all__ = [
    "BASE_RELEASE",
    "TOPICS",
    "Adapter",
    "Array",
    "Capture",
    "DeadLetter",
    "EarlierTurn",
    "ExchangeClassified",
    "Message",
    "PolicyRelease",
    "Record",
    "Sample",
    "Tombstone",
    "TrafficRaw",
    "TrainingBatch",
    "TurnJudged",
    "TurnMatched",
    "Vote",
    "decode",
    "encode",
]
