"""``accelera run``: an unchanged program that sees what it would see with python, inside a budget."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from accelera.cli.python import interpreter_flags

LARGE = """
import torch
a = torch.ones(4000, 100)
b = torch.ones(100, 4000)
c = a @ b
d = c + 1
print(int(d.min()), int(d.max()))
"""
RESULT_BYTES = 4000 * 4000 * 4
PRINTED = "101 101\n"


class Ended(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def report(self) -> Any:
        """The last line of stderr."""
        return json.loads(self.err.splitlines()[-1])


def ran(folder: Path, *words: str, text: str = "", module: str = "accelera") -> Ended:
    ended = subprocess.run(
        [sys.executable, *words] if not module else [sys.executable, "-m", module, *words],
        cwd=folder,
        input=text,
        capture_output=True,
        text=True,
        timeout=840,
        check=False,
    )
    return Ended(ended.returncode, ended.stdout, ended.stderr)


def run(folder: Path, *words: str, text: str = "") -> Ended:
    return ran(folder, "run", *words, text=text)


def plain(folder: Path, *words: str, text: str = "") -> Ended:
    return ran(folder, *words, text=text, module="")


SEEN = """
import sys
print(sys.argv, __name__, __file__, __spec__, sys.path[0], "torch" in sys.modules, "numpy" in sys.modules)
print(sorted(vars().keys() - {"__cached__"}))
print(sys.modules["__main__"].__dict__ is globals())
"""


POOLED = """
import multiprocessing, time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
pool = {pool}
def say(seconds, word):
    time.sleep(seconds)
    print(word, flush=True)
