"""Runs mypyc and the C compiler over the modules that it is given, in the present folder.

Started by `sim.compiled`. One C file a module, on all cores: one for all takes the C compiler three
times as long.
"""

import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from sim.compiled.builds import cores

_OPT_LEVEL = "3"

_DIRECT_CALLS = ["-fno-plt", "-fvisibility=hidden"]
"""Else each call from one module to another, and to Python, goes through one more jump."""

_MYPY = ("--config-file=", "--ignore-missing-imports")
"""No settings of the project: they are for the types as they are written, not as adapted."""


def main() -> None:
    """Compile `sys.argv[1:]`."""
    from mypyc.build import mypycify
    from setuptools import Distribution
    from setuptools.command.build_ext import build_ext

    class Build(build_ext):  # type: ignore[misc]
        def build_extensions(self) -> None:
            self.compiler.compile = _parallel(self.compiler.compile)
            super().build_extensions()

    paths = sys.argv[1:]
    _tell(f"mypyc: {len(paths)} modules")
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    extensions = mypycify(
        [*_MYPY, "--python-version", version, *paths],
        opt_level=_OPT_LEVEL,
        debug_level="0",
        multi_file=True,
        target_dir="made-c",
    )
    for extension in extensions if sys.platform == "linux" else ():
        extension.extra_compile_args += _DIRECT_CALLS
    settings = {"ext_modules": extensions, "cmdclass": {"build_ext": Build}}
    command: Any = Distribution(settings).get_command_obj("build_ext")
    command.inplace, command.build_temp = True, "made-c/objects"
    command.ensure_finalized()
    command.run()


def _tell(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _parallel(compile_one: Any) -> Any:  # noqa: ANN401 - distutils has no types
    def compile_all(files: list[str], **options: object) -> list[str]:
        def one(file: str) -> list[str]:
            objects: list[str] = compile_one([file], **options)
            return objects

        done: list[str] = []
        with ThreadPoolExecutor(cores()) as pool:
            for number, objects in enumerate(pool.map(one, files), 1):
                done += objects
                if len(files) > 1 and number % 10 in (0, len(files) % 10):
                    _tell(f"compiled {number} of {len(files)}")
        return done

    return compile_all


if __name__ == "__main__":
    main()
