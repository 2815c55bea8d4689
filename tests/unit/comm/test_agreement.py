import json

import pytest

from paropt_hpc.comm.agreement import describe, differences, fingerprint, rebuild
from paropt_hpc.errors import ConfigError, MPIMismatchError, ParoptError


class ForeignError(ConfigError):
    def __init__(self, where, what):
        super().__init__(f"{what} in {where}")


def caught(call, *arguments):
    with pytest.raises(Exception) as info:  # noqa: PT011 - any, for the table below
        call(*arguments)
    return info.value


def test_fingerprint_is_zero_for_no_error_alone():
    assert fingerprint(None) == 0
    assert 0 < fingerprint(ValueError()) < 2**63


def test_fingerprint_tells_types_and_texts_apart():
    errors = [ValueError("a"), ValueError("b"), TypeError("a"), ConfigError("a")]
    assert len({fingerprint(error) for error in errors}) == len(errors)
    assert fingerprint(ValueError("a")) == fingerprint(ValueError("a"))


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (ConfigError("bad key"), ConfigError, "rank 3: bad key"),
        (MPIMismatchError("two MPIs"), MPIMismatchError, "rank 3: two MPIs"),
        (ParoptError("odd"), ParoptError, "rank 3: odd"),
        (ValueError("bad"), ValueError, "rank 3: bad"),
        (ForeignError("a.toml", "tab"), ConfigError, "rank 3: ForeignError: tab in a.toml"),
        (caught(open, "/nowhere"), FileNotFoundError, "rank 3: [Errno 2]"),
        (caught(json.loads, "{"), ValueError, "rank 3: JSONDecodeError: Expecting"),
        (caught(b"\xff".decode), UnicodeError, "rank 3: UnicodeDecodeError: 'utf-8'"),
    ],
)
def test_an_error_survives_the_way(error, kind, text):
    again = rebuild(*describe(error, rank=3))
    assert type(again) is kind
    assert str(again).startswith(text)


def test_differences_group_the_ranks_by_what_they_do():
    assert differences(["barrier"] * 3) is None
    text = differences(["barrier", "allreduce", "barrier"])
    assert "ranks 0, 2: barrier; rank 1: allreduce" in text
