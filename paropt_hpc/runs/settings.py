"""Settings: a TOML file of tables, and ``--set`` on top of it.

Every key is checked before anything else happens: its name, its type and its range.
"""

import difflib
import json
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from paropt_hpc.errors import ConfigError

__all__ = ["Section", "load", "to_toml", "validate"]


class Section(BaseModel):
    """A table of the file: no unknown keys, no conversions, no changes afterwards."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


_S = TypeVar("_S", bound=Section)


def load(kind: type[_S], path: Path, assignments: Iterable[str] = ()) -> _S:
    """Read a file of settings and apply ``section.key=value`` assignments to it.

    Parameters
    ----------
    kind : type
        A `Section` whose fields are sections: the tables of the file.
    path : Path
        A TOML file.
    assignments : iterable of str
        For instance ``"train.lr=0.1"``; values are TOML, anything else is a string. In a table
        of tables, those of the file are known by their names: ``"space.rate.low=0.1"``.

    Raises
    ------
    ConfigError
        Naming the key, what was expected, and what was found.
    """
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None
    for assignment in assignments:
        _assign(values, assignment)
    return validate(kind, values, str(path))


def to_toml(config: Section) -> str:
    """Return the complete configuration as TOML; keys without a value as comments."""
    lines = []
    for section, values in config.model_dump().items():
        lines.append(f"[{section}]")
        for key, value in values.items():
            name = key if key.replace("_", "").isalnum() else json.dumps(key)
            text = _written(value)
            lines.append(f"# {key} is not set" if value is None else f"{name} = {text}")
        lines.append("")
    return "\n".join(lines)


def _written(value: Any) -> str:
    """Return a value as TOML: JSON's strings, numbers, booleans and arrays are valid."""
    if not isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False)
    pairs = (f"{json.dumps(k)} = {_written(v)}" for k, v in value.items() if v is not None)
    return "{ " + ", ".join(pairs) + " }"


def _assign(values: dict[str, Any], assignment: str) -> None:
    name, equals, text = assignment.partition("=")
    section, dot, key = name.strip().partition(".")
    if not (equals and dot and key):
        raise ConfigError(
            f"--set takes SECTION.KEY=VALUE, got {assignment!r}; for instance --set train.lr=0.1"
        )
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    table = values.setdefault(section, {})
    while isinstance(table, dict) and (inner := _table_of(key, table)):
        table, key = table[inner], key[len(inner) + 1 :]
    if isinstance(table, dict):  # otherwise validation names the fault
        table[key] = value


def _table_of(key: str, table: dict[str, Any]) -> str | None:
    """Return the inner table that a key is of; its name may have dots, such as "train.lr"."""
    names = (name for name, value in table.items() if isinstance(value, dict))
    return max((name for name in names if key.startswith(f"{name}.")), key=len, default=None)


def validate(kind: type[_S], values: dict[str, Any], source: str) -> _S:
    """Return checked settings, or say in one line what is wrong with them."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
    key = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        raise ConfigError(f"{source}: unknown key {key}; {_nearest(kind, key)}")
    if first["type"] == "value_error":
        raise ConfigError(f"{source}: {first['ctx']['error']}")
    reason = first["msg"].removeprefix("Input ")
    if first["type"] in ("model_type", "dict_type"):
        reason = "should be a table"
    raise ConfigError(f"{source}: {key} {reason}, got {first['input']!r}")


def _nearest(kind: type[Section], key: str) -> str:
    """Name the valid key that was probably meant, or list the valid ones."""
    valid = [
        f"{section}.{name}"
        for section, field in kind.model_fields.items()
        for name in getattr(type(field.default), "model_fields", ())
    ]
    section, _, last = key.rpartition(".")
    elsewhere = [name for name in valid if name.endswith(f".{last}")]  # right key, wrong table
    close = difflib.get_close_matches(key, [*valid, *kind.model_fields], n=1)
    if elsewhere or close:
        return f"did you mean {(elsewhere or close)[0]}?"
    known = [name for name in valid if name.startswith(f"{section}.")] or list(kind.model_fields)
    return f"known are {', '.join(known)}"
