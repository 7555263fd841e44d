"""Builds the compiled steps of the hot path when the package is installed. Without a compiler the package uses Python's."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = Path("src") / "millrace" / "hotpath" / "compiled.pyx"
MODULE = "millrace.hotpath.compiled"


class CompiledSteps(BuildHookInterface[Any]):
    """Puts the extension beside its source, where an editable installation looks for it, and adds it to a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        source = Path(self.root) / SOURCE
        for old in source.parent.glob("compiled.*.so"):
            old.unlink()
        try:
            with tempfile.TemporaryDirectory(prefix="millrace-build-") as directory:
                library = build(source, Path(directory))
                target = shutil.copy(library, source.parent)
        except Exception as error:  # of setuptools or Cython, which raise many kinds: the package works without it
            self.app.display_warning(f"the hot path is not compiled, and runs as Python: {error}")
            return
        build_data["pure_python"], build_data["infer_tag"] = False, True
        build_data["artifacts"].append(str(Path(target).relative_to(self.root)))


def build(source: Path, directory: Path) -> Path:
    """The compiled module, made in this directory."""
    from Cython.Build import cythonize
    from setuptools import Distribution, Extension

    copy = shutil.copy(source, directory)
    modules = cythonize([Extension(MODULE, [copy], extra_compile_args=["-O3"])], quiet=True, build_dir=str(directory))
    command = Distribution({"ext_modules": modules}).get_command_obj("build_ext")
    command.build_lib, command.build_temp = str(directory / "lib"), str(directory / "temp")
    command.ensure_finalized()
    command.run()
    return next((directory / "lib").rglob("compiled.*.so"))
