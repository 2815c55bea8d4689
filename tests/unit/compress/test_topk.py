"""What Top-k carries from step to step."""

import numpy as np

from paropt_hpc.compress import TopK


def started(n):
    compressor = TopK(0.02, momentum=0.5)
    compressor.start(n, np.dtype(np.float32))
    return compressor


def test_a_restored_compressor_sends_the_same_bytes_without_the_old_threshold(path):
    gradients = np.random.default_rng(0).standard_normal((8, 20_000)).astype(np.float32)
    through, before = started(20_000), started(20_000)
    for gradient in gradients[:4]:
        assert through.compress(gradient).tobytes() == before.compress(gradient).tobytes()
    state = before.state_dict()
    assert set(state) == {"steps", "draws", "residual", "velocity"}

    resumed = started(20_000)
    resumed.load_state_dict(state)
    for gradient in gradients[4:]:
        assert through.compress(gradient).tobytes() == resumed.compress(gradient).tobytes()
    np.testing.assert_array_equal(through.residual, resumed.residual)
