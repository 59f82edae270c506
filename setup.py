"""Builds specfast._C and specfast._host: setuptools asks, CMake and ninja do."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import cmake
import ninja
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent


class CMakeBuild(build_ext):
    """One CMake build serves every extension; its products are installed next to the package."""

    def run(self) -> None:
        build = Path(
            os.environ.get("SPECFAST_BUILD_DIR", ROOT / "build" / sysconfig.get_platform())
        )
        package = Path(self.get_ext_fullpath("specfast._C")).resolve().parent
        cmake_exe = Path(cmake.CMAKE_BIN_DIR) / "cmake"
        configure = [
            str(cmake_exe),
            *("-S", str(ROOT), "-B", str(build), "-G", "Ninja"),
            f"-DCMAKE_MAKE_PROGRAM={Path(ninja.BIN_DIR) / 'ninja'}",
            f"-DCMAKE_INSTALL_PREFIX={package}",
            f"-DPython_EXECUTABLE={sys.executable}",
            *os.environ.get("SPECFAST_CMAKE_ARGS", "").split(),
        ]
        subprocess.run(configure, check=True)
        subprocess.run([str(cmake_exe), "--build", str(build), "--target", "install"], check=True)


setup(
    ext_modules=[Extension("specfast._C", []), Extension("specfast._host", [])],
    cmdclass={"build_ext": CMakeBuild},
)
