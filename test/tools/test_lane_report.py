"""lane-report as a command: census, rules, decisions, and what it refuses."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lane_mlir.passes.fuse import reported_rules
from lane_mlir.tools.lane_import import main as lane_import
from lane_mlir.tools.lane_opt import main as lane_opt
from lane_mlir.tools.lane_report import main


@pytest.fixture
def model(models: Path) -> str:
    return str(models / "llama-Q4_K_M.gguf")


@pytest.fixture
def lifted(model: str, tmp_path: Path) -> str:
    path = tmp_path / "step.mlir"
    assert lane_import([model, "--context", "64", "-o", str(path)]) == 0
    return str(path)


@pytest.fixture
def planned(lifted: str, tmp_path: Path) -> str:
    path = tmp_path / "planned.mlir"
    assert lane_opt(["--pass-pipeline=fuse,link,plan", lifted, "-o", str(path)]) == 0
    return str(path)


def run(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    """What a run that succeeds prints."""
    status = main(args)
    captured = capsys.readouterr()
    assert (status, captured.err) == (0, "")
    return captured.out


def step_of(capsys: pytest.CaptureFixture[str], *args: str) -> dict[str, Any]:
    """The one step of a report as JSON."""
    report = json.loads(run(capsys, *args, "--json"))
    assert report["schema"] == 1
    assert report["source"] == args[0]
    (step,) = report["steps"]
    return step


def refusal(capsys: pytest.CaptureFixture[str], status: int, *args: str) -> str:
    assert main(args) == status
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err


def row(text: str, first: str) -> list[str]:
    """The line of a table whose first cell is this."""
    (found,) = [line for line in text.splitlines() if line.split()[:1] == [first]]
    return found.split()


def test_rules_and_census(model: str, capsys: pytest.CaptureFixture[str]):
    out = run(capsys, model)
    assert out.startswith("step step: ")
    assert "for h200, dequant, cache f32, state f32; arena of " in out
    # Two layers: the sums before each ffn_norm, the second attn_norm and the output_norm.
    assert row(out, "add_norm") == ["add_norm", "4", "-", "-"]
    assert row(out, "advance")[1] == "1"
    assert "argmax" in out
    assert not any(line.endswith(" ") for line in out.splitlines())


def test_composites(models: Path, lifted: str, planned: str, capsys: pytest.CaptureFixture[str]):
    """Two layers of attention with norms of heads; of a planned module the graph is not known any more."""
    qwen3 = str(models / "qwen3-Q8_0.gguf")
    expected = {
        "rope_kv_append": 0,
        "qk_norm_rope_kv_append": 2,
        "gated_norm": 0,
        "merged_gate_up": 2,
        "merged_projections": 2,
        "moe_gather_in_operand": 0,
        "router_shared_gate_merge": 0,
    }
    assert step_of(capsys, qwen3, "--numerics", "int8")["composites"] == expected
    out = run(capsys, qwen3, "--numerics", "int8")
    assert row(out, "qk_norm_rope_kv_append") == ["qk_norm_rope_kv_append", "2"]
    assert "gated_norm" not in out
    assert step_of(capsys, lifted)["composites"]["rope_kv_append"] == 2
    assert step_of(capsys, planned)["composites"] is None
    assert "composite" not in run(capsys, planned)


def test_layers_count_every_launch_once(model: str, capsys: pytest.CaptureFixture[str]):
    step = step_of(capsys, model)
    assert [(layers["first"], layers["last"]) for layers in step["layers"]] == [(0, 0), (1, 1), (None, None)]
    assert sum(layers["launches"] for layers in step["layers"]) == step["launches"] == sum(step["census"].values())
    for kind, count in step["census"].items():
        assert sum(layers["census"].get(kind, 0) for layers in step["layers"]) == count
    assert [layers["census"]["rope_attention"] for layers in step["layers"][:2]] == [1, 1]


def test_the_same_of_a_module_in_text(model: str, lifted: str, capsys: pytest.CaptureFixture[str]):
    """Places are not printed by default, so that layers are read off the names of buffers."""
    from_text, from_file = step_of(capsys, lifted), step_of(capsys, model, "--context", "64")
    assert from_text["census"] == from_file["census"]
    assert from_text["rules"] == from_file["rules"]
    assert from_text["target"] == from_file["target"]
    assert from_text["arena_bytes"] == from_file["arena_bytes"]
    attention = [layers["census"].get("rope_attention") for layers in from_text["layers"]]
    assert attention[:2] == [1, 1]


def test_a_planned_module(lifted: str, planned: str, capsys: pytest.CaptureFixture[str]):
    step, whole = step_of(capsys, planned), step_of(capsys, lifted)
    assert step["census"] == whole["census"]
    assert step["decisions"] is None
    fired = {rule["rule"]: rule["fired"] for rule in step["rules"]}
    assert fired["add_norm"] == 4
    assert all(rule["refused"] is None and rule["held"] is None for rule in step["rules"])
    out = run(capsys, planned, "--decisions")
    assert "its decisions are not known" in out
    assert row(out, "add_norm") == ["add_norm", "4"]
    message = f"lane-report: error: {planned} is planned already: why add_norm did not fire is not known any more\n"
    assert refusal(capsys, 1, planned, "--why", "add_norm") == message


def test_options_that_come_too_late(lifted: str, planned: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    linked = str(tmp_path / "linked.mlir")
    assert lane_opt(["--pass-pipeline=fuse,link", lifted, "-o", linked]) == 0
    for path, option, value, stage in (
        (linked, "--numerics", "int8", "linked"),
        (planned, "--chip", "a100", "linked"),
        (linked, "--held", "add_norm", "linked"),
        (planned, "--held", "rows_a_warp", "planned"),
    ):
        assert f"comes too late: {path} is {stage} already" in refusal(capsys, 2, path, option, value)
    assert run(capsys, linked, "--held", "rows_a_warp")


def test_what_no_kernel_runs_has_its_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "step.mlir"
    path.write_text("""func.func @f(%x: tensor<1x4xf32>) -> tensor<1x4xf32> {
  %y = tg.unary silu %x : (tensor<1x4xf32>) -> tensor<1x4xf32>
  %z = arith.addf %y, %y : tensor<1x4xf32>
  func.return %z : tensor<1x4xf32>
}""")
    assert refusal(capsys, 1, str(path)).startswith(f"{path}:3:3: error: step @f: 'arith.addf' is no op of tg")


def test_a_linked_module_is_planned(lifted: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    linked = tmp_path / "linked.mlir"
    assert lane_opt(["--pass-pipeline=fuse,link", lifted, "-o", str(linked)]) == 0
    assert step_of(capsys, str(linked))["arena_bytes"] == step_of(capsys, lifted)["arena_bytes"]


def test_held(model: str, capsys: pytest.CaptureFixture[str]):
    step = step_of(capsys, model, "--held", "add_norm,row_write")
    rules = {rule["rule"]: rule for rule in step["rules"]}
    assert rules["add_norm"] == {"rule": "add_norm", "fired": 0, "refused": 0, "held": 4}
    assert rules["row_write"]["fired"] == 0
    assert rules["row_write"]["held"] == 4
    free = step_of(capsys, model)
    assert step["launches"] > free["launches"]


def test_held_on_launches(model: str, capsys: pytest.CaptureFixture[str]):
    def rows_a_warp(*options: str) -> int:
        step = step_of(capsys, model, "--numerics", "int8", *options)
        return next(rule["fired"] for rule in step["rules"] if rule["rule"] == "rows_a_warp")

    assert rows_a_warp("--held", "rows_a_warp") == 0


def test_decisions(model: str, capsys: pytest.CaptureFixture[str]):
    out = run(capsys, model, "--decisions", "--held", "add_norm")
    lines = [line for line in out.splitlines() if line.split()[:1] == ["add_norm"] and "add_norm is held" in line]
    assert len(lines) == 4
    step = step_of(capsys, model)
    decision = next(d for d in step["decisions"] if d["rule"] == "row_write" and d["outcome"] == "fired")
    assert list(decision) == ["rule", "class", "covers", "outcome", "reason", "where"]
    assert decision["covers"]
    fired = [d for d in step["decisions"] if d["outcome"] == "fired" and d["rule"] == "row_write"]
    assert len(fired) == next(rule["fired"] for rule in step["rules"] if rule["rule"] == "row_write")


def test_why(models: Path, capsys: pytest.CaptureFixture[str]):
    """A scale stands between every product and the norm of its branch."""
    path, rule = str(models / "granite-Q4_0.gguf"), "gemv_norm_epilogue"
    refused = [d for d in step_of(capsys, path)["decisions"] if d["outcome"] == "refused" and d["rule"] == rule]
    assert refused
    out = run(capsys, path, "--why", rule)
    assert out.startswith(f"step step: {rule} fired 0 times, was refused {len(refused)} times and held 0 times")
    for decision in refused:
        assert decision["reason"] in out
        assert decision["where"] in out
    assert "fired" not in out.partition("\n")[2]


NORM = """func.func @f(%x: tensor<1x64xf32>, %w: tensor<64xf32>) -> tensor<1x64xf32> {
  %s = tg.binary add %x, %x : (tensor<1x64xf32>, tensor<1x64xf32>) -> tensor<1x64xf32>
  %y = tg.rms_norm %s weight %w eps 1.0e-5 : (tensor<1x64xf32>, tensor<64xf32>) -> tensor<1x64xf32>
  func.return %y : tensor<1x64xf32>
}"""


def test_why_of_every_rule(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "norm.mlir"
    path.write_text(NORM)
    for rule in reported_rules():
        fired = 1 if rule == "add_norm" else 0
        expected = f"step f: {rule} fired {fired} times, was refused 0 times and held 0 times\n"
        assert run(capsys, str(path), "--why", rule) == expected


@pytest.mark.parametrize("name", ["stock-llama-Q4_0", "deepseek2-moe-Q4_K_M"])
def test_every_decision_that_is_no_firing_has_a_reason(name: str, models: Path, capsys: pytest.CaptureFixture[str]):
    decisions = step_of(capsys, str(models / f"{name}.gguf"), "--numerics", "int8", "--held", "add_norm")["decisions"]
    assert {d["outcome"] for d in decisions} == {"fired", "refused", "held"}
    assert all(bool(d["reason"]) == (d["outcome"] != "fired") for d in decisions)


def test_why_several_rows_a_warp(model: str, models: Path, capsys: pytest.CaptureFixture[str]):
    out = run(capsys, model, "--numerics", "int8", "--why", "rows_a_warp")
    # Queries, keys and values of each layer are 512 rows in one launch.
    assert out.startswith("step step: rows_a_warp fired 6 times, was refused 7 times and held 0 times")
    why = "output rows are fewer than the 512 that fill a chip"
    (head,) = (line for line in out.splitlines() if " output.weight " in line)
    assert head.startswith(" gemv_q8 ")
    assert head.endswith(f" refused   128 {why}")
    out = run(capsys, str(models / "qwen35-Q8_0.gguf"), "--numerics", "int8", "--why", "rows_a_warp")
    (key,) = (line for line in out.splitlines() if " blk.0.delta_k.weight " in line)
    assert key.endswith(f" of the products in one launch: 392 {why}")


def test_why_sequences_stay_apart(models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """The convolution of lfm2 has no SiLU, without which no kernel takes several."""
    lfm2 = str(models / "lfm2-Q4_K_M.gguf")
    step = step_of(capsys, lfm2, "--sequences", "2")
    fired, refused = (
        [d for d in step["decisions"] if d["rule"] == "sequences" and d["outcome"] == outcome]
        for outcome in ("fired", "refused")
    )
    counts = next(rule for rule in step["rules"] if rule["rule"] == "sequences")
    assert counts == {"rule": "sequences", "fired": len(fired), "refused": 1, "held": 0}
    assert {d["class"] for d in fired} == {"attention", "rope", "set_row", "argmax"}
    assert refused[0]["reason"] == "no kernel runs the conv of several sequences"
    assert refused[0]["where"] == "blk.1.shortconv.conv.weight"
    assert refused[0]["reason"] in run(capsys, lfm2, "--sequences", "2", "--why", "sequences")
    out = run(capsys, lfm2, "--sequences", "2", "--why", "sequences", "--held", "sequences")
    assert out.startswith(f"step step: sequences fired 0 times, was refused 1 times and held {len(fired)} times")
    assert out.count("sequences is held") == len(fired)
    assert "refused 0 times" in run(capsys, lfm2, "--why", "sequences")


def test_why_of_the_closing_rule(lifted: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """It is a rule like any other, but that it cannot be held."""
    assert run(capsys, lifted, "--why", "advance") == (
        "step step: advance fired 1 times, was refused 0 times and held 0 times\n"
    )
    assert "unknown rule 'advance'" in refusal(capsys, 2, lifted, "--held", "advance")
    linked = str(tmp_path / "linked.mlir")
    assert lane_opt(["--pass-pipeline=fuse,link", lifted, "-o", linked]) == 0
    assert f"{linked} is linked already: why advance" in refusal(capsys, 1, linked, "--why", "advance")


def test_why_of_a_linked_module(lifted: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Of the rules on launches it is still to be decided, of those on the graph not known any more."""
    linked = str(tmp_path / "linked.mlir")
    assert lane_opt(["--pass-pipeline=fuse,link", lifted, "-o", linked]) == 0
    assert run(capsys, linked, "--why", "rows_a_warp") == run(capsys, lifted, "--why", "rows_a_warp")
    assert f"{linked} is linked already: why add_norm" in refusal(capsys, 1, linked, "--why", "add_norm")
    rules = {rule["rule"]: rule for rule in step_of(capsys, linked)["rules"]}
    assert rules["add_norm"] == {"rule": "add_norm", "fired": 4, "refused": None, "held": None}
    assert rules["sequences"] == {"rule": "sequences", "fired": 0, "refused": 0, "held": 0}
    assert row(run(capsys, linked), "add_norm") == ["add_norm", "4", "?", "?"]


