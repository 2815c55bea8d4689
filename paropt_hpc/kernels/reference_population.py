"""The NumPy twins of the population kernels, equal to the native ones in every bit.

Rows are worked on in blocks of 8 columns, the last block of a row reaching back; only the sums of
the objectives show it. Random words are named by a key, an individual and a column.
"""

import math
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "de_run",
    "de_trials",
    "evaluate",
    "ga_children",
    "ga_parents",
    "ga_run",
    "ga_survive",
    "generation_key",
    "normals",
    "swarm_move",
    "swarm_run",
    "take_better",
]

_Array: TypeAlias = NDArray[Any]
_Streams: TypeAlias = NDArray[np.uint64]
_Operator: TypeAlias = tuple[int, float, float]
_Best: TypeAlias = tuple[_Array, _Array, float]  # a row, its value, the target

_GOLDEN, _SECOND = 0x9E3779B97F4A7C15, 0x632BE59BD9B4E019
_ROUNDING = 1.5 * 2.0**52  # adding it leaves an integer in the low bits
_LOG2E = 1.4426950408889634
_LN2_HIGH, _LN2_LOW = float.fromhex("0x1.62e42fee00000p-1"), float.fromhex("0x1.a39ef35793c76p-33")
_SINPI = (
    3.141592653589793,
    -5.16771278004997,
    2.5501640398773455,
    -0.5992645293207921,
    0.08214588661112823,
    -0.0073704309457143504,
    0.00046630280576761255,
    -2.1915353447830217e-05,
    7.952054001475513e-07,
    -2.2948428997269873e-08,
    5.392664662608127e-10,
)
_LOG2_SERIES = np.array([2 / ((2 * k + 1) * math.log(2)) for k in range(4)], np.float32)
_EXP2_SERIES = np.array([math.log(2) ** k / math.factorial(k) for k in range(7)], np.float32)
_GROUP = 32  # pairs of children whose mutations come from one stream
_RAND_1, _BEST_1, _CURRENT_TO_BEST_1 = range(3)
_REFLECT, _ABSORB, _PERIODIC = range(3)


# ---- elementary functions ----------------------------------------------------------------------


def _sinpi(x: _Array) -> _Array:
    z = x * x
    p = np.full_like(x, _SINPI[10])
    for k in range(9, -1, -1):
        p = p * z + _SINPI[k]
    return p * x


def _exp(x: _Array) -> _Array:
    shifted = x * _LOG2E + _ROUNDING
    n = shifted - _ROUNDING
    r = (x - n * _LN2_HIGH) - n * _LN2_LOW
    p = np.full_like(x, 1 / math.factorial(13))
    for k in range(12, -1, -1):
        p = p * r + 1 / math.factorial(k)
    scale = (shifted.view(np.uint64) + np.uint64(1023)) << np.uint64(52)
    return p * scale.view(np.float64)


def _log(x: _Array) -> _Array:
    bits = x.view(np.uint64)
    k = (bits + np.uint64(0x00095F619980C433)) >> np.uint64(52)
    m = (bits - ((k - np.uint64(1023)) << np.uint64(52))).view(np.float64)
    exponent = k.astype(np.float64) - 1023
    s = (m - 1) / (m + 1)
    z = s * s
    p = np.full_like(x, 1 / 23)
    for i in range(21, 0, -2):
        p = p * z + 1 / i
    return exponent * _LN2_HIGH + (exponent * _LN2_LOW + 2 * s * p)


# ---- random numbers ----------------------------------------------------------------------------


