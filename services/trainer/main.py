"""Entry point of the trainer: settings first, then the heavy imports, then the loop."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from libs.streams.config import load_or_exit
from services.trainer.config import load_settings


def main() -> int:
    settings = load_or_exit("trainer", load_settings)
    # Spinning OpenMP threads take the cores from the other services; both must be set before torch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    if settings.trainer_threads:
        os.environ["OMP_NUM_THREADS"] = str(settings.trainer_threads)

    from libs.streams.service import run_consumer
    from libs.streams.types import Handler
    from services.trainer.build import build
    from services.trainer.handler import BATCHES, RELEASES
    from services.trainer.start import batches_in_log

    @asynccontextmanager
    async def open_handler() -> AsyncIterator[Handler]:
        handler = build(settings)
        handler.on_log(await batches_in_log(settings, settings.input_topic(RELEASES)))
        yield handler

    return run_consumer("trainer", settings, [BATCHES, RELEASES], open_handler)
