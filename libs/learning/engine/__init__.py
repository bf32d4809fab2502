"""The generation engine: a lean decoder with continuous batching, one adapter per scenario in one batch.

No I/O beyond reading weight files, no threads, no clock: `Engine.step()` advances every running sequence by one token
and says what happened, so the whole engine is tested in a plain loop.
"""
