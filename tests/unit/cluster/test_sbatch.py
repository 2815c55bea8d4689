"""The text of batch scripts: as recorded, valid shell, and complete."""

import shutil
import subprocess
from pathlib import Path

import pytest

from paropt_hpc.cluster import sbatch
from paropt_hpc.cluster.sbatch import Array, Job, Purpose, by_ranks, purpose, render
from paropt_hpc.errors import ConfigError

RECORDED = Path(__file__).parents[2] / "fixture" / "slurm"


@pytest.fixture(autouse=True)
def python(monkeypatch):
    monkeypatch.setattr(sbatch.sys, "executable", "/opt/venv/bin/python")


def job(template):
    """A job that uses every option its template has."""
    return Job(
        config=Path("/home/ada/my run.toml"),
        folder=Path("/home/ada/runs/my run"),
        template=template,
        nodes=4,
        ntasks_per_node=8,
        cpus_per_task=2,
        seconds=7200,
        gpus_per_node=8 if template == "gpu" else 0,
        mpi="pmix",
        array=Array.parse("0-15%4") if template in ("experiment", "tune", "islands") else None,
        site={"partition": "cpu", "account": "physics"} if template == "train" else {},
        setup=("module load openmpi",) if template == "train" else (),
    )


@pytest.mark.parametrize("template", sbatch.TEMPLATES)
def test_a_template_gives_the_recorded_text(template):
    recorded = RECORDED / f"{template}.sbatch"
    assert render(job(template), Path("/home/ada")) == recorded.read_text()


@pytest.mark.parametrize("template", sbatch.TEMPLATES)
def test_a_script_is_valid_shell(template, tmp_path):
    script = tmp_path / "job.sbatch"
    script.write_text(render(job(template), tmp_path))
    subprocess.run(["bash", "-n", script], check=True)
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed: apt-get install shellcheck")
    done = subprocess.run(["shellcheck", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("template", sbatch.TEMPLATES)
def test_a_script_follows_the_checklist(template):
    text = render(job(template), Path("/home/ada"))
    for part in (
        "--open-mode=append",
        "--requeue",
        "--signal=B:USR1@120",
        "--time=02:00:00",
        'OMP_NUM_THREADS="$threads"',
        "--cpu-bind=cores",
        "srun --mpi=pmix --cpus-per-task=",
        "--kill-on-bad-exit=1",
        "-u -m mpi4py -m paropt_hpc",
        "# SITE:",
    ):
        assert part in text
    assert ("%A_%a.out" if job(template).array else "%j.out") in text


def test_nothing_of_a_site_is_invented():
    text = render(Job(Path("run.toml"), Path("runs/run")), Path("/home/ada"))
    for option in ("partition", "account", "qos", "constraint", "mem", "gpus", "array"):
        assert f"#SBATCH --{option}" not in text


def test_a_template_that_does_not_fit():
    with pytest.raises(ConfigError, match=r"template 'cpu' does not exist; use experiment, "):
        Purpose("train", Path()).chosen("cpu")
    with pytest.raises(ConfigError, match=r"template 'tune' does not run .*: 'train' does"):
        Purpose("train", Path()).chosen("tune")
    assert Purpose("train", Path()).chosen("gpu") == "gpu"
    assert Purpose("tune", Path()).chosen(None) == "tune"


@pytest.mark.parametrize(
    ("text", "elements", "limit", "written"),
    [
        ("0-3", (0, 1, 2, 3), None, "0-3"),
        ("0-7:3%2", (0, 3, 6), 2, "0,3,6%2"),
        ("7,1,3-4", (1, 3, 4, 7), None, "1,3,4,7"),
        ("5", (5,), None, "5"),
        ("%8", (), 8, "%8"),
    ],
)
def test_an_array_is_read_and_written(text, elements, limit, written):
    array = Array.parse(text)
    assert array == (elements, limit)
    assert str(array) == written


@pytest.mark.parametrize("text", ["0..3", "3-1", "-1", "1,", "0-3%0", "a", "0-99999999999"])
def test_a_bad_array(text):
    with pytest.raises(ConfigError, match="--array"):
        Array.parse(text)


def test_cells_of_equal_ranks_share_a_job():
    asked = Job(Path("m.toml"), Path("runs/m"), "experiment", nodes=2, ntasks_per_node=4)
    jobs = by_ranks(asked, {0: 1, 1: 1, 2: 4, 3: 5, 5: 8})
    assert [(str(j.array), j.nodes, j.ntasks_per_node, j.ntasks) for j in jobs] == [
        ("0-1", 1, 1, 1),
        ("2", 1, 4, 4),
        ("3", 2, 3, 5),
        ("5", 2, 4, 8),
    ]
    assert len({j.script for j in jobs}) == 4
    with pytest.raises(ConfigError, match=r"cell 7 needs 9 ranks, but --nodes 2 times .* are 8"):
        by_ranks(asked, {6: 1, 7: 9})


@pytest.mark.parametrize(
    ("text", "template"),
    [
        ("", "train"),
        ('[strategy]\nname = "gossip"\n', "gossip"),
        ('[strategy]\nname = "parameter-server"\n', "parameter-server"),
        ('[compress]\nmethod = "topk"\n', "train"),
        ('[objective]\nfunction = "sphere"\n', "islands"),
        ("[tune]\ntrials = 4\n", "tune"),
        ("[axes]\nranks = [1, 2]\n", "experiment"),
        ("tune = 4\n", "tune"),
    ],
)
def test_a_configuration_names_its_template(tmp_path, text, template):
    config = tmp_path / "some.toml"
    config.write_text(text)
    assert purpose(config) == (template, Path("runs/some"))


def test_a_wrong_setting_is_found_before_the_queue(tmp_path):
    config = tmp_path / "some.toml"
    config.write_text("[train]\nepoch = 3\n")
    with pytest.raises(ConfigError, match=r"did you mean train\.epochs"):
        purpose(config)
    with pytest.raises(ConfigError, match="cannot read"):
        purpose(tmp_path / "none.toml")
