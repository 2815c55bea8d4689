"""One run of a program for each evaluation; whatever it does, it ends, and its folder goes."""

import sys
import time

import numpy as np
import pytest

from paropt_hpc.errors import ConfigError
from paropt_hpc.metaheuristics.evaluation import Scalar, Status
from paropt_hpc.metaheuristics.program import Program

ROW = np.array([0.1, -2e-7])


def python(code, *words, **options):
    command = " ".join([sys.executable, "-c", f"'{code}'", *words])
    return Program(command, **options)


def test_numbers_arrive_exactly_and_come_back(tmp_path):
    run = python(
        'import sys; print("step 7"); print("cost:", float(sys.argv[1]) + float(sys.argv[2]))',
        "{x0}", "{x1}", folder=tmp_path,
    )  # fmt: skip
    assert run(ROW) == ROW.sum()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("-1.5D-3", -1.5e-3),  # as Fortran writes it
        ("1.25-2.5", -2.5),  # columns without a gap
        ("cost=.5 kg", 0.5),
        ("3 at step2 of run_7", 3),
        ("4.0\nfor your information: no finance", 4),
    ],
)
def test_what_is_a_number(line, value):
    assert python(f"print({line!r})".replace("'", '"'))(ROW) == value


def test_files_in_and_out_and_names(tmp_path):
    run = python(
        'open("out.txt", "w").write(open("in.txt").read().split()[1] + " 4.0\\n")',
        inputs={"in.txt": "rate {rate:.2f}\n"}, output="out.txt", outputs=2,
        folder=tmp_path, keep="all", decode=lambda row: {"rate": float(row[0])},
    )  # fmt: skip
    assert run(ROW) == [0.1, 4.0]
    assert (next(tmp_path.iterdir()) / "in.txt").read_text() == "rate 0.10\n"


def test_inputs_stay_in_the_folder(tmp_path):
    run = python('print(open("sub/in.txt").read())', inputs={"sub/in.txt": "{x0}"}, folder=tmp_path)
    assert run(ROW) == ROW[0]
    for name in ("../in.txt", "/in.txt"):
        with pytest.raises(ConfigError, match="inputs must be files in the folder"):
            Program("true", inputs={name: ""})


def test_failures_have_their_cause(tmp_path):
    def cause(program):
        done = Scalar(program)(ROW[None])
        return Status(done.status[0]), done.texts.get(0, "")

    status, text = cause(python('import sys; sys.exit("no licence")', folder=tmp_path))
    assert status == Status.RAISED
    assert "status 1: no licence" in text
    assert cause(python("print()"))[1].endswith("no line with 1 number(s)")
    assert cause(python('print("nan")'))[0] == Status.NAN
    assert cause(python('print("f = -Infinity")'))[0] == Status.INFINITE
    assert "none of x0, x1, folder" in cause(python("", "{y}"))[1]
    assert "left no out.txt" in cause(python("", output="out.txt"))[1]
    assert list(tmp_path.iterdir()) == []


def test_time_limit_kills_the_whole_family(tmp_path):
    """The program starts another one, which holds the output open."""
    code = 'import subprocess as s; s.run(["sleep", "30"])'
    start = time.monotonic()
    done = Scalar(python(code, time_limit=0.5, folder=tmp_path, keep="failed"))(ROW[None])
    assert time.monotonic() - start < 10
    assert done.status[0] == Status.TIMEOUT
    assert len(list(tmp_path.iterdir())) == 1


def test_a_program_does_not_take_itself_for_a_rank(monkeypatch):
    monkeypatch.setenv("PMI_RANK", "3")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    code = 'import os; print(sum(n.startswith(("PMI", "OMPI_")) for n in os.environ))'
    assert python(code)(ROW) == 0


def test_bad_settings_are_refused():
    with pytest.raises(ConfigError, match="there is no program 'no-such-simulator'"):
        Program("no-such-simulator {x0}")
    with pytest.raises(ConfigError, match="bad braces"):
        python("", "{x0")
    with pytest.raises(ConfigError, match="cannot be split"):
        Program("echo 'x")
    with pytest.raises(ConfigError, match="keep must be"):
        python("", keep="some")
