"""A smallest service on the real shell: copies turns.matched to turns.judged. Started by test_processes.py."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

from libs.errors import ContractError
from libs.streams.config import ServiceSettings, load
from libs.streams.service import run_consumer
from libs.streams.types import Done, Held, Output, Partition, StreamRecord


class Copier:
    async def handle(self, record: StreamRecord) -> Done | Held:
        if record.value.startswith(b"poison"):
            raise ContractError("poison")
        await asyncio.sleep(0.002)  # work, so that records are in flight when the process is killed
        return Done(outputs=(Output("turns.judged", record.value.decode(), record.value),))

    async def tick(self) -> None:
        return None

    async def revoked(self, partitions: Collection[Partition]) -> None:
        return None


@asynccontextmanager
async def open_handler() -> AsyncIterator[Copier]:
    yield Copier()


if __name__ == "__main__":
    sys.exit(run_consumer(sys.argv[1], load(ServiceSettings), ["turns.matched"], open_handler))
