"""
How lit runs the tests under test/lit: `lit test/lit`, from any folder, with the commands of the Python that runs lit.

`lit -Dshell=1 test/lit` starts a new process for every command, as a shell does; without it they are forked from a
process that has imported them already (see forked_format.py), which is ten times as fast.
"""

import os
import sys
from pathlib import Path

import lit.formats

TEST_FOLDER = Path(__file__).resolve().parent
sys.path.insert(0, str(TEST_FOLDER))

from forked_format import ForkedShTest

# lit puts `config` and `lit_config` into this file's namespace.
config.name = "lane-mlir"
config.suffixes = [".mlir"]
config.excludes = ["Inputs", "Output"]
config.test_source_root = str(TEST_FOLDER)
config.test_exec_root = str(TEST_FOLDER.parent / "build" / "lit")
config.test_format = lit.formats.ShTest() if lit_config.params.get("shell") else ForkedShTest()

# Commands lie beside the Python that runs lit, whether or not its environment is active.
config.environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), config.environment.get("PATH", "")])

PRINT = "lane-opt %s --split-input-file"
config.substitutions += [
    # Parse, print and parse again, in the custom form and in the generic one; the generic text itself.
    ("LANE_ROUNDTRIP", f"{PRINT} | lane-opt --split-input-file | filecheck %s"),
    ("LANE_GENERIC_ROUNDTRIP", f"{PRINT} --print-op-generic | lane-opt --split-input-file | filecheck %s"),
    ("LANE_PRINT_GENERIC", f"{PRINT} --print-op-generic | filecheck %s --check-prefix=CHECK-GENERIC"),
    # Every chunk of the file has one error, which is printed where the chunk's result would be.
    ("LANE_ERRORS", f"{PRINT} --verify-diagnostics --parsing-diagnostics | filecheck %s"),
]
config.recursiveExpansionLimit = 3
