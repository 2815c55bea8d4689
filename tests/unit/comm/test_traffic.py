from paropt_hpc.comm import OperationTraffic, Traffic


def test_counts_by_operation_and_in_total():
    traffic = Traffic()
    traffic.record("allreduce", 10, 20, 0.5)
    traffic.record("allreduce", 1, 2, 0.25)
    traffic.record("barrier", 0, 0, 0.125)
    assert traffic["allreduce"] == OperationTraffic(2, 11, 22, 0.75)
    assert (traffic.calls, traffic.bytes_sent, traffic.bytes_received) == (3, 11, 22)
    assert traffic.seconds == 0.875


def test_asking_does_not_count():
    traffic = Traffic()
    assert traffic["broadcast"] == OperationTraffic()
    assert not traffic.operations


def test_reset():
    traffic = Traffic()
    traffic.record("allreduce", 10, 20, 0.5)
    traffic.reset()
    assert traffic == Traffic()
