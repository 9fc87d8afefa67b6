"""lane-opt as a command: what it reads, writes and says."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from xdsl.xdsl_opt_main import xDSLOptMain

from lane_mlir.tools.lane_opt import main

MODULE = """builtin.module {
  func.func @f(%a: i32) -> i32 {
    %0 = arith.addi %a, %a : i32
    func.return %0 : i32
  }
}
"""


@pytest.fixture
def module(tmp_path: Path) -> Path:
    path = tmp_path / "step.mlir"
    path.write_text(MODULE)
    return path


def refusal(capsys: pytest.CaptureFixture[str], *args: str | Path) -> str:
    """The errors of a run with these arguments that exits with status 1 and prints nothing else."""
    assert main([str(arg) for arg in args]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Traceback" not in captured.err
    return captured.err


def test_prints_the_module(module: Path, capsys: pytest.CaptureFixture[str]):
    assert main([str(module)]) == 0
    assert capsys.readouterr().out.rstrip("\n") + "\n" == MODULE


@pytest.mark.parametrize("args", [[], ["-"]])
def test_reads_the_standard_input(args: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(MODULE.encode())))
    assert main(args) == 0
    assert "arith.addi" in capsys.readouterr().out


def test_output_file(module: Path, tmp_path: Path):
    out = tmp_path / "out.mlir"
    assert main([str(module), "-o", str(out)]) == 0
    assert "arith.addi" in out.read_text()


def test_output_over_the_input(module: Path):
    assert main([str(module), "-o", str(module), "-p", "canonicalize"]) == 0
    assert module.read_text().rstrip("\n") + "\n" == MODULE


def test_failure_leaves_the_output_alone(module: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = tmp_path / "out.mlir"
    out.write_text("kept")
    module.write_text(MODULE + "// -----\n}")
    assert "expected an operation" in refusal(capsys, module, "--split-input-file", "-o", out)
    assert out.read_text() == "kept"
    assert sorted(os.listdir(tmp_path)) == ["out.mlir", "step.mlir"]


@pytest.mark.parametrize(
    ("content", "place", "cause"),
    [
        pytest.param(b"", ":1:1", "expected an operation, found the end of the file", id="empty"),
        pytest.param(b"// words\n", ":2:1", "expected an operation, found the end of the file", id="comment"),
        pytest.param(b"func.func @f() {\n  \xff", ":2:3", "not a text file: byte 0xff is not UTF-8", id="bytes"),
        pytest.param(b"\x7fELF\x00", ":1:1", "Unexpected character: \\x7f", id="elf"),
        pytest.param(b"func.func @f() {", ":1:17", "expected an operation or '}', found the end of the file", id="cut"),
        pytest.param(b"func.func @f() {" * 3000, "", "nested too deeply", id="deep"),
        pytest.param(b"%0 = arith.constant " + b"9" * 5000, ":1:21", "an integer of more than 4300 digits", id="long"),
        pytest.param(b'"' + b"a b" * 100, ":1:1", "End of file reached before closing string", id="open"),
        pytest.param(b'"a.b"() : () -> ()', ":1:2", "Operation a.b is not registered", id="unregistered"),
    ],
)
def test_malformed(content: bytes, place: str, cause: str, module: Path, capsys: pytest.CaptureFixture[str]):
    module.write_bytes(content)
    first = refusal(capsys, module).splitlines()[0]
    assert first.startswith(f"{module}{place}")
    assert f": error: {cause}" in first


def test_verifier_error_is_one_line(module: Path, capsys: pytest.CaptureFixture[str]):
    module.write_text(MODULE.replace("arith.addi %a, %a : i32", '"arith.addi"(%a) : (i32) -> i32'))
    assert refusal(capsys, module) == f"{module}:3:5: error: 'arith.addi' op Expected 2 operands, but got 1\n"


STEP = """builtin.module attributes {tg.target = #tg.target<h200, dequant, cache = f32, state = f32>} {
  func.func @step(%token: memref<1xi32> {tg.arg = #tg.arg<token, 0>},
                  %position: memref<1xi32> {tg.arg = #tg.arg<position, 0>}) -> tensor<1x32xf32> {
    %table = tg.constant "token_embd.weight" : tensor<8x32xf32>
    %x = tg.gather %table[%token] : (tensor<8x32xf32>, memref<1xi32>) -> tensor<1x32xf32>
    func.return %x : tensor<1x32xf32>
  }
}
"""


@pytest.mark.parametrize("pipeline", ["fuse", "link", "fuse-add-norm", "fuse{numerics=int8}"])
def test_a_target_that_is_none(pipeline: str, module: Path, capsys: pytest.CaptureFixture[str]):
    module.write_text(STEP.replace("#tg.target<h200, dequant, cache = f32, state = f32>", "3 : i32"))
    cause = "'builtin.module' op tg.target is 3 : i32, expected #tg.target"
    name = pipeline.partition("{")[0]
    assert refusal(capsys, module, "-p", pipeline) == f"{module}:1:1: error: pass {name}: {cause}\n"


@pytest.mark.parametrize("pipeline", ["fuse", "link", "fuse-add-norm"])
@pytest.mark.parametrize(
    ("old", "new", "cause"),
    [
        ("<position, 0>", "<token, 0>", 'step "step" has 0 positions of sequence 0, expected 1'),
        ("<position, 0>", "<position, 1>", 'step "step" has 0 positions of sequence 0, expected 1'),
        (") -> tensor", ", %t: memref<1xi32> {tg.arg = #tg.arg<token, 0>}) -> tensor", "has 2 tokens of sequence 0"),
        (
            ") -> tensor",
            ", %c: memref<4x8xf32>) -> tensor",
            "argument 2 of type memref<4x8xf32> has no attribute tg.arg",
        ),
        ("#tg.arg<position, 0>", "3 : i32", "argument 1 has tg.arg = 3 : i32, expected #tg.arg"),
        (
            ") -> tensor",
            ', %c: memref<4x8xf32> {tg.arg = #tg.arg<kv_cache, 0, "k">}, %p: memref<1xi32> {tg.arg = #tg.arg<position, 1>},'
            ' %d: memref<4x9xf32> {tg.arg = #tg.arg<kv_cache, 1, "k">}) -> tensor',
            'has "k" of sequence 0 as a kv_cache of type memref<4x8xf32>, and of sequence 1 as a kv_cache of type '
            "memref<4x9xf32>: expected alike",
        ),
    ],
    ids=["no position", "of another sequence", "two tokens", "unnamed", "no attribute of ours", "of unequal shape"],
)
def test_what_is_no_step(
    pipeline: str, old: str, new: str, cause: str, module: Path, capsys: pytest.CaptureFixture[str]
):
    module.write_text(STEP.replace(old, new, 1))
    error = refusal(capsys, module, "-p", pipeline)
    assert error.startswith(f"{module}:2:3: error: pass {pipeline}: 'func.func' op step \"step\" ")
    assert cause in error


def test_plan_wants_launches(module: Path, capsys: pytest.CaptureFixture[str]):
    module.write_text(STEP)
    for pipeline in ("plan", "fuse,plan"):
        error = refusal(capsys, module, "-p", pipeline)
        assert error == f"{module}:2:3: error: 'func.func' op step \"step\" is not linked: run link before plan\n"
    assert main([str(module), "-p", "fuse,link,plan", "-o", os.devnull]) == 0


def test_long_lines_are_cut(module: Path, capsys: pytest.CaptureFixture[str]):
    module.write_text(" " * 5000 + "x.y" + " " * 5000)
    _, line, carets = refusal(capsys, module).splitlines()
    assert len(line) == 120
    assert line[carets.index("^") : len(carets)] == "x.y"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("missing.mlir", "cannot read {}: No such file or directory"),
        (".", "cannot read {}: Is a directory"),
        ("step.txt", "{}: unknown kind of file '.txt'; valid: gguf, mlir (or choose one with -f)"),
        (
            "step.mlri",
            "{}: unknown kind of file '.mlri'; did you mean 'mlir'? valid: gguf, mlir (or choose one with -f)",
        ),
    ],
)
def test_unreadable(name: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / name
    assert refusal(capsys, path) == f"lane-opt: error: {message.format(path)}\n"


def test_any_extension_with_a_frontend(tmp_path: Path):
    path = tmp_path / "step.txt"
    path.write_text(MODULE)
    assert main([str(path), "-f", "mlir", "-o", os.devnull]) == 0


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["-p", "fues"], "lane-opt: error: unknown pass 'fues'; did you mean 'fuse'?"),
        (["-t", "mlir{nope=1}"], "lane-opt: error: unknown option 'nope' of target mlir; valid: print_debuginfo"),
        (["-t", "mlir{"], "lane-opt: error: options of -t or -f, column 6: Expected argument name here"),
        (
            ["-t", "mlir{print_debuginfo=true print-debuginfo=true}"],
            "lane-opt: error: option 'print_debuginfo' of target",
        ),
        (["-f", "mlir{no-implicit-module=3}"], "lane-opt: error: option 'no_implicit_module' of frontend mlir takes"),
    ],
)
def test_usage(args: list[str], message: str, module: Path, capsys: pytest.CaptureFixture[str]):
    assert main([str(module), *args]) == 2
    assert capsys.readouterr().err.startswith(message)


@pytest.mark.parametrize("args", [["-t", "nope"], ["-f", "nope"], ["--nope"]])
def test_usage_of_argparse(args: list[str], module: Path, capsys: pytest.CaptureFixture[str]):
    assert main([str(module), *args]) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert "nope" in error


def test_version(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out.startswith("lane-opt 0.")


def test_as_a_process(module: Path):
    """The installed command, and the same as a module."""
    command = Path(sys.executable).parent / "lane-opt"
    for start in ([str(command)], [sys.executable, "-m", "lane_mlir.tools.lane_opt"]):
        result = subprocess.run([*start, str(module), "-p", "nope"], capture_output=True, text=True, check=False)
        assert result.returncode == 2
        assert result.stderr.startswith("lane-opt: error: unknown pass 'nope'")


def test_what_we_refuse_is_a_diagnostic_of_xdsl(
    module: Path, tmp_path: Path, models: Path, capsys: pytest.CaptureFixture[str]
):
    """xDSL's own driver prints it as the result with --verify-diagnostics, as it does what its own passes refuse."""
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"no file of ours")
    xDSLOptMain(args=[str(bad), "--verify-diagnostics"]).run()
    assert capsys.readouterr().out.startswith(f"{bad}: ")
    module.write_text(STEP)
    xDSLOptMain(args=[str(module), "--verify-diagnostics", "-p", "plan"]).run()
    assert capsys.readouterr().out == 'step "step" is not linked: run link before plan\n'
    xDSLOptMain(args=[str(models / "llama-f32.gguf"), "--verify-diagnostics", "-f", "gguf{rows=0}"]).run()
    assert capsys.readouterr().out == "rows is 0, expected at least 1\n"


def test_a_chip_that_no_model_runs_on(models: Path, capsys: pytest.CaptureFixture[str]):
    assert main([str(models / "llama-f32.gguf"), "-f", "gguf{chip=h20}"]) == 2
    assert capsys.readouterr().err.startswith("lane-opt: error: unknown chip 'h20'; did you mean 'h200'")


PIECES = ["func.func", "@f", "(", ")", "{", "}", "%a", "%0", "=", ":", "i32", "->", "arith.addi", ",", "tensor<", "4x",
          ">", "dense<", "loc(", '"', "#x", "!t", "//", "\n", "-1", "1.0e9", "builtin.module", "^bb0", "[", "]", "tg."]  # fmt: skip


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.lists(st.sampled_from(PIECES), max_size=12).map(" ".join), cut=st.integers(0, len(MODULE)))
@example(text="", cut=0)
def test_damaged_text_never_gives_a_traceback(text: str, cut: int, module: Path, capsys: pytest.CaptureFixture[str]):
    module.write_text(MODULE[:cut] + text + MODULE[cut + len(text) // 2 :])
    status = main([str(module), "-o", os.devnull])
    error = capsys.readouterr().err
    assert status in (0, 1)
    assert (status == 0) == (error == "")
    assert status == 0 or error.startswith(f"{module}:")
