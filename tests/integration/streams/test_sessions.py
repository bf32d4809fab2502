"""Scripts in a real Redis: atomic, found again after a restart, and errors that say what to do."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from deploy.local import redis as local_redis
from deploy.local.process import free_port
from libs.errors import RetryError, StopError
from libs.streams.sessions import Script, ScriptStore

pytestmark = pytest.mark.integration

ADD = Script("return redis.call('INCRBY', KEYS[1], ARGV[1])")


@pytest.fixture
async def store(redis_url: str) -> AsyncIterator[ScriptStore]:
    found = ScriptStore(redis_url, timeout_seconds=2.0)
    yield found
    await found.close()


async def test_a_script_runs_though_the_server_has_not_seen_it(store: ScriptStore) -> None:
    await store.redis.script_flush()
    assert await store.run(ADD, ["n"], [2]) == 2
    assert await store.run(ADD, ["n"], [3]) == 5


async def test_several_scripts_in_one_round_trip_fail_one_by_one(store: ScriptStore) -> None:
    await store.redis.script_flush()
    wrong = Script("return redis.call('INCRBY', KEYS[1], 'no number')")
    replies = await store.run_all([(ADD, ["all"], [2]), (wrong, ["all"], []), (ADD, ["all"], [3])])
    assert [type(r) if isinstance(r, Exception) else r for r in replies] == [2, StopError, 5]


async def test_a_wrong_script_stops_the_service(store: ScriptStore) -> None:
    with pytest.raises(StopError, match="redis"):
        await store.run(Script("return redis.call('NO_SUCH_COMMAND')"), [], [])


async def test_a_restart_without_data_and_an_absence_are_passed_over(tmp_path: Path) -> None:
    port = free_port()
    server, url = local_redis.start(tmp_path / "redis.log", port)
    store = ScriptStore(url, timeout_seconds=1.0)
    try:
        assert await store.run(ADD, ["n"], [1]) == 1
        server.stop(5.0)
        with pytest.raises(RetryError):
            await store.run(ADD, ["n"], [1])
        server, _ = local_redis.start(tmp_path / "redis.log", port)
        await store.ping()
        assert await store.run(ADD, ["n"], [1]) == 1
    finally:
        await store.close()
        server.stop(5.0)


async def test_state_with_a_folder_survives_kill_9(tmp_path: Path) -> None:
    port = free_port()
    server, url = local_redis.start(tmp_path / "redis.log", port, data=tmp_path / "data")
    store = ScriptStore(url, timeout_seconds=1.0)
    try:
        assert await store.run(ADD, ["n"], [7]) == 7
        await store.redis.waitaof(1, 0, 5000)  # the append-only file is on the disk
        server.signal(signal.SIGKILL)
        server.stop(5.0)
        server, _ = local_redis.start(tmp_path / "redis.log", port, data=tmp_path / "data")
        await store.ping()
        assert await store.run(ADD, ["n"], [0]) == 7
    finally:
        await store.close()
        server.stop(5.0)


async def test_a_server_that_hangs_is_a_passing_cause(tmp_path: Path) -> None:
    server, url = local_redis.start(tmp_path / "redis.log")
    store = ScriptStore(url, timeout_seconds=0.2)
    try:
        await store.ping()
        server.signal(signal.SIGSTOP)
        with pytest.raises(RetryError):
            await store.run(ADD, ["n"], [1])
        with pytest.raises(RetryError, match="in time"):
            await store.run_all([(ADD, ["n"], [1]), (ADD, ["m"], [1])])
        server.signal(signal.SIGCONT)
        await store.run(ADD, ["n"], [1])
        # What was sent to the hanging server may have been done as well; no reply to it is taken for one of these.
        assert await store.run_all([(ADD, ["new"], [5]), (ADD, ["new"], [6])]) == [5, 11]
    finally:
        await store.close()
        server.stop(5.0)
