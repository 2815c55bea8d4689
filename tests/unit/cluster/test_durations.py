import pytest

from paropt_hpc.cluster.durations import parse_duration, slurm_duration
from paropt_hpc.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2h", 7200),
        ("90m", 5400),
        ("1h30m", 5400),
        ("1.5h", 5400),
        ("1d", 86400),
        ("1d 12h", 129600),
        ("45s", 45),
        ("30", 1800),
        ("30:15", 1815),
        ("02:00:00", 7200),
        ("1-0", 86400),
        ("1-12:30", 131400),
        ("1-12:30:10", 131410),
    ],
)
def test_times_are_read(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "abc", "2 hours", "-5", "1:2:3:4", "0", "0h", "h", "1-"])
def test_what_is_no_time_is_refused(text):
    with pytest.raises(ConfigError, match="time"):
        parse_duration(text)


@pytest.mark.parametrize("seconds", [1, 59, 60, 3600, 86399, 86400, 90061, 31 * 86400])
def test_what_is_written_for_slurm_reads_back(seconds):
    assert parse_duration(slurm_duration(seconds)) == seconds
