"""Claim check: a record over the topic's limit lies in a blob store, and the topic carries a ticket for it.

The ticket is one line of JSON that starts with `{"claim":`. It names the blob relative to CLAWBACK_CLAIMS_URL (any
fsspec URL: file, s3, gs, abfs, ...), so that a forged ticket cannot point a consumer anywhere else, and it holds the
SHA-256 that is checked before the record is used. The blob is written before the ticket is sent; its name is made of
its digest, so storing it again changes nothing. Blobs are kept as long as the topic (a lifecycle rule of the store).
"""

from __future__ import annotations

import hashlib
import os
import posixpath
import re
import uuid
from pathlib import Path

import fsspec
import msgspec

from libs.errors import ContractError, RetryError

_MARK = b'{"claim":'
_NAME = re.compile(r"[A-Za-z0-9._-]+/[A-Za-z0-9._-]+\.json")


class Claim(msgspec.Struct, frozen=True):
    """Where the record lies, and what its bytes must be."""

    name: str  # "<topic>/<sha256>.json" under the store's URL
    sha256: str
    bytes: int


class Ticket(msgspec.Struct, frozen=True):
    """What travels in the record's place."""

    claim: Claim


def default_url() -> str:
    """Under CLAWBACK_HOME, for one machine. Several machines need a store that all of them reach."""
    return (Path(os.environ.get("CLAWBACK_HOME", ".clawback")) / "claims").absolute().as_uri()


def is_ticket(value: bytes) -> bool:
    """Whether a topic's value stands for a record that lies elsewhere."""
    return value.startswith(_MARK)


def store(value: bytes, url: str, topic: str) -> bytes:
    """Write the record to the store; returns the ticket. Blocks on I/O. Raises RetryError when the store is away."""
    digest = hashlib.sha256(value).hexdigest()
    name = f"{topic}/{digest}.json"
    try:
        filesystem, root = fsspec.core.url_to_fs(url or default_url())
        if not url:
            Path(root).mkdir(mode=0o700, parents=True, exist_ok=True)  # whole exchanges: nobody else's to read
        path = posixpath.join(root, name)
        if not (filesystem.exists(path) and filesystem.size(path) == len(value)):
            filesystem.makedirs(posixpath.dirname(path), exist_ok=True)
            part = f"{path}.{uuid.uuid4().hex}.part"  # a reader never sees half a blob, nor two writers each other's
            filesystem.pipe_file(part, value)
            filesystem.mv(part, path)
    except Exception as error:  # each kind of store has errors of its own, and none is the record's fault
        raise RetryError(f"cannot store a claim under {url}: {error}", reason="claim_store") from error
    return msgspec.json.encode(Ticket(Claim(name=name, sha256=digest, bytes=len(value))))


def redeem(ticket: bytes, url: str) -> bytes:
    """The record that a ticket stands for. Blocks on I/O.

    Raises ContractError when the ticket is malformed, the store answers that it has no such blob (it was stored before
    the ticket was sent, so it is gone for good), or the blob is not the one that was sent; RetryError when the store
    does not answer.
    """
    try:
        claim = msgspec.json.decode(ticket, type=Ticket).claim
    except msgspec.MsgspecError as error:
        raise ContractError(f"not a valid claim ticket: {error}", reason="claim_ticket") from error
    if not _NAME.fullmatch(claim.name) or ".." in claim.name:
        raise ContractError(f"claim.name {claim.name!r} is not <topic>/<sha256>.json", reason="claim_ticket")
    try:
        filesystem, root = fsspec.core.url_to_fs(url or default_url())
        value: bytes = filesystem.cat_file(posixpath.join(root, claim.name))
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise ContractError(
            f"no claim {claim.name} under {url or default_url()}: it was deleted, or CLAWBACK_CLAIMS_URL names another "
            "store; restore it, then `clawback dead-letters retry`",
            reason="claim_missing",
        ) from error
    except Exception as error:
        raise RetryError(f"cannot read claim {claim.name} under {url}: {error}", reason="claim_read") from error
    if len(value) != claim.bytes or hashlib.sha256(value).hexdigest() != claim.sha256:
        raise ContractError(
            f"claim {claim.name} has other bytes than were sent (sha256 differs)", reason="claim_digest"
        )
    return value
