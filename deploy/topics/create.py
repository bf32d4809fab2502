"""Create the topics of topics.yaml on a broker: `python -m deploy.topics.create --bootstrap HOST:PORT [--local]`."""

from __future__ import annotations

import argparse
import asyncio
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError, TopicAlreadyExistsError, for_code

from libs.errors import ConfigError, RetryError
from libs.streams.client import client_options
from libs.streams.config import ServiceSettings

FILE = Path(__file__).with_name("topics.yaml")


@dataclass(frozen=True, slots=True)
class Topic:
    """One entry of topics.yaml with the defaults filled in."""

    name: str
    partitions: int
    local_partitions: int
    replication_factor: int
    min_insync_replicas: int
    retention_hours: int
    max_message_bytes: int
    cleanup_policy: str
    about: str

    def count(self, *, local: bool, partitions: int = 0) -> int:
        """How many partitions to create."""
        given = self.local_partitions if local else self.partitions
        return partitions if partitions and given > 1 else given

    def config(self, *, local: bool) -> dict[str, str]:
        """The topic's settings in Kafka's own names."""
        return {
            "retention.ms": str(-1 if self.retention_hours < 0 else self.retention_hours * 3_600_000),
            "max.message.bytes": str(self.max_message_bytes),
            "cleanup.policy": self.cleanup_policy,
            "min.insync.replicas": "1" if local else str(self.min_insync_replicas),
        }


def topics(path: Path = FILE) -> list[Topic]:
    """Read the file. Raises ConfigError that names the topic and the field."""
    content: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    found = []
    for name, own in content["topics"].items():
        try:
            found.append(Topic(name=name, **(content["defaults"] | own)))
        except TypeError as error:
            raise ConfigError(f"{path.name}: {name}: {error}") from error
    return found


async def create(
    settings: ServiceSettings, *, local: bool, only: tuple[str, ...] = (), suffix: str = "", partitions: int = 0
) -> list[str]:
    """Create what is missing and return the names created. Raises RetryError when the broker is away, ConfigError.

    `only` limits it to these topics; `suffix` is appended to their names (a replay's side topics, tests). `partitions`
    replaces what the file says, except for topics that have one partition on purpose.
    """
    wanted = [t for t in topics() if not only or t.name in only]
    admin = AIOKafkaAdminClient(**client_options(settings))
    try:
        await admin.start()
        present = set(await admin.list_topics())
        new = [
            NewTopic(
                t.name + suffix,
                t.count(local=local, partitions=partitions),
                1 if local else t.replication_factor,
                topic_configs=t.config(local=local),
            )
            for t in wanted
            if t.name + suffix not in present
        ]
        answer = await admin.create_topics(new) if new else None
    except (KafkaError, OSError) as error:
        raise RetryError(f"cannot create topics: {error!r}", reason="kafka_admin") from error
    finally:
        await admin.close()
    for name, code, *message in answer.topic_errors if answer is not None else ():
        if code and for_code(code) is not TopicAlreadyExistsError:
            raise ConfigError(f"topic {name} was refused: {for_code(code).__name__} {message}")
    return [t.name for t in new]


def main() -> int:
    """Command line; exit status 1 with one line on stderr when it cannot be done."""
    parser = argparse.ArgumentParser(description="Create Clawback's topics.")
    parser.add_argument("--bootstrap", help="host:port; CLAWBACK_KAFKA_BOOTSTRAP_SERVERS if not given")
    parser.add_argument("--local", action="store_true", help="few partitions, one replica")
    args = parser.parse_args()
    settings = ServiceSettings(**({"kafka_bootstrap_servers": args.bootstrap} if args.bootstrap else {}))
    try:
        created = asyncio.run(create(settings, local=args.local))
    except (ConfigError, RetryError) as error:
        print(error, file=sys.stderr)
        return 1
    print("\n".join(f"created {name}" for name in created) or "all topics are there")
    return 0


if __name__ == "__main__":
    sys.exit(main())