def test_a_chunk_for_another_chip(model: str, capsys: pytest.CaptureFixture[str]):
    options = ("--rows", "8", "--logits", "all", "--numerics", "int8", "--chip", "a100", "--cache", "f16")
    step = step_of(capsys, model, *options, "--context", "32", "--state", "bf16")
    assert step["target"] == {"chip": "a100", "numerics": "int8", "cache": "f16", "state": "bf16"}
    assert "advance" not in {rule["rule"] for rule in step["rules"] if rule["fired"]}


def test_a_module_for_another_target(lifted: str, capsys: pytest.CaptureFixture[str]):
    target = step_of(capsys, lifted, "--numerics", "int8", "--chip", "b200")["target"]
    assert target == {"chip": "b200", "numerics": "int8", "cache": "f32", "state": "f32"}


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--why", "add_nrom"], "unknown rule 'add_nrom'; did you mean 'add_norm'?"),
        (["--held", "gats"], "unknown rule 'gats'; did you mean"),
        (["--numerics", "int9"], "unknown numerics 'int9'; did you mean 'int8'?"),
        (["--chip", "h20"], "unknown chip 'h20'; did you mean"),
        (["--why", "add_norm", "--json"], "--why and --json exclude each other"),
        (["--why", "add_norm", "--decisions"], "--why and --decisions exclude each other"),
        (["--rows", "x"], "argument --rows: invalid int value: 'x'"),
        (["--rows", "0"], "rows is 0, expected at least 1"),
        (["--context", "0"], "context is 0, expected at least 1"),
        (["--rows", "9", "--context", "8"], "a step of 9 rows does not fit a context of 8 positions"),
    ],
)
def test_usage(args: list[str], message: str, model: str, capsys: pytest.CaptureFixture[str]):
    (line,) = refusal(capsys, 2, model, *args).splitlines()
    assert line.startswith(f"lane-report: error: {message}")


