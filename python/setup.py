"""Builds the C library with cargo and puts it into the package."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

WORKSPACE = Path(__file__).resolve().parent.parent


def version() -> str:
    """The version of the workspace, which all its crates have."""
    manifest = (WORKSPACE / "Cargo.toml").read_text(encoding="utf-8")
    package = manifest.split("[workspace.package]", 1)[1]
    return re.search(r'^version = "(.*)"', package, re.MULTILINE).group(1)


def build_library() -> Path:
    """Builds the shared library and returns where cargo put it."""
    command = [os.environ.get("CARGO", "cargo"), "build", "--release", "--locked", "--package", "kimi-capi"]
    command += ["--message-format", "json-render-diagnostics"]
    # Line tables are four fifths of the library.
    command += ["--config", 'profile.release.strip="debuginfo"']
    try:
        built = subprocess.run(command, cwd=WORKSPACE, stdout=subprocess.PIPE, check=True)
    except FileNotFoundError as error:
        raise SystemExit("cargo is needed to build this package: https://rustup.rs") from error
    for line in built.stdout.splitlines():
        message = json.loads(line)
        if message["reason"] == "compiler-artifact" and message["target"]["name"] == "kimi_k3_inference":
            for name in map(Path, message["filenames"]):
                if name.suffix in (".so", ".dylib", ".dll"):
                    return name
    raise SystemExit("cargo built no shared library")


class BuildPackage(build_py):
    """The modules, and the library beside them."""

    def run(self):
        super().run()
        library = build_library()
        root = Path("src") if self.editable_mode else Path(self.build_lib)
        shutil.copy2(library, root / "kimi_k3" / library.name)


class BuildWheel(bdist_wheel):
    """A wheel for one platform and every version of Python: the library does not know Python."""

    def get_tag(self):
        return "py3", "none", super().get_tag()[2]


class PlatformDistribution(Distribution):
    """Has a library that belongs to one platform."""

    def has_ext_modules(self):
        return True


setup(
    version=version(),
    distclass=PlatformDistribution,
    cmdclass={"build_py": BuildPackage, "bdist_wheel": BuildWheel},
)
