"""lane-run as a command: what it prints, writes and refuses."""

from __future__ import annotations

import io
import os
import pty
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from lane_mlir.tools.lane_run import main

PROMPT = (115, 78, 104, 2, 65, 24, 98, 109)
CONTINUATION = (14, 42, 47, 124, 29, 74, 68, 48)
"""Greedy tokens of llama-f32 after these, by the reference engine."""

TEXTS = dict(zip("abcdefgh", PROMPT, strict=True)) | dict(
    zip(("<0xF0>", "<0x9F>", "<0x98>", "<0x80>", "x", "é", "</s>"), CONTINUATION[:7], strict=True)
)
"""Texts of the tokens: the prompt is abcdefgh, the continuation 😀xé and an end."""

COMMAND = Path(sys.executable).parent / "lane-run"

TalkingModel = Callable[..., Path]


@pytest.fixture
def model(models: Path) -> str:
    return str(models / "llama-f32.gguf")


@pytest.fixture
def talking(talking_model: TalkingModel) -> str:
    return str(talking_model(TEXTS, eos=68, controls=(68,)))


@pytest.fixture
def vocabulary() -> str:
    return str(Path(__file__).parent.parent / "text" / "data" / "smollm2-vocabulary.gguf")


def tokens(ids: tuple[int, ...]) -> str:
    return ",".join(map(str, ids))


