"""Loading a published release: digest first, then weights, ready to serve. The base stays shared by all adapters."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from libs.contracts import Adapter
from libs.errors import ClawbackError
from libs.learning.engine.decoder import Decoder
from libs.learning.engine.lora import load_lora
from libs.learning.engine.refused import ReleaseRefused
from libs.learning.engine.sequence import Release
from libs.learning.engine.weights import Weights, load_weights, weight_files


@dataclass(frozen=True, slots=True)
class Loaded:
    """A release in memory and the bytes that it holds beyond the shared base."""

    release: Release
    bytes_held: int


def load_release(release_id: str, adapter: Adapter, base: Decoder) -> Loaded:
    """Read a release's weights. Raises ReleaseRefused; whatever served before is untouched."""
    try:
        with _local(adapter.uri) as directory:
            if adapter.kind == "lora":
                return _lora(release_id, adapter, base, directory)
            return _full(release_id, adapter, base, directory)
    except ReleaseRefused:
        raise
    except ClawbackError as error:
        raise ReleaseRefused(f"{release_id}: {error}", reason=error.reason) from error
    except OSError as error:
        raise ReleaseRefused(f"{release_id}: cannot read {adapter.uri}: {error}", reason="weights_missing") from error


def _lora(release_id: str, adapter: Adapter, base: Decoder, directory: Path) -> Loaded:
    data = (directory / "adapter_model.safetensors").read_bytes()
    _check(release_id, adapter, hashlib.sha256(data).hexdigest())
    lora = load_lora(directory, base.weights, data)
    return Loaded(Release(release_id, base, lora), lora.bytes_held)


def _full(release_id: str, adapter: Adapter, base: Decoder, directory: Path) -> Loaded:
    files = weight_files(directory)
    _check(release_id, adapter, full_digest(files))
    b = base.weights
    weights = load_weights(directory, dtype=b.dtype, device=str(b.device), context=b.shape.context)
    if weights.shape != b.shape:
        raise ReleaseRefused(f"{release_id}: {directory} is another model than the base", reason="weights_shape")
    return Loaded(Release(release_id, Decoder(weights)), _bytes(weights))


def full_digest(files: list[Path]) -> str:
    """sha256 of the weight file; of the files' own digests, one a line in name order, where there are several."""
    digests = []
    for path in files:
        with path.open("rb") as source:
            digests.append(hashlib.file_digest(source, "sha256").hexdigest())
    return digests[0] if len(digests) == 1 else hashlib.sha256("\n".join(digests).encode()).hexdigest()


def _check(release_id: str, adapter: Adapter, found: str) -> None:
    if found != adapter.digest:
        raise ReleaseRefused(
            f"{release_id}: the weights in {adapter.uri} have sha256 {found}, published was {adapter.digest}",
            reason="digest",
        )


def _bytes(weights: Weights) -> int:
    tensors = [weights.embed, *([] if weights.head is weights.embed else [weights.head])]
    per_layer = [t for layer in weights.layers for t in (layer.qkv, layer.o, layer.gate_up, layer.down)]
    return sum(t.nbytes for t in (*tensors, *per_layer))


@contextmanager
def _local(uri: str) -> Iterator[Path]:
    """The release's directory on this machine; a remote one (s3://, gs://, ...) is fetched and removed again."""
    import fsspec

    system, path = fsspec.core.url_to_fs(uri)
    if "file" in (system.protocol if isinstance(system.protocol, tuple) else (system.protocol,)):
        yield Path(path)
        return
    with tempfile.TemporaryDirectory(prefix="release-") as folder:
        names = [name for name in system.ls(path, detail=False) if not name.rstrip("/").endswith("/trainer")]
        system.get(names, folder)
        yield Path(folder)
