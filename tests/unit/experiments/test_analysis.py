"""Figures and verdicts from folders whose content is known."""

import json
import math
import shutil
import subprocess

import pytest

from paropt_hpc.experiments import analyse, load_matrix, verdicts, write_report
from paropt_hpc.experiments.pages import HEADER, table

MATRIX = """
base = "base.toml"
repeats = 2
target.value = 0.9
[axes]
method = [
  { label = "dense" },
  { label = "top-k", "compress.method" = "topk" },
]
ranks = [1, 4]
"""


@pytest.fixture
def experiment(tmp_path):
    """An experiment whose runs are written by hand: epochs to the target, seconds of an epoch."""
    (tmp_path / "base.toml").write_text("")
    path, folder = tmp_path / "matrix.toml", tmp_path / "runs"
    path.write_text(MATRIX)
    matrix = load_matrix(path)

    def make(runs, text=MATRIX):
        path.write_text(text)
        matrix = load_matrix(path)
        for cell in matrix.cells():
            key = (cell.point.get("method"), cell.ranks)
            if key in runs:
                write_run(folder / cell.name, cell, *runs[key])
        return analyse(matrix, path, folder)

    make.folder, make.matrix = folder, matrix
    return make


def write_run(run, cell, needed, seconds, comm_share=0.1, jitter=0.1):
    run.mkdir(parents=True)
    epochs = 40
    records = [
        {
            "epoch": epoch,
            "loss": 1 / epoch,
            "test_accuracy": 0.95 if epoch >= needed else 0.5,
            "wall_s": epoch * seconds,
        }
        for epoch in range(1, epochs + 1)
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    summary = {
        "ranks": cell.ranks,
        "steps": 10 * epochs,
        "epochs": epochs,
        "test_accuracy": records[-1]["test_accuracy"],
        "wall_s": epochs * seconds,
        "samples_per_s": 100 / seconds,
        "comm_share": comm_share,
        "comm_jitter": jitter,
        "bytes_sent_per_rank": 400 * 10 * epochs,
    }
    (run / "summary.json").write_text(json.dumps(summary))


GOOD = {
    ("dense", 1): (10, 2.0),
    ("dense", 4): (10, 0.6),
    ("top-k", 1): (10, 2.0),
    ("top-k", 4): (20, 0.25),
}


def test_a_speedup_is_one_of_times_to_the_target(experiment):
    analysis = experiment(GOOD)
    point = analysis.points[3]
    assert point.epochs_to_target == (20, 20, 20)
    assert point.seconds_to_target.median == 5.0
    # Eight times the throughput, but twice the epochs.
    assert analysis.speedup(point) == pytest.approx((4.0, 4.0, 4.0))
    assert (
        point.spread("samples_per_s").median
        == 8 * analysis.points[2].spread("samples_per_s").median
    )


def test_a_speedup_has_the_spread_of_its_repeats(experiment):
    analysis = experiment(GOOD)
    times = iter([4.0, 6.0])
    for run in analysis.points[3].runs:
        run.records[run.arrived]["wall_s"] = next(times)
    assert analysis.speedup(analysis.points[3]) == pytest.approx((4.0, 20 / 6, 5.0))


@pytest.mark.parametrize(
    ("needed", "said"),
    [
        (100, "2 of 2 runs did not reach the test accuracy of 0.9"),
        (10, "converges like dense, 4 ranks (+0.0% epochs"),
        (20, "+100.0% epochs to the target against dense, 4 ranks: raise the density"),
    ],
)
def test_convergence_is_judged_beside_the_first_combination(experiment, needed, said):
    analysis = experiment(GOOD | {("top-k", 4): (needed, 0.25)})
    judged = [text for text in verdicts(analysis) if text.startswith("top-k, 4 ranks")]
    assert any(said in text for text in judged), judged


def test_poor_scaling_communication_and_jitter_are_named(experiment):
    analysis = experiment(GOOD | {("dense", 4): (10, 1.5, 0.5, 0.4)})
    said = [text for text in verdicts(analysis) if text.startswith("dense, 4 ranks")]
    assert "only 1.33 times as fast as one" in said[0]
    assert "50% of a step is communication" in said[1]
    assert "varies by 40%: look at the links first" in said[2]


def test_nothing_is_said_of_what_is_fine(experiment):
    analysis = experiment(GOOD | {("top-k", 4): (10, 0.25)})
    assert all("converges like" in text for text in verdicts(analysis))


def test_failed_and_missing_runs_are_counted_not_hidden(experiment):
    known = {key: value for key, value in GOOD.items() if key != ("top-k", 4)}
    cells = experiment.matrix.cells()
    (experiment.folder / cells[-1].name).mkdir(parents=True)
    (experiment.folder / cells[-1].name / "failed.txt").write_text("status 2: no such luck\n")
    analysis = experiment(known)
    said = verdicts(analysis)
    assert "no such luck" in said[0]
    assert "1 runs have not been made" in said[1]
    assert math.isnan(analysis.speedup(analysis.points[3]).median)
    assert table(analysis)[3][1:4] == ["0 of 0", "-", "-"]


def test_unequal_batches_are_warned_of(experiment):
    text = MATRIX + '"train.accumulate" = [1, 4]\n'
    analysis = experiment(GOOD, text)
    assert any("(64, 256 samples an update)" in line for line in verdicts(analysis))


def test_a_larger_batch_is_not_cured_by_density(experiment):
    text = MATRIX.replace('"compress.method" = "topk"', '"train.accumulate" = 4')
    said = verdicts(experiment(GOOD, text))
    assert any("its batch is 4 times as large: scale train.lr" in line for line in said)
    assert not any("density" in line for line in said)


def test_the_report_is_one_file_that_needs_no_network(experiment):
    pytest.importorskip("matplotlib")
    folder = experiment.folder
    written = write_report(experiment(GOOD), folder)
    assert [path.name for path in written] == ["report.md", "report.html"]
    page = written[1].read_text()
    assert page.count("<svg") == 5
    for outside in ("<script", "<link", 'src="http', "@import"):
        assert outside not in page
    assert all(name in written[0].read_text() for name in HEADER)
    assert not list(folder.glob(".report*"))


@pytest.mark.parametrize(("scheme", "paper"), [("light", 255), ("dark", 24)])
def test_a_browser_shows_the_report(experiment, tmp_path, scheme, paper):
    """Headless Chromium draws every plot, in the reader's colours, and asks no other host."""
    image = pytest.importorskip("matplotlib.image")
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no Chromium: apt-get install chromium")
    _, page = write_report(experiment(GOOD), experiment.folder)
    shot = tmp_path / "report.png"
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    options += ["--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={tmp_path}/profile"]
    options += [f"--blink-settings=preferredColorScheme={int(scheme == 'light')}"]
    options += ["--window-size=1200,1700", f"--screenshot={shot}", page.as_uri()]
    done = subprocess.run([browser, *options], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    pixels = (255 * image.imread(shot)[..., :3]).round().astype(int)
    assert (pixels[0, 0] == paper).all()
    drawn = (abs(pixels - paper) > 40).any(axis=2)
    # Text above, and below it three rows of plots, the first two of two plots each.
    for rows, columns in [
        (slice(0, 450), slice(0, 1200)),
        *(
            (slice(top, top + 300), slice(*x))
            for top in (520, 880)
            for x in ((0, 590), (610, 1200))
        ),
        (slice(1240, 1540), slice(0, 590)),
    ]:
        assert drawn[rows, columns].mean() > 0.005