def run(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    """What a run that succeeds prints."""
    status = main(args)
    captured = capsys.readouterr()
    assert (status, captured.err) == (0, "")
    return captured.out


def refusal(capsys: pytest.CaptureFixture[str], status: int, *args: str) -> str:
    """The one line of a run that is refused, without the name of the command."""
    assert main(args) == status
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("lane-run: error: ")
    return line.removeprefix("lane-run: error: ")


class TestIds:
    def test_exactly_n_on_one_line(self, model: str, capsys: pytest.CaptureFixture[str]):
        out = run(capsys, model, "--tokens", tokens(PROMPT), "-n", "8", "--ids", "--device", "cpu")
        assert out == f"{tokens(CONTINUATION)}\n"

    @pytest.mark.parametrize("chunk", ["1", "3", "8", "1000"])
    def test_chunks_change_nothing(self, chunk: str, model: str, capsys: pytest.CaptureFixture[str]):
        out = run(capsys, model, "--tokens", tokens(PROMPT), "-n", "4", "--ids", "--chunk", chunk)
        assert out == f"{tokens(CONTINUATION[:4])}\n"

    def test_a_token_that_ends_a_text_does_not_end_ids(self, talking: str, capsys: pytest.CaptureFixture[str]):
        assert run(capsys, talking, "--prompt", "abcdefgh", "-n", "8", "--ids") == f"{tokens(CONTINUATION)}\n"

    def test_auto_is_the_cpu_without_a_gpu(self, model: str, capsys: pytest.CaptureFixture[str]):
        assert run(capsys, model, "--tokens", "1", "-n", "1", "--ids", "--device", "auto").strip().isdecimal()

    def test_sampling(self, model: str, capsys: pytest.CaptureFixture[str]):
        def ids(*options: str) -> str:
            return run(capsys, model, "--tokens", tokens(PROMPT), "-n", "8", "--ids", *options)

        hot = ("--temperature", "2", "--top-k", "50", "--top-p", "0.99", "--min-p", "0.001", "--seed")
        assert ids(*hot, "1") == ids(*hot, "1")
        assert ids(*hot, "1") != ids(*hot, "2")
        assert ids("--temperature", "2", "--top-k", "1") == f"{tokens(CONTINUATION)}\n"

    def test_numerics_and_precisions_and_held_rules(self, models: Path, capsys: pytest.CaptureFixture[str]):
        path = str(models / "llama-Q4_K_M.gguf")
        options = ("--numerics", "int8", "--cache", "f16", "--held", "add_norm, row_write", "--chip", "a100")
        assert len(run(capsys, path, "--tokens", "1,2", "-n", "3", "--ids", *options).split(",")) == 3


class TestSeveral:
    def test_a_line_of_ids_for_each(self, model: str, capsys: pytest.CaptureFixture[str]):
        others = "1,2,3", "7"
        alone = [run(capsys, model, "--tokens", text, "-n", "6", "--ids") for text in others]
        given = [word for text in (tokens(PROMPT), *others) for word in ("--tokens", text)]
        out = run(capsys, model, *given, "-n", "6", "--ids")
        assert out == "".join([f"{tokens(CONTINUATION[:6])}\n", *alone])

    def test_texts_under_their_numbers(self, talking: str, capsys: pytest.CaptureFixture[str]):
        alone = run(capsys, talking, "--prompt", "hg", "-n", "3")
        out = run(capsys, talking, "--prompt", "abcdefgh", "--prompt", "hg", "--prompt", "abcdefgh", "-n", "8")
        first, second, third = out.split("\n\n")
        assert (first, third) == ("[1]\n😀xé", "[3]\n😀xé\n")
        assert second.startswith(f"[2]\n{alone.rstrip()}")

    def test_what_is_wrong_with_one(self, talking: str, capsys: pytest.CaptureFixture[str]):
        assert refusal(capsys, 1, talking, "--prompt", "a", "--prompt", "").startswith("the prompt is empty")


class TestText:
    def test_whole_characters_up_to_the_end(self, talking: str, capsys: pytest.CaptureFixture[str]):
        assert run(capsys, talking, "--prompt", "abcdefgh") == "😀xé\n"

    def test_at_most_n_tokens(self, talking: str, capsys: pytest.CaptureFixture[str]):
        assert run(capsys, talking, "--prompt", "abcdefgh", "-n", "5") == "😀x\n"

    def test_from_tokens(self, talking: str, capsys: pytest.CaptureFixture[str]):
        assert run(capsys, talking, "--tokens", tokens(PROMPT)) == "😀xé\n"

    def test_stops_before_a_text(self, talking: str, capsys: pytest.CaptureFixture[str]):
        assert run(capsys, talking, "--prompt", "abcdefgh", "--stop", "é") == "😀x\n"

    @pytest.mark.parametrize("ending", ["", "\n", "\r\n"])
    def test_from_a_file(self, ending: str, talking: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
        path = tmp_path / "prompt.txt"
        path.write_bytes(f"abcdefgh{ending}".encode())
        assert run(capsys, talking, "--file", str(path)) == "😀xé\n"

    def test_from_the_standard_input(
        self, talking: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"abcdefgh\n")))
        assert run(capsys, talking, "-f", "-") == "😀xé\n"

    def test_a_full_context_is_said(self, talking: str, capsys: pytest.CaptureFixture[str]):
        assert main([talking, "--prompt", "abcdefgh", "--context", "12"]) == 0
        captured = capsys.readouterr()
        assert captured.out == "😀x\n"
        assert captured.err == "lane-run: the context of 12 positions is full; --context makes it larger\n"

    def test_a_text_that_ends_at_once_is_said(self, talking_model: TalkingModel, capsys: pytest.CaptureFixture[str]):
        path = talking_model(TEXTS, eos=CONTINUATION[0])
        assert main([str(path), "--prompt", "abcdefgh"]) == 0
        captured = capsys.readouterr()
        assert captured.out == "\n"
        assert captured.err.startswith("lane-run: the model ends the text at once")

    def test_stats(self, talking: str, capsys: pytest.CaptureFixture[str]):
        assert main([talking, "--prompt", "abcdefgh", "--stats"]) == 0
        prefill, decode = capsys.readouterr().err.strip().split("; ")
        assert prefill.startswith("prefill: 8 tokens in ")
        assert decode.startswith("decode: 6 tokens in ")
        assert decode.endswith(" tok/s")


