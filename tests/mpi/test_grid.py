"""Process grids: each axis joins exactly the ranks that differ in it alone."""

import numpy as np
import pytest

from paropt_hpc.comm import Communicator, GridShape, ProcessGrid
from paropt_hpc.errors import ConfigError

pytestmark = pytest.mark.mpi

SHAPES = {1: [(1, 1, 1)], 2: [(2, 1, 1), (1, 2, 1), (1, 1, 2)]}
SHAPES[3] = [(3, 1, 1), (1, 1, 3)]
SHAPES[4] = [(4, 1, 1), (2, 2, 1), (2, 1, 2), (1, 2, 2), (1, 1, 4)]


def test_axes_join_the_right_ranks(world, everywhere):
    faults = []
    with Communicator(world) as comm:
        places = np.arange(comm.size)
        for shape in SHAPES.get(comm.size, []):
            with ProcessGrid(comm, *shape) as grid:
                cube = places.reshape(shape)
                if cube[grid.place] != comm.rank or grid.rank_of(grid.place) != comm.rank:
                    faults.append(f"{shape}: stands at {grid.place}")
                for axis, joined in enumerate((grid.data, grid.stage, grid.tensor)):
                    index = list(grid.place)
                    index[axis] = slice(None)
                    want = cube[tuple(index)]
                    got = joined.gather_scalars(comm.rank)
                    if got.tolist() != want.tolist() or joined.rank != grid.place[axis]:
                        faults.append(f"{shape} axis {axis}: joins {got}")
    everywhere(faults)


def test_keeps_the_settings(world):
    with Communicator(world, backend="reference", max_count=7, segment_bytes=64) as comm:
        with ProcessGrid(comm) as grid:
            axis = grid.data
            transport = axis._transport
            assert (transport.options.max_count, transport.options.segment_bytes) == (7, 64)
            assert transport.module is None
            assert axis.size == comm.size
        with pytest.raises(ValueError, match="freed"):
            axis.barrier()
        comm.barrier()


def test_refuses_a_shape_that_does_not_fit_on_all_ranks(world):
    with Communicator(world) as comm:
        with pytest.raises(ConfigError, match="must multiply to"):
            ProcessGrid(comm, comm.size + 1)
        comm.barrier()


def test_split(world, everywhere):
    with Communicator(world) as comm:
        with comm.split(comm.rank % 2, -comm.rank) as half:
            got = half.gather_scalars(comm.rank).tolist()
        with pytest.raises(ValueError, match="color must be at least 0, got -1"):
            comm.split(-1)
    want = [r for r in range(world.size) if r % 2 == world.rank % 2][::-1]
    everywhere([] if got == want else [f"got {got}"])


def test_place_and_rank_are_inverse(world):
    with Communicator(world) as comm, ProcessGrid(comm) as grid:
        for rank in range(comm.size):
            assert grid.rank_of(grid.place_of(rank)) == rank
        assert grid.place_of(comm.size - 1) == GridShape(comm.size - 1, 0, 0)
