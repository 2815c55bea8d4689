import pytest
from hypothesis import HealthCheck, settings

from paropt_hpc.kernels import backend

# The kernels are pure, so a fixture that only selects one may be shared by the examples of a test.
settings.register_profile(
    "paropt",
    deadline=None,
    max_examples=40,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
settings.load_profile("paropt")


@pytest.fixture(autouse=True)
def environment_read_anew():
    """Let every test choose its PAROPT_BACKEND."""
    backend.implementation.cache_clear()
    yield
    backend.implementation.cache_clear()


native = backend.native_module()
# Threads split the work alike by every instruction set, so that one of them tries two.
NATIVE_PATHS = (
    [] if native is None else [*(f"{isa}-1" for isa in native.isas()), f"{native.isa()}-2"]
)


@pytest.fixture(params=["reference", *NATIVE_PATHS])
def path(request, monkeypatch):
    """Run the test by each implementation, instruction set and number of threads."""
    if request.param == "reference":
        monkeypatch.setenv("PAROPT_BACKEND", "reference")
        yield request.param
        return
    monkeypatch.setenv("PAROPT_BACKEND", "native")
    before = native.isa(), native.openmp_threads(), native.entries_per_thread()
    isa, threads = request.param.split("-")
    native.set_isa(isa)
    native.set_openmp_threads(int(threads))
    native.set_entries_per_thread(2**17)  # two threads for short arrays as well
    yield request.param
    native.set_isa(before[0])
    native.set_openmp_threads(before[1])
    native.set_entries_per_thread(before[2])
