"""Called by an installation: compiles the kernels, where there is a C compiler."""

import runpy
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class KernelsHook(BuildHookInterface):  # type: ignore[type-arg]  # its configuration is our own
    """A wheel with compiled kernels is of this kind of machine, any other one of all."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Before the files are collected; of an editable installation beside the source."""
        building = runpy.run_path(str(Path(self.root, "training", "kernels", "building.py")))
        self.app.display_info(f"kernels: {building['build']()}")
        library: Path = building["LIBRARY"]
        if version == "editable" or not library.exists():
            return
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform}"
        build_data["artifacts"].append(library.relative_to(self.root).as_posix())
