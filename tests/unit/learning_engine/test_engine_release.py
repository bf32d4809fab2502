"""A release loads only when it is exactly what was published; every refusal has its reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from libs.contracts import Adapter
from libs.learning.engine.decoder import Decoder
from libs.learning.engine.refused import ReleaseRefused
from libs.learning.engine.release import full_digest, load_release
from libs.learning.engine.weights import load_weights, weight_files
from tests.tiny_model import write_model
from tests.unit.learning_engine.support import digest, write_adapter

NAME = "adapter_model.safetensors"


@pytest.fixture(scope="module")
def base(model_dir: Path) -> Decoder:
    return Decoder(load_weights(model_dir))


def rewrite(directory: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> Adapter:
    """Change tensors and publish the result: the digest is right, the content is not."""
    tensors = load_file(directory / NAME)
    change(tensors)
    save_file(tensors, directory / NAME)
    return Adapter(kind="lora", uri=str(directory), digest=digest(directory / NAME))


def configure(directory: Path, **values: object) -> None:
    path = directory / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_an_adapter_loads_from_a_path_or_a_url(model_dir: Path, base: Decoder, tmp_path: Path, scheme: str) -> None:
    adapter = write_adapter(model_dir, tmp_path / "a", seed=0)
    loaded = load_release("r", Adapter(kind="lora", uri=scheme + adapter.uri, digest=adapter.digest), base)
    assert loaded.release.release_id == "r"
    assert loaded.bytes_held > 0
    assert loaded.release.decoder is base, "the base is shared, not copied"


def test_an_adapter_loads_from_a_remote_store(model_dir: Path, base: Decoder, tmp_path: Path) -> None:
    import fsspec

    adapter = write_adapter(model_dir, tmp_path / "a", seed=0)
    (tmp_path / "a" / "trainer").mkdir()
    (tmp_path / "a" / "trainer" / "optimizer.safetensors").write_bytes(b"large")
    fsspec.filesystem("memory").put(str(tmp_path / "a"), "/bucket/a", recursive=True)
    loaded = load_release("r", Adapter(kind="lora", uri="memory://bucket/a", digest=adapter.digest), base)
    assert loaded.release.lora is not None


def refused(adapter: Adapter, base: Decoder) -> str:
    with pytest.raises(ReleaseRefused) as caught:
        load_release("r", adapter, base)
    assert "r: " in str(caught.value), "the message names the release"
    return caught.value.reason


def test_a_changed_byte_is_refused(model_dir: Path, base: Decoder, tmp_path: Path) -> None:
    adapter = write_adapter(model_dir, tmp_path / "a", seed=0)
    path = tmp_path / "a" / NAME
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert refused(adapter, base) == "digest"


@pytest.mark.parametrize("missing", [NAME, "adapter_config.json"])
def test_missing_files_are_refused(model_dir: Path, base: Decoder, tmp_path: Path, missing: str) -> None:
    adapter = write_adapter(model_dir, tmp_path / "a", seed=0)
    (tmp_path / "a" / missing).unlink()
    assert refused(adapter, base) in ("weights_missing", "weights_unreadable")


def test_a_truncated_file_is_refused_even_when_that_was_published(
    model_dir: Path, base: Decoder, tmp_path: Path
) -> None:
    write_adapter(model_dir, tmp_path / "a", seed=0)
    path = tmp_path / "a" / NAME
    path.write_bytes(path.read_bytes()[:-100])
    assert refused(Adapter(kind="lora", uri=str(tmp_path / "a"), digest=digest(path)), base) == "weights_unreadable"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda t: t.__setitem__(min(t), torch.full_like(t[min(t)], float("nan"))), "weights_not_finite"),
        (lambda t: t.pop(min(t)), "weights_incomplete"),
        (lambda t: t.__setitem__(min(t), torch.zeros(4, 99)), "weights_shape"),
        (lambda t: t.__setitem__("base_model.model.lm_head.lora_A.weight", torch.zeros(4, 32)), "adapter_unsupported"),
        (lambda t: t.__setitem__(min(t).replace("layers.0", "layers.9"), t[min(t)].clone()), "adapter_unsupported"),
    ],
)
def test_unfit_tensors_are_refused(
    model_dir: Path, base: Decoder, tmp_path: Path, change: Callable[[dict[str, torch.Tensor]], None], reason: str
) -> None:
    write_adapter(model_dir, tmp_path / "a", seed=0)
    assert refused(rewrite(tmp_path / "a", change), base) == reason


@pytest.mark.parametrize("field", [{"use_dora": True}, {"bias": "all"}, {"modules_to_save": ["lm_head"]}], ids=str)
def test_more_than_plain_lora_is_refused(
    model_dir: Path, base: Decoder, tmp_path: Path, field: dict[str, object]
) -> None:
    adapter = write_adapter(model_dir, tmp_path / "a", seed=0)
    configure(tmp_path / "a", **field)
    assert refused(adapter, base) == "adapter_unsupported"


def test_full_weights_of_another_model_are_refused(base: Decoder, tmp_path: Path) -> None:
    directory = write_model(tmp_path, context=256)
    adapter = Adapter(kind="full", uri=str(directory), digest=digest(directory / "model.safetensors"))
    assert refused(adapter, base) == "weights_shape"


def test_sharded_weights_have_one_digest_over_all_files(model_dir: Path, base: Decoder, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    AutoModelForCausalLM.from_pretrained(model_dir).save_pretrained(tmp_path, max_shard_size="40KB")
    files = weight_files(tmp_path)
    assert len(files) > 1
    adapter = Adapter(kind="full", uri=str(tmp_path), digest=full_digest(files))
    assert load_release("r", adapter, base).release.decoder is not base
    files[1].write_bytes(files[1].read_bytes()[:-1] + b"\x01")
    assert refused(adapter, base) == "digest"