def test_options_of_a_checkpoint(lifted: str, capsys: pytest.CaptureFixture[str]):
    assert refusal(capsys, 2, lifted, "--rows", "2") == (
        "lane-report: error: --rows is for a checkpoint: a module has its own\n"
    )


def test_what_cannot_be_read(tmp_path: Path, model: str, capsys: pytest.CaptureFixture[str]):
    bad = tmp_path / "bad.mlir"
    bad.write_text("tg.nope")
    empty = tmp_path / "empty.mlir"
    empty.write_text("builtin.module {}")
    target = tmp_path / "target.mlir"
    target.write_text("builtin.module attributes {tg.target = 3 : i32} {}")
    none = str(tmp_path / "none")
    for args, message in [
        ([str(bad)], f"{bad}:1:1: error: "),
        ([str(empty)], "lane-report: error: the module has no step"),
        ([f"{none}.mlir"], f"lane-report: error: cannot read {none}.mlir: No such file"),
        ([f"{none}.gguf"], f"lane-report: error: {none}.gguf: no such file"),
        ([none], f"lane-report: error: {none}: no such file"),
        ([str(target)], f"{target}:1:1: error: 'builtin.module' op tg.target is 3 : i32, expected #tg.target"),
    ]:
        assert refusal(capsys, 1, *args).startswith(message)


