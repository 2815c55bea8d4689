"""A stand-in for a simulation: a sample cools, and the program prints how badly it fits.

    python decay.py RATE START

The measured temperatures are those of rate 0.35 and a start at 80 degrees, in surroundings of
20 degrees. Prints the sum of squared differences, in kelvin squared.
"""

import math
import sys

TIMES = range(0, 20, 2)  # minutes
MEASURED = [80.0, 49.795, 34.796, 27.347, 23.649, 21.812, 20.9, 20.447, 20.222, 20.11]


def main() -> None:
    """Simulate, compare, print."""
    rate, start = map(float, sys.argv[1:])
    simulated = [20 + (start - 20) * math.exp(-rate * time) for time in TIMES]
    print("sum of squares:", sum((s - m) ** 2 for s, m in zip(simulated, MEASURED, strict=True)))


if __name__ == "__main__":
    main()
