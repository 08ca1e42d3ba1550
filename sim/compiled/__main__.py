"""Compiles the simulator: `make compiled`, or `python -m sim.compiled`.

Needs mypy (which brings mypyc), setuptools, a C compiler and the headers of this Python; neither
the node nor the simulator needs any of them. A build that fails leaves nothing that is taken for
one.
"""

import compileall
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from importlib.util import find_spec
from pathlib import Path

import protocol
from node.processes.children import child_environment
from protocol.errors import ConfigError
from sim.compiled.adapting import adapted, bases
from sim.compiled.builds import build_folder, is_complete, mark_complete, source_digest, sources

_SHOWN_LINES = 20

NATIVE = {
    "node/holdings": "journal record_log recovery results shard_store states",
    "node/peers": "leaving",
    "node/plane": "bulk bulk_queue gathered served",
    "node/reporting": "tracing",
    "protocol": "entries events evidence frames gossip grid hybrid_clock identity leases"
    " limits messages wire",
    "protocol/auditing": "*",
    "protocol/catching_up": "catchup cell_fetch chain_sources",
    "protocol/core": "budgets liveness node_core relay",
    "protocol/rounds": "*",
    "sim/checks": "accounting bounds forks history invariants leaks progress reference seating"
    " traces",
    "sim/trials": "chaos expectations watching",
    "sim/world": "disk edge files links nodes sharing timeline traffic work world",
    "training/files": "durable",
    "training/numeric": "arithmetic",
    "training/outer": "optimizers",
    "training/compression": "dense",
}
"""What a world spends its time in. One group: calls and attributes are fast within it only.

None from which others inherit, none whose objects are copied (`copy.copy`), none that gives several
sorts of errors one name in one function: mypyc takes these for something else.
"""


def main() -> int:
    """Make the build of the present sources; the exit status."""
    folder = build_folder()
    if is_complete(folder):
        sys.stdout.write(f"up to date: {folder}\n")
        return 0
    try:
        build(folder)
    except ConfigError as error:
        sys.stderr.write(f"make compiled: {error}\n")
        return 1
    sys.stdout.write(f"done: {folder}\n")
    return 0


def build(folder: Path, root: Path | None = None) -> None:
    """Compile what is below `root` into `folder`. Raises ConfigError, and then leaves nothing."""
    check_tools()
    root = root or Path(protocol.__path__[0]).resolve().parent
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="unfinished-") as name:
        made = Path(name) / "made"
        for path in sources(root):
            target = made / path.relative_to(root)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
        if source_digest(made) != folder.name:
            raise ConfigError("the sources have changed meanwhile: start again")
        modules = native_modules(made)
        texts = {path: path.read_text(encoding="utf-8") for path in modules}
        inherited = bases(texts.values())
        for path, text in texts.items():
            path.write_text(adapted(text, inherited), encoding="utf-8")
        _compile(made, modules)
        # Tracebacks show lines of the source, not of what mypyc was given.
        for path, text in texts.items():
            path.write_text(text, encoding="utf-8")
        shutil.rmtree(made / "made-c", ignore_errors=True)
        # Each worker imports them anew, and some environments have Python keep nothing of that.
        compileall.compile_dir(made, quiet=2)
        mark_complete(made)
        shutil.rmtree(folder, ignore_errors=True)
        made.rename(folder)


def native_modules(root: Path) -> list[Path]:
    """The modules that are compiled, below `root`."""
    found = []
    for room, names in NATIVE.items():
        for name in names.split():
            found += [path for path in (root / room).glob(f"{name}.py") if path.stem != "__init__"]
    return sorted(found)


def check_tools() -> None:
    """Raise ConfigError for what is missing on this machine."""
    for name in ("mypyc", "setuptools"):
        if find_spec(name) is None:
            raise ConfigError(
                f"{name} is not installed: `make install` brings mypyc, pip setuptools"
            )
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if not header.is_file():
        raise ConfigError(f"no headers of this Python: {header} is missing (python3-dev has it)")
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None:
        raise ConfigError(f"no C compiler: {compiler} is not on the path")


def _compile(made: Path, modules: list[Path]) -> None:
    # A process of its own: it works in another folder, and setuptools patches what it is loaded in.
    command = [sys.executable, "-P", "-m", "sim.compiled.native"]
    command += [path.relative_to(made).as_posix() for path in modules]
    log = made.parent / "log"
    with log.open("w", encoding="utf-8") as file:
        process = subprocess.run(
            command, cwd=made, env=child_environment(), stderr=file, check=False
        )
    if process.returncode != 0:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        told = [line for line in lines if "warning:" not in line][-_SHOWN_LINES:]
        raise ConfigError("mypyc or the C compiler failed:\n" + "\n".join(told))


if __name__ == "__main__":
    sys.exit(main())