def test_the_standard_input(lifted: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    def give(text: str) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))

    give(Path(lifted).read_text())
    assert main(["-"]) == 0
    assert "launches" in capsys.readouterr().out
    give("builtin.module {\n  tg.nope\n}")
    assert refusal(capsys, 1, "-").startswith("<stdin>:2:3: error: Operation tg.nope is not registered")


def test_several_steps(model: str, lifted: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Each step has its own decisions: here, those of a decode step and of a chunk."""
    chunk, both = tmp_path / "chunk.mlir", tmp_path / "both.mlir"
    assert lane_import([model, "--context", "64", "--rows", "4", "-o", str(chunk)]) == 0
    header, _, body = chunk.read_text().partition("\n")
    step = Path(lifted).read_text().rstrip().removesuffix("}")
    assert step.partition("\n")[0] == header
    both.write_text(step + body.replace("@step", "@chunk"))
    steps = json.loads(run(capsys, str(both), "--json"))["steps"]
    assert [step["name"] for step in steps] == ["step", "chunk"]
    for found, alone in zip(steps, (step_of(capsys, lifted), step_of(capsys, str(chunk))), strict=True):
        assert found["decisions"] == alone["decisions"]
        assert found["census"] == alone["census"]


def test_from_a_pipe(lifted: str):
    """The installed command, fed with text."""
    command = [str(Path(sys.executable).parent / "lane-report"), "-"]
    result = subprocess.run(command, input=Path(lifted).read_bytes(), capture_output=True, check=True)
    assert result.stdout.decode().startswith("step step: ")
    assert result.stderr == b""
