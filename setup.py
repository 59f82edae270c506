"""Builds specfast._C and specfast._host: setuptools asks, CMake and ninja do."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
BUILD = ROOT / "build" / f"{sysconfig.get_platform()}-{sys.implementation.cache_tag}"


class CMakeBuild(build_ext):
    """One CMake build serves every extension; its products are installed into the package."""

    def run(self) -> None:
        import cmake
        import ninja

        package = Path(self.get_ext_fullpath("specfast._C")).resolve().parent
        cmake_exe = str(Path(cmake.CMAKE_BIN_DIR) / "cmake")
        configure = [
            *(cmake_exe, "-S", str(ROOT), "-B", str(BUILD), "-G", "Ninja"),
            f"-DCMAKE_MAKE_PROGRAM={Path(ninja.BIN_DIR) / 'ninja'}",
            f"-DCMAKE_INSTALL_PREFIX={package}",
            f"-DPython_EXECUTABLE={sys.executable}",
            f"-DSPECFAST_CUDA={os.environ.get('SPECFAST_CUDA', 'AUTO')}",
            *os.environ.get("SPECFAST_CMAKE_ARGS", "").split(),
        ]
        subprocess.run(configure, check=True)
        subprocess.run([cmake_exe, "--build", str(BUILD), "--target", "install"], check=True)
        for extension in self.extensions:  # CMake leaves an unchanged file its old date
            Path(self.get_ext_fullpath(extension.name)).touch()


setup(
    ext_modules=[
        Extension("specfast._C", [], py_limited_api=True),
        Extension("specfast._host", []),
    ],
    cmdclass={"build_ext": CMakeBuild},
)
