"""Random streams that are named, not shared: equal on every machine, never global."""

import hashlib
import operator

import numpy as np

__all__ = ["philox"]


def philox(seed: int, purpose: str, *ids: int) -> np.random.Generator:
    """Return the generator of the stream named by (seed, purpose, ids).

    Streams of different names are independent; the same name gives the same stream on every
    platform, in every process, in any order of calls.

    Parameters
    ----------
    seed : int
        The user's seed, of any size and sign.
    purpose : str
        What the numbers are for, e.g. ``"shuffle"``.
    ids : int
        What tells streams of one purpose apart, e.g. rank and epoch.

    Returns
    -------
    numpy.random.Generator
        On Philox4x64 (J. K. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011),
        its 128-bit key being the BLAKE2b digest of the name.
    """
    if not isinstance(purpose, str):
        raise TypeError(f"purpose must be a string, got {type(purpose).__name__}")
    name = (operator.index(seed), purpose, *map(operator.index, ids))
    # repr of integers and an escaped string is unambiguous and the same everywhere.
    digest = hashlib.blake2b(ascii(name).encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))