def _mix(x: _Streams) -> _Streams:
    x = (x ^ x >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ x >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return x ^ x >> np.uint64(31)


def generation_key(key: int, generation: int) -> int:
    """Return the key of a generation."""
    inner = _mix(np.array([(generation + _GOLDEN) % 2**64], np.uint64))
    return int(_mix(np.array([key], np.uint64) ^ inner)[0])


def streams(key: int, individuals: _Array) -> _Streams:
    """Return the random streams of individuals."""
    with np.errstate(over="ignore"):
        steps = (individuals.astype(np.uint64) + np.uint64(1)) * np.uint64(_GOLDEN)
        return _mix(np.uint64(key) + steps)


def _second(s: _Streams) -> _Streams:
    return _mix(s + np.uint64(_SECOND))


def words(s: _Streams, j: _Array) -> NDArray[np.uint32]:
    """Return the words of streams (n,) at numbers (d,): shape (n, d)."""
    a = (s & np.uint64(0xFFFFFFFF)).astype(np.uint32)[:, None]
    b = (s >> np.uint64(32)).astype(np.uint32)[:, None]
    x = j.astype(np.uint32)[None, :] * np.uint32(0x9E3779B9) + a
    x = (x ^ x >> np.uint32(16)) * np.uint32(0x21F0AAAD) ^ b
    x = (x ^ x >> np.uint32(15)) * np.uint32(0x735A2D97)
    return x ^ x >> np.uint32(15)


def _uniforms(s: _Streams, d: int) -> _Array:
    return (words(s, np.arange(d)) >> np.uint32(1)).astype(np.float64) * 2.0**-31


def below(s: _Streams, j: int, limit: int) -> NDArray[np.int64]:
    """Return an integer below `limit` of each stream."""
    word = words(s, np.array([j]))[:, 0].astype(np.uint64)
    return (word * np.uint64(limit) >> np.uint64(32)).astype(np.int64)


def _normal_pairs(s: _Streams, t: _Streams, d: int) -> tuple[_Array, _Array]:
    radius = np.sqrt(-2 * _log(1 - _uniforms(s, d)))
    sine = _sinpi(_uniforms(t, d) - 0.5)
    return (
        radius * (2 * sine * sine - 1),
        radius * (2 * sine * np.sqrt(1 - sine * sine)),
    )


def normals(key: int, out: _Array) -> None:
    """Fill rows with independent standard normal numbers."""
    m, d = out.shape
    half = (d + 1) // 2
    s = streams(key, np.arange(m))
    first, second = _normal_pairs(s, _second(s), half)
    out[:, :half] = first
    out[:, half:] = second[:, : d - half]


# ---- objectives --------------------------------------------------------------------------------


def _sum(terms: _Array) -> _Array:
    """Add the columns in the order of the native loops."""
    m, d = terms.shape
    acc = np.zeros((m, 8))
    for b in range(0, d, 8):
        start = b if d < 8 or b + 8 <= d else d - 8
        block = np.zeros((m, 8))
        block[:, b - start : min(8, d - start)] = terms[:, b : start + 8]
        acc += block
    for half in (4, 2, 1):
        acc = acc[:, :half] + acc[:, half : 2 * half]
    return acc[:, 0]


def _sphere(x: _Array) -> _Array:
    return _sum(x * x)


def _rastrigin(x: _Array) -> _Array:
    """Return the sum of x^2 + 10 (1 - cos 2 pi x), which is x^2 + 20 sin^2 pi x."""
    sine = _sinpi(x - np.rint(x))
    return _sum(x * x + 20 * (sine * sine))


def _rosenbrock(x: _Array) -> _Array:
    valley, slope = x[:, 1:] - x[:, :-1] * x[:, :-1], 1 - x[:, :-1]
    return _sum(100 * (valley * valley) + slope * slope)


def _ackley(x: _Array) -> _Array:
    """Return 20 (1 - exp(-0.2 rms x)) + e (1 - exp(mean cos 2 pi x - 1)): no digits cancel."""
    sine = _sinpi(x - np.rint(x))
    d = x.shape[1]
    depth = _exp(-0.2 * np.sqrt(_sum(x * x) / d))
    return 20 * (1 - depth) + math.e * (1 - _exp(-2 * (_sum(sine * sine) / d)))


_OBJECTIVES = (_sphere, _rastrigin, _rosenbrock, _ackley)


def evaluate(objective: int, x: _Array, f: _Array) -> None:
    """Evaluate each row."""
    f[:] = _OBJECTIVES[objective](x)


def _note_best(best: _Best, x: _Array, f: _Array) -> bool:
    """Keep the best row ever told; return whether the target is reached."""
    row, value, target = best
    i = int(f.argmin())
    if f[i] < value[0]:
        row[:], value[0] = x[i], f[i]
    return bool(value[0] <= target)


def take_better(x: _Array, f: _Array, other: _Array, other_f: _Array, strict: bool) -> None:
    """Replace rows by others that are better, or not worse unless `strict`."""
    taken = other_f < f if strict else other_f <= f
    np.copyto(x, other, where=taken[:, None])
    np.copyto(f, other_f, where=taken)


# ---- differential evolution --------------------------------------------------------------------


def _without(drawn: NDArray[np.int64], *excluded: NDArray[np.int64]) -> NDArray[np.int64]:
    """Step over members that must not be drawn, the smallest first."""
    for skipped in np.sort(np.stack(excluded), axis=0):
        drawn = drawn + (drawn >= skipped)
    return drawn


def de_trials(
    lower: _Array,
    upper: _Array,
    mutation: int,
    archive: _Array,
    guides: _Array,
    weight: _Array,
    rate: _Array,
    key: int,
    x: _Array,
    trial: _Array,
) -> None:
    """Make a trial vector for each member."""
    (n, d), others = x.shape, x.shape[0] + len(archive)
    me = np.arange(n)
    s = streams(key, me)
    t = _second(s)
    column = below(t, 0, d)
    plus = _without(below(t, 1, n - 1), me)
    if mutation == _RAND_1:
        base = _without(below(t, 2, n - 2), me, plus)
        minus = _without(below(t, 3, others - 3), me, plus, base)
    else:
        base = guides[below(t, 2, len(guides))].astype(np.int64)
        minus = _without(below(t, 3, others - 2), me, plus)
    pool = np.concatenate([x, archive]) if len(archive) else x
    f = weight[:, None]
    start = x + f * (x[base] - x) if mutation == _CURRENT_TO_BEST_1 else x[base]
    mutant = start + f * (x[plus] - pool[minus])
    mutant = np.where(mutant < lower, (x + lower) * 0.5, mutant)
    mutant = np.where(mutant > upper, (x + upper) * 0.5, mutant)
    crossed = (_uniforms(s, d) < rate[:, None]) | (np.arange(d) == column[:, None])
    trial[:] = np.where(crossed, mutant, x)


def de_run(
    lower: _Array,
    upper: _Array,
    mutation: int,
    weight: _Array,
    rate: _Array,
    objective: int,
    key: int,
    generation: int,
    generations: int,
    x: _Array,
    f: _Array,
    trial: _Array,
    trial_f: _Array,
    best: _Best,
) -> int:
    """Run generations on an objective of `evaluate`, until the target; return how many."""
    archive = np.empty((0, x.shape[1]))
    for g in range(generation, generation + generations):
        guides = np.array([f.argmin()], np.uint32)
        now = generation_key(key, g)
        de_trials(lower, upper, mutation, archive, guides, weight, rate, now, x, trial)
        evaluate(objective, trial, trial_f)
        take_better(x, f, trial, trial_f, False)
        if _note_best(best, trial, trial_f):
            return g + 1 - generation
    return generations


# ---- particle swarm ----------------------------------------------------------------------------


def _keep_inside(
    bounds: int, low: _Array, high: _Array, x: _Array, v: _Array
) -> tuple[_Array, _Array]:
    outside = (x < low) | (x > high)
    if bounds == _PERIODIC:
        span = high - low
        turns = (x - low) / span
        x = np.where(outside, x - np.floor(turns) * span, x)
    elif bounds == _REFLECT:
        x = np.where(x < low, low + (low - x), x)
        x = np.where(x > high, high - (x - high), x)
        v = np.where(outside, -v, v)
    else:
        v = np.where(outside, 0.0, v)
    return np.minimum(np.maximum(x, low), high), v


def swarm_move(
    lower: _Array,
    upper: _Array,
    neighbours: _Array,
    fastest: _Array,
    coefficients: tuple[float, float, float],
    bounds: int,
    key: int,
    best_x: _Array,
    best_f: _Array,
    x: _Array,
    v: _Array,
    guide: _Array,
) -> None:
    """Move particles and their velocities in place."""
    (n, d), (inertia, own, social) = x.shape, coefficients
    if neighbours.shape[1] == 0:
        guide[:] = best_f.argmin()
    else:
        guide[:] = neighbours[np.arange(n), best_f[neighbours].argmin(axis=1)]
    s = streams(key, np.arange(n))
    velocity = (
        inertia * v
        + own * _uniforms(s, d) * (best_x - x)
        + social * _uniforms(_second(s), d) * (best_x[guide] - x)
    )
    velocity = np.minimum(np.maximum(velocity, -fastest), fastest)
    x[:], v[:] = _keep_inside(bounds, lower, upper, x + velocity, velocity)


def swarm_run(
    lower: _Array,
    upper: _Array,
    neighbours: _Array,
    fastest: _Array,
    coefficients: tuple[float, float, float],
    bounds: int,
    objective: int,
    key: int,
    generation: int,
    generations: int,
    x: _Array,
    v: _Array,
    best_x: _Array,
    best_f: _Array,
    f: _Array,
    guide: _Array,
    best: _Best,
) -> int:
    """Run generations on an objective of `evaluate`, until the target; return how many."""
    box = (lower, upper, neighbours, fastest, coefficients, bounds)
    for g in range(generation, generation + generations):
        evaluate(objective, x, f)
        take_better(best_x, best_f, x, f, True)
        ends = _note_best(best, x, f)
        swarm_move(*box, generation_key(key, g), best_x, best_f, x, v, guide)
        if ends:
            return g + 1 - generation
    return generations


# ---- genetic algorithm -------------------------------------------------------------------------


def ga_parents(tournament: int, key: int, f: _Array, parents: _Array) -> None:
    """Choose parents by tournaments."""
    s = streams(key, np.array([1 << 40], np.uint64))
    draws = words(s, np.arange(len(parents) * tournament)).astype(np.uint64)
    rivals = (draws * np.uint64(len(f)) >> np.uint64(32)).reshape(len(parents), tournament)
    rivals = rivals.astype(np.int64)
    parents[:] = rivals[np.arange(len(parents)), f[rivals].argmin(axis=1)]


def _power(u: _Array, exponent: _Array | np.float32) -> _Array:
    """Return u to a power, float32, for u in [2^-30, 1]."""
    bits = u.view(np.uint32)
    k = (bits + np.uint32(0x004AFB0D)) >> np.uint32(23)
    m = (bits - ((k - np.uint32(127)) << np.uint32(23))).view(np.float32)
    one = np.float32(1)
    s = (m - one) / (m + one)
    log = (k.astype(np.int32) - 127).astype(np.float32) + s * _polynomial(_LOG2_SERIES, s * s)
    y = exponent * log
    shifted = y + np.float32(1.5 * 2**23)
    scale = (shifted.view(np.uint32) + np.uint32(127)) << np.uint32(23)
    rest = y - (shifted - np.float32(1.5 * 2**23))
    power: _Array = _polynomial(_EXP2_SERIES, rest) * scale.view(np.float32)
    return power


def _polynomial(series: NDArray[np.float32], x: _Array) -> _Array:
    p = np.full_like(x, series[-1])
    for coefficient in series[-2::-1]:
        p = p * x + coefficient
    return p


def _low_uniforms(word: NDArray[np.uint32]) -> _Array:
    return ((word & 0x1FFFFFFF) + 1).astype(np.float32) * np.float32(2.0**-29)


def _signed(x: _Array, word: NDArray[np.uint32]) -> _Array:
    """Return x, negative where the first bit of a word is set, as float64."""
    return np.where(word >> np.uint32(31) == 1, -x, x).astype(np.float64)


def _cross(
    kind: int, index: float, word: NDArray[np.uint32], p: _Array, q: _Array
) -> tuple[_Array, _Array]:
    u, middle = _low_uniforms(word), 0.5 * (p + q)
    if kind == 0:
        exponent = np.float32(1 / (index + 1))
        inwards = (word >> np.uint32(29)) & 1 == 1
        half = _signed(_power(u, np.where(inwards, exponent, -exponent)), word) * (0.5 * (p - q))
    else:
        half = (2 * u.astype(np.float64) - 1) * ((0.5 + index) * (p - q))
    crossed = (word >> np.uint32(30)) & 1 == 1
    return np.where(crossed, middle + half, p), np.where(crossed, middle - half, q)


def _steps(mutation: _Operator, s: _Streams, count: int) -> _Array:
    """Return by how much of its range each of so many mutated numbers moves, for each group."""
    kind, _, index = mutation
    if kind == 0:
        word = words(s, np.arange(count))
        size = 1 - _power(_low_uniforms(word), np.float32(1 / (index + 1)))
        return _signed(size, word)
    return _normal_pairs(s, _second(s), count)[0] * index


def _mutate(mutation: _Operator, key: int, lower: _Array, upper: _Array, child: _Array) -> None:
    """Mutate some numbers in place, found by the geometrically distributed gaps between them."""
    (m, d), rate, each = child.shape, mutation[1], 2 * _GROUP
    if rate == 0:
        return
    scale = 1 / math.log1p(-rate) if rate < 1 else -0.0
    s = streams(key, (1 << 41) + np.arange(-(-m // each)))
    t = _second(s)
    for group in range(len(s)):
        own = slice(group, group + 1)
        rows = child[group * each : (group + 1) * each]
        count = 16 + int(rows.size * rate)
        places = np.zeros(0, np.int64)
        while len(places) == 0 or places[-1] < rows.size:
            count *= 2
            gaps = np.minimum(_log(1 - _uniforms(s[own], count))[0] * scale, 2.0**52)
            places = np.cumsum(gaps.astype(np.int64) + 1) - 1
        places = places[places < rows.size]
        low, high = lower[places % d], upper[places % d]
        steps = _steps(mutation, t[own], count)[0, : len(places)]
        moved = rows.ravel()[places] + steps * (high - low)
        rows.reshape(-1)[places] = np.minimum(np.maximum(moved, low), high)


def ga_children(
    lower: _Array,
    upper: _Array,
    crossover: _Operator,
    mutation: _Operator,
    key: int,
    x: _Array,
    parents: _Array,
    child: _Array,
) -> None:
    """Make children of pairs of parents."""
    m, d = child.shape
    kind, rate, index = crossover
    firsts = np.arange(0, m, 2)
    p = x[parents[firsts]]
    q = x[parents[np.minimum(firsts + 1, m - 1)]]
    s = streams(key, firsts)
    crossing = words(_second(s), np.array([0])) < rate * 2.0**32
    pair = _cross(kind, index, words(s, np.arange(d)), p, q)
    one, two = (np.minimum(np.maximum(each, lower), upper) for each in pair)
    child[0::2] = np.where(crossing, one, p)
    child[1::2] = np.where(crossing, two, q)[: m // 2]
    _mutate(mutation, key, lower, upper, child)


def ga_survive(
    elite: int,
    truncation: bool,
    x: _Array,
    f: _Array,
    child: _Array,
    child_f: _Array,
    places: _Array,
    values: _Array,
) -> None:
    """Replace members that do not live on by children, in place."""
    n = len(x)
    rivals = np.concatenate([f, child_f]) if truncation else f
    kept = np.sort(np.argsort(rivals, kind="stable")[: n if truncation else elite])
    gaps = np.setdiff1d(np.arange(n), kept)
    lives = kept[kept >= n] - n if truncation else np.arange(len(gaps))
    x[gaps] = child[lives]
    f[gaps] = child_f[lives]


def ga_run(
    lower: _Array,
    upper: _Array,
    elite: int,
    tournament: int,
    truncation: bool,
    crossover: _Operator,
    mutation: _Operator,
    objective: int,
    key: int,
    generation: int,
    generations: int,
    x: _Array,
    f: _Array,
    child: _Array,
    child_f: _Array,
    parents: _Array,
    places: _Array,
    values: _Array,
    best: _Best,
) -> int:
    """Run generations on an objective of `evaluate`, until the target; return how many."""
    for g in range(generation, generation + generations):
        now = generation_key(key, g)
        ga_parents(tournament, now, f, parents)
        ga_children(lower, upper, crossover, mutation, now, x, parents, child)
        evaluate(objective, child, child_f)
        ga_survive(elite, truncation, x, f, child, child_f, places, values)
        if _note_best(best, child, child_f):
            return g + 1 - generation
    return generations