class TestLogits:
    @pytest.mark.parametrize("chunk", ["1", "7", "64"])
    def test_every_position(self, chunk: str, models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
        oracle = np.load(models / "llama-f32.npz")
        out = tmp_path / "logits.npy"
        ids = tokens(tuple(oracle["tokens"].tolist()))
        assert (
            run(capsys, str(models / "llama-f32.gguf"), "--tokens", ids, "--logits", str(out), "--chunk", chunk) == ""
        )
        got, want = np.load(out), oracle["logits_step"]
        assert got.dtype == np.float32
        assert got.shape == want.shape
        # f32 against f32, as in test/runtime.
        assert float((np.linalg.norm(got - want, axis=1) / np.linalg.norm(want, axis=1)).max()) < 1e-5
        assert os.listdir(tmp_path) == ["logits.npy"]

    def test_nothing_is_left_of_a_run_that_fails(self, model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
        out = tmp_path / "logits.npy"
        out.write_text("kept")
        assert "outside the vocabulary" in refusal(capsys, 1, model, "--tokens", "500", "--logits", str(out))
        assert out.read_text() == "kept"
        assert os.listdir(tmp_path) == ["logits.npy"]

    def test_a_folder_that_is_not_there(self, model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
        out = tmp_path / "missing" / "logits.npy"
        assert refusal(capsys, 1, model, "--tokens", "1", "--logits", str(out)) == (
            f"cannot write {out}: No such file or directory"
        )


class TestTokenize:
    def test_ids_on_one_line(self, vocabulary: str, capsys: pytest.CaptureFixture[str]):
        assert run(capsys, vocabulary, "--tokenize", "Hello world") == "19556,905\n"

    def test_specials_as_such_and_as_text(self, vocabulary: str, capsys: pytest.CaptureFixture[str]):
        assert run(capsys, vocabulary, "--tokenize=<|im_start|>", "--no-special") == "1\n"
        assert len(run(capsys, vocabulary, "--tokenize=<|im_start|>", "--plain").split(",")) > 1

    @pytest.mark.parametrize("text", ["-", "--prompt", "-n 3"])
    def test_text_with_dashes(self, text: str, vocabulary: str, capsys: pytest.CaptureFixture[str]):
        assert run(capsys, vocabulary, f"--tokenize={text}").strip()

    def test_empty_text(self, vocabulary: str, capsys: pytest.CaptureFixture[str]):
        assert run(capsys, vocabulary, "--tokenize=") == "\n"

    def test_compiles_nothing(self, vocabulary: str):
        """It must answer within a second, which the compiler alone would take to import."""
        code = (
            f"import sys\nfrom lane_mlir.tools.lane_run import main\nmain([{vocabulary!r}, '--tokenize=a'])\n"
            "print(*sorted({'lane_mlir.dialects.tg', 'lane_mlir.passes.fuse', 'rich', 'lane_mlir.cpu'} & set(sys.modules)))"
        )
        result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert result.stdout == "81\n\n"


USAGE: list[tuple[list[str], str]] = [
    ([], "nothing to run: give a text with --prompt or --file, or ids with --tokens"),
    (["--tokens", "1", "--prompt", "a"], "--prompt and --tokens exclude each other"),
    (["--tokens", "1", "--tokenize", "a"], "--tokenize and --tokens exclude each other"),
    (["--tokens", "1", "--ids", "--logits", "x"], "--ids and --logits exclude each other"),
    (["--tokens", "1", "--ids", "--stop", "a"], "--ids and --stop exclude each other"),
    (["--tokenize", "a", "-n", "3"], "--tokenize and -n exclude each other"),
    (["--tokenize", "a", "--stop", "b"], "--tokenize and --stop exclude each other"),
    (["--tokens", "1", "--logits", "x", "-n", "3"], "--logits and -n exclude each other: nothing is generated"),
    (["--tokens", "1", "--logits", "x", "--top-k", "3"], "--logits and --top-k exclude each other"),
    (["--prompt", "a"] * 17, "--prompt is given 17 times, at most 16 sequences run together"),
    (["--tokens", "1"] * 2 + ["--logits", "x"], "--tokens is given 2 times, but --logits writes those of one text"),
    (["--tokens", "1,x"], "--tokens: 'x' is no token id, expected numbers such as 1,2,3"),
    (["--tokens", ""], "--tokens: '' is no token id"),
    (["--tokens", "1,-2"], "--tokens: '-2' is no token id"),
    (["--tokens", "9" * 5000], "--tokens: '999"),
    (["--tokens", "٣"], "--tokens: '٣' is no token id"),
    (["--tokens", "1", "-n", "0"], "-n is 0, expected at least 1"),
    (["--tokens", "1", "-n", "-4"], "-n is -4, expected at least 1"),
    (["--tokens", "1", "-n", "many"], "argument -n/--count: invalid int value: 'many' (lane-run --help lists"),
    (["--tokens", "1", "--context", "0"], "--context is 0, expected at least 1"),
    (["--tokens", "1", "--chunk", "0"], "--chunk is 0, expected at least 1"),
    (["--tokens", "1", "--held", "add_nrom"], "unknown rule 'add_nrom'; did you mean 'add_norm'?"),
    (["--tokens", "1", "--numerics", "int9"], "unknown numerics 'int9'; did you mean 'int8'?"),
    (["--tokens", "1", "--chip", "h20"], "unknown chip 'h20'; did you mean 'h200'"),
    (["--tokens", "1", "--cache", "bf16"], "unknown precision of the cache 'bf16'"),
    (["--tokens", "1", "--temperature", "-1"], "sampling: temperature is -1.0, expected a number of at least 0"),
    (["--tokens", "1", "--top-p", "2"], "sampling: top_p is 2.0, expected a number from 0 to 1"),
    (["--tokens", "1", "--nope"], "unrecognized arguments: --nope"),
    (["--prompt"], "argument -p/--prompt: expected one argument"),
]  # fmt: skip


@pytest.mark.parametrize(("args", "message"), USAGE, ids=[" ".join(args) or "nothing" for args, _ in USAGE])
def test_usage(args: list[str], message: str, model: str, capsys: pytest.CaptureFixture[str]):
    assert refusal(capsys, 2, model, *args).startswith(message)


def test_what_cannot_be_run(model: str, talking: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"GGUF\x03\x00")
    binary = tmp_path / "prompt.bin"
    binary.write_bytes(b"ab\xff")
    for args, message in [
        ([str(tmp_path / "none.gguf"), "--tokens", "1"], f"{tmp_path / 'none.gguf'}: no such file"),
        ([str(bad), "--tokens", "1"], f"{bad}: "),
        ([str(bad), "--tokenize", "a"], f"{bad}: "),
        ([model, "--prompt", "a"], f"{model}: no text for tokenizer model 'test'"),
        ([model, "--tokenize", "a"], f"{model}: no text for tokenizer model 'test'"),
        ([talking, "--prompt", ""], "the prompt is empty"),
        ([model, "--tokens", "1,128", "--ids"], "token id 128 is outside the vocabulary of 128 tokens"),
        ([model, "--tokens", tokens((1,) * 9), "--ids", "--context", "8"], "the prompt has 9 tokens, more than"),
        ([model, "--tokens", "1", "-n", "9", "--ids", "--context", "8"], "1 tokens and 9 new ones do not fit"),
        ([talking, "--file", str(tmp_path / "none.txt")], f"cannot read {tmp_path / 'none.txt'}: No such file"),
        ([talking, "--file", str(binary)], f"{binary} is not text: byte 2 is not UTF-8"),
        ([talking, "--prompt", "a\udcff"], "the text is not valid Unicode at character 1"),
    ]:
        assert refusal(capsys, 1, *args).startswith(message)


def test_version(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out.startswith("lane-run 0.")


# --- as a process ---


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Processes take an interrupt, even where pytest itself was started to ignore it, as shells do in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def endless(model: str, interruptible: None) -> Iterator[subprocess.Popen[bytes]]:
    """A run that takes long; its ids come one by one."""
    args = [str(COMMAND), model, "--tokens", "1", "-n", "40000", "--context", "50000", "--ids"]
    process = subprocess.Popen(args, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


def test_interrupted(endless: subprocess.Popen[bytes]):
    assert endless.stdout is not None
    first = endless.stdout.read(5)
    endless.send_signal(signal.SIGINT)
    out, error = endless.communicate(timeout=30)
    assert endless.returncode == 130
    assert error == b""
    assert set((first + out).decode()) <= set("0123456789,")


@pytest.mark.usefixtures("interruptible")
def test_interrupted_while_it_compiles(model: str):
    # It interrupts itself, by a clock that starts with it, so that a busy machine does not make the signal late.
    # Importing the compiler alone takes longer.
    code = (
        "import os, signal, sys, threading; from lane_mlir.tools.lane_run import main; "
        "threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start(); "
        f"sys.exit(main([{model!r}, '--tokens', '1', '-n', '200', '--ids']))"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60)
    assert process.returncode == 130
    assert process.stderr == b""


def test_reader_has_gone(endless: subprocess.Popen[bytes]):
    assert endless.stdout is not None
    endless.stdout.read(5)
    endless.stdout.close()
    assert endless.wait(timeout=60) == 141
    assert endless.stderr is not None
    assert endless.stderr.read() == b""


def test_progress_and_rates_on_a_terminal(model: str):
    """What takes longer than a second is said on a terminal, and gone before the result comes."""
    ours, theirs = pty.openpty()
    args = [str(COMMAND), model, "--tokens", tokens(PROMPT), "-n", "4", "--ids"]
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "100"}
    process = subprocess.Popen(args, stdout=subprocess.PIPE, stderr=theirs, env=environment)
    os.close(theirs)
    written = read_all(ours)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert out.decode() == f"{tokens(CONTINUATION[:4])}\n"
    assert "decode: 3 tokens in" in written
    assert "Traceback" not in written


def read_all(terminal: int) -> str:
    found = b""
    while select.select([terminal], [], [], 60)[0]:
        try:
            data = os.read(terminal, 4096)
        except OSError:
            break
        if not data:
            break
        found += data
    os.close(terminal)
    return found.decode()
