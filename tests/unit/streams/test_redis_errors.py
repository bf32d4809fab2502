"""What a Redis server says that may pass is waited out; only a wrong script or command stops the service."""

from __future__ import annotations

import pytest
from redis._parsers.base import BaseParser
from redis.exceptions import RedisError

from libs.errors import RetryError, StopError
from libs.streams.sessions import as_ours

PASSING = (
    "READONLY You can't write against a read only replica.",
    "OOM command not allowed when used memory > 'maxmemory'. script: 5f2a, on @user_script:1.",
    "CLUSTERDOWN The cluster is down",
    "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
    "TRYAGAIN Multiple keys request during rehashing of slot",
    "LOADING Redis is loading the dataset in memory",
    "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
    "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.",
    "NOREPLICAS Not enough good replicas to write.",
    "ERR Error running script (call to f_5f2a): @user_script:9: -OOM command not allowed when used memory > 'max'.",
    "ERR max number of clients reached",
)
LASTING = (
    "ERR user_script:5: attempt to index a nil value script: 5f2a, on @user_script:5.",
    "WRONGTYPE Operation against a key holding the wrong kind of value",
    "CROSSSLOT Keys in request don't hash to the same slot",
)


def read(line: str) -> RedisError:
    """As the client's own parser reads it: it takes the code off and makes it a class."""
    error = BaseParser.parse_error(line)
    assert isinstance(error, RedisError)
    return error


@pytest.mark.parametrize("line", PASSING)
def test_what_passes_is_tried_again(line: str) -> None:
    assert isinstance(as_ours(read(line)), RetryError)


@pytest.mark.parametrize("line", LASTING)
def test_a_wrong_script_or_command_stops(line: str) -> None:
    assert isinstance(as_ours(read(line)), StopError)