pool.submit(say, 0.3, "at last")
pool.submit(say, 0.1, "in between")
print("at first", flush=True)
"""


def test_a_script_sees_what_it_sees_with_python(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "seen.py").write_text(SEEN)
    words = ("inner/seen.py", "--lr", "0.1", "-b", "-h", "x y")
    with_us, without = run(tmp_path, *words), plain(tmp_path, *words)
    assert with_us == without


@pytest.mark.parametrize(
    "words", [("-c", "import sys; print(sys.argv, __name__, sys.path[0])", "-m", "x"), ("-", "a", "-c")]
)
def test_code_and_standard_input_as_python_takes_them(tmp_path: Path, words: tuple[str, ...]) -> None:
    text = "import sys; print(sys.argv, __name__, sys.path[0])"
    assert run(tmp_path, *words, text=text) == plain(tmp_path, *words, text=text)


def test_modules_packages_and_folders_as_python_takes_them(tmp_path: Path) -> None:
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").write_text("")
    (tmp_path / "pack" / "__main__.py").write_text(
        "import sys\nfrom pack import other\nprint(sys.argv, __name__, __package__)"
    )
    (tmp_path / "pack" / "other.py").write_text("")
    assert run(tmp_path, "-m", "pack", "-m", "x") == plain(tmp_path, "-m", "pack", "-m", "x")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "__main__.py").write_text("import sys; print(sys.argv, __name__)")
    assert run(tmp_path, "folder", "x") == plain(tmp_path, "folder", "x")


@pytest.mark.parametrize(
    "end",
    [
        "import sys; sys.exit(7)",
        "import sys; sys.exit('no')",
        "def f():\n    1 / 0\nf()",
        "raise SystemExit",
        "def broken(:",
        "import sys\nsys.excepthook = lambda kind, error, _: print('mine', kind.__name__)\n[][0]",
        "import atexit; atexit.register(print, 'late')",
        "import threading, time\nthreading.Thread(target=lambda: (time.sleep(0.2), print('thread'))).start()",
        "try:\n    import nothing_there\nexcept ImportError as error:\n    print(error)",
    ],
)
def test_a_program_ends_as_with_python(tmp_path: Path, end: str) -> None:
    (tmp_path / "p.py").write_text(f"print('begun', flush=True)\n{end}\n")
    with_us, without = run(tmp_path, "p.py"), plain(tmp_path, "p.py")
    assert with_us == without


@pytest.mark.parametrize(
    "pool",
    ["ThreadPoolExecutor(2)", "ProcessPoolExecutor(2, mp_context=multiprocessing.get_context('fork'))"],
)
def test_pools_that_nobody_closed_end_with_the_program(tmp_path: Path, pool: str) -> None:
    (tmp_path / "p.py").write_text(POOLED.format(pool=pool))
    for ended in (run(tmp_path, "p.py"), plain(tmp_path, "p.py")):
        assert (ended.code, ended.err) == (0, "")
        assert sorted(ended.out.splitlines()) == ["at first", "at last", "in between"]


def test_work_left_to_a_pool_keeps_to_the_budget(tmp_path: Path) -> None:
    text = (
        f"from concurrent.futures import ThreadPoolExecutor\npool = ThreadPoolExecutor(1)\nwork = {LARGE!r}\n"
    )
    (tmp_path / "p.py").write_text(
        text + "import torch\nprint(pool.submit(len, work).result() > 0, flush=True)\n"
    )
    with (tmp_path / "p.py").open("a") as file:
        file.write("pool.submit(exec, work, {})\n")
    ended = run(tmp_path, "p.py", "--budget", "24MiB", "--spill-dir", ".", "--json")
    assert (ended.code, ended.out) == (0, "True\n" + PRINTED)
    assert ended.report["calls"]["by_op"]["mm"]["spilled"] == 1


def test_a_spawned_process_finds_the_program_again(tmp_path: Path) -> None:
    (tmp_path / "p.py").write_text(
        "import multiprocessing\n"
        "def double(x):\n    return 2 * x\n"
        "if __name__ == '__main__':\n"
        "    with multiprocessing.get_context('spawn').Pool(1) as pool:\n"
        "        print(pool.map(double, [1, 2]))\n"
    )
    assert run(tmp_path, "p.py") == (0, "[2, 4]\n", "")


def test_what_torch_reads_as_it_is_loaded_may_still_be_set(tmp_path: Path) -> None:
    text = "import os\nos.environ['OMP_NUM_THREADS'] = '1'\nimport torch\nprint(torch.get_num_threads())"
    (tmp_path / "p.py").write_text(text)
    assert run(tmp_path, "p.py", "--budget", "1GiB").out == "1\n"


def test_large_calls_keep_to_the_budget_and_the_report_says_so(tmp_path: Path) -> None:
    (tmp_path / "large.py").write_text(LARGE)
    words = ("--budget", "32MiB", "--memory-threshold", "1MiB", "--spill-dir", str(tmp_path))
    ended = run(tmp_path, "large.py", *words, "--json")
    assert (ended.code, ended.out) == (0, PRINTED)
    report = ended.report
    assert (report["program"], report["budget"], report["exit_code"]) == ("large.py", "32MiB", 0)
    calls = report["calls"]["by_op"]
    assert calls["mm"]["spilled"] == calls["add.Tensor"]["spilled"] == 1
    assert calls["mm"]["spilled_bytes"] == RESULT_BYTES
    # Both results are alive together.
    assert report["predicted_peak_without_bytes"] > 2 * RESULT_BYTES
    assert report["peak_bytes"] < RESULT_BYTES
    assert report["seconds"] > 0


def test_without_a_need_nothing_is_changed_and_both_peaks_agree(tmp_path: Path) -> None:
    (tmp_path / "large.py").write_text(LARGE)
    ended = run(tmp_path, "large.py", "--budget=1GiB", "--memory-threshold", "1MiB", "--json")
    report = ended.report
    assert report["calls"]["total"]["direct"] >= 2
    assert report["calls"]["total"]["spilled"] == 0
    assert report["peak_bytes"] == report["predicted_peak_without_bytes"]


def test_the_report_for_people_goes_to_stderr(tmp_path: Path) -> None:
    (tmp_path / "large.py").write_text(LARGE + "import sys; sys.exit(3)")
    ended = run(tmp_path, "--report", "--budget", "32MiB", "--memory-threshold", "1MiB", "large.py")
    assert (ended.code, ended.out) == (3, PRINTED)
    for said in ("large.py ran within 32MiB per call", "exit code 3", "mm", "spilled", "predicted without"):
        assert said in ended.err


def test_a_program_without_torch_is_told_so(tmp_path: Path) -> None:
    ended = run(tmp_path, "--report", "-c", "print(1)")
    assert (ended.code, ended.out) == (0, "1\n")
    assert "did not load torch" in ended.err
    assert run(tmp_path, "--json", "-c", "print(1)").report["calls"] is None


def test_what_follows_two_dashes_is_the_programs(tmp_path: Path) -> None:
    (tmp_path / "p.py").write_text("import sys; print(sys.argv[1:])")
    ended = run(tmp_path, "p.py", "--epochs", "3", "--report", "--", "--budget", "lots", "--help")
    assert ended.out == "['--epochs', '3', '--budget', 'lots', '--help']\n"
    assert "p.py ran" in ended.err
    ended = run(tmp_path, "--report", "--", "p.py", "--json")
    assert ended.out == "['--json']\n"
    assert "p.py ran" in ended.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "name a script"),
        (("none.py",), "none.py"),
        (("-m",), "-m needs a module"),
        (("p.py", "--budget", "lots"), "lots"),
        (("p.py", "--budget"), "--budget"),
        (("p.py", "--spill-dir", "nowhere"), "nowhere"),
        (("p.py", "--min-size", "-1"), "--min-size"),
    ],
)
def test_mistakes_are_one_line_before_the_program_runs(
    tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    (tmp_path / "p.py").write_text("print('ran')")
    ended = run(tmp_path, *words)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("error: ")
    assert said in ended.err


@pytest.mark.parametrize("command", [("accelera", "run"), ("accelera.cli.python",)])
def test_a_setting_that_cannot_be_read_is_one_line_before_the_program_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.setenv("ACCELERA_BUDGET", "lots")
    (tmp_path / "p.py").write_text("print('ran')")
    module, *words = command
    ended = ran(tmp_path, *words, "p.py", module=module)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("error: [settings] ACCELERA_BUDGET='lots'")
    assert len(ended.err.splitlines()) == 1


def test_a_device_that_there_is_not_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "p.py").write_text("import torch\nprint('ran')")
    ended = run(tmp_path, "p.py", "--device", "gpu")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("error: [device] no device is called 'gpu'")
    assert len(ended.err.splitlines()) == 1


def test_help_says_how(tmp_path: Path) -> None:
    ended = run(tmp_path, "--help")
    assert ended.code == 0
    assert "PROGRAM [ARGUMENTS]..." in ended.out
    assert "-- train.py --json" in " ".join(ended.out.replace("│", " ").split())


@pytest.mark.parametrize("before", [(), ("--report",), ("--budget", "1GiB")])
def test_a_programs_help_is_its_own(tmp_path: Path, before: tuple[str, ...]) -> None:
    text = "import argparse\nparser = argparse.ArgumentParser(description='Trains.')\n"
    (tmp_path / "p.py").write_text(text + "parser.add_argument('--lr')\nparser.parse_args()\n")
    ended = run(tmp_path, *before, "p.py", "--help")
    assert (ended.code, ended.out) == (0, plain(tmp_path, "p.py", "--help").out)
    assert "Trains." in run(tmp_path, "-m", "p", "--help").out


class TestPython:
    """``accelera-python`` in place of ``python``."""

    @staticmethod
    def ran(folder: Path, *words: str, text: str = "") -> Ended:
        return ran(folder, *words, text=text, module="accelera.cli.python")

    @pytest.mark.parametrize(
        "words",
        [
            ("p.py", "-u", "--budget", "x"),
            ("-c", "import sys; print(sys.argv, sys.path[0])", "-W"),
            ("-m", "p", "y"),
            ("-",),
            (),
            ("-O", "-W", "error", "-c", "import sys; print(sys.flags.optimize, sys.warnoptions)"),
            ("-V",),
            ("p.py", "fail"),
        ],
    )
    def test_takes_what_python_takes(self, tmp_path: Path, words: tuple[str, ...]) -> None:
        (tmp_path / "p.py").write_text("import sys\nprint(sys.argv, __name__)\nif 'fail' in sys.argv: 1 / 0")
        text = "print('from stdin')"
        assert self.ran(tmp_path, *words, text=text) == plain(tmp_path, *words, text=text)

    def test_keeps_to_the_budget_of_the_environment(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("ACCELERA_BUDGET", "32MiB")
        monkeypatch.setenv("ACCELERA_SPILL", str(tmp_path))
        monkeypatch.setenv("ACCELERA_LOG_LEVEL", "DEBUG")
        (tmp_path / "large.py").write_text(LARGE)
        ended = self.ran(tmp_path, "large.py")
        assert (ended.code, ended.out) == (0, PRINTED)
        assert "mm: spilled" in ended.err

    @pytest.mark.parametrize(
        ("words", "flags"),
        [
            (["-u", "p.py", "-u"], ["-u"]),
            (["-W", "error", "-Xdev", "-mp"], ["-W", "error", "-Xdev"]),
            (["-c", "1", "-u"], []),
            (["-"], []),
            ([], []),
        ],
    )
    def test_tells_the_interpreters_flags(self, words: list[str], flags: list[str]) -> None:
        assert interpreter_flags(words) == (flags, words[len(flags) :])
