"""Filters, snapshots, diff scans and interruption."""

import _thread
import signal
import threading
import time

import nyala
import pytest
from nyala import col


@pytest.fixture
def hundred(table):
    table.insert([{"k": k, "v": None if k % 10 == 0 else f"v{k % 3}"} for k in range(100)])
    return table


@pytest.mark.parametrize(
    ("filter", "keep"),
    [
        (col("k") < 10, lambda k, v: k < 10),
        ((col("k") >= 10) & (col("k") <= 20), lambda k, v: 10 <= k <= 20),
        ((col("k") > 90) & (col("v") == "v1"), lambda k, v: k > 90 and v == "v1"),
        (col("v").is_null(), lambda k, v: v is None),
        (col("v").is_not_null() & col("k").is_in([0, 1, 2, 200]), lambda k, v: v is not None and k <= 2),
        (col("k").is_in([]), lambda k, v: False),
        (col("k") > 2**63 - 1, lambda k, v: False),
    ],
)
def test_filters_select_rows(hundred, filter, keep):
    rows = [(k, None if k % 10 == 0 else f"v{k % 3}") for k in range(100)]
    read = sorted((row["k"], row["v"]) for row in hundred.scan(filter=filter))
    assert read == [row for row in rows if keep(*row)]
    assert hundred.scan(filter=filter).count() == len(read)


def test_projections_and_limits_narrow_a_scan(hundred):
    rows = hundred.scan(["v"], limit=7).rows()
    assert len(rows) == 7 and all(list(row) == ["v"] for row in rows)


def test_filters_do_not_lose_conditions_in_silence(hundred):
    with pytest.raises(TypeError, match="no truth value"):
        hundred.scan(filter=0 < col("k") < 3)
    with pytest.raises(ValueError, match="cannot evaluate !="):
        col("k") != 3
    with pytest.raises(ValueError, match="cannot evaluate |"):
        (col("k") == 3) | (col("k") == 4)
    with pytest.raises(nyala.SchemaMismatch, match="is_null"):
        hundred.scan(filter=col("v") == None)  # noqa: E711
    with pytest.raises(nyala.InvalidRequest, match="did you mean"):
        hundred.scan(filter=col("kk") == 1)


def test_contradictory_options_are_refused(table):
    with pytest.raises(ValueError, match="snapshot"):
        table.scan(your_writes=True, snapshot=1)
    with pytest.raises(nyala.InvalidRequest, match="diff scan"):
        table.scan(diff_from=1)
    with pytest.raises(nyala.NotFound, match="no column"):
        table.scan(["none"])


def test_an_ordered_scan_reads_what_the_client_wrote(hundred):
    keys = [row["k"] for row in hundred.scan(your_writes=True, fault_tolerant=True)]
    assert sorted(keys) == list(range(100))


def test_a_scan_is_read_anew_by_each_use(table):
    scan = table.scan()
    assert scan.count() == 0
    table.insert({"k": 1})
    assert scan.count() == 1 and scan.rows() == list(scan) == [{"k": 1, "v": None}]


def test_threads_share_a_client(client, table):
    def insert(part):
        client.table(table.name).insert([{"k": part * 100 + k} for k in range(100)])

    threads = [threading.Thread(target=insert, args=(part,)) for part in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert table.scan().count() == 400


def test_an_interrupt_ends_a_call(cluster):
    """Ctrl-C while a call waits for a server that does not answer."""
    import socket

    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        # A shell starts what runs in the background with the signal ignored, and Python leaves it so.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        timer = threading.Timer(0.2, _thread.interrupt_main)
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            nyala.connect("127.0.0.1:%d" % silent.getsockname()[1], timeout=60)
        timer.join()
        signal.signal(signal.SIGINT, before)


def test_an_interrupted_write_ends_after_its_rows(cluster, table):
    """Ctrl-C while a call waits for its last results: its rows must not arrive after what is written next."""
    table.upsert({"k": 1, "v": "first"})
    continued = threading.Event()

    def interrupt():
        _thread.interrupt_main()
        time.sleep(0.3)
        continued.set()
        cluster._process.send_signal(signal.SIGCONT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(0.2, interrupt)
    cluster._process.send_signal(signal.SIGSTOP)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        table.upsert({"k": 1, "v": "old"})
    is_answered = continued.is_set()
    timer.join()
    signal.signal(signal.SIGINT, before)
    assert is_answered, "the call ended while its row was in flight"
    table.upsert({"k": 1, "v": "new"})
    assert list(table.scan(your_writes=True)) == [{"k": 1, "v": "new"}]


def test_the_interpreter_runs_while_a_call_waits():
    import socket

    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = "127.0.0.1:%d" % silent.getsockname()[1]
        failed = threading.Event()

        def connect():
            try:
                nyala.connect(address, timeout=0.5)
            except nyala.NyalaError:
                failed.set()

        thread = threading.Thread(target=connect)
        thread.start()
        turns = 0
        while not failed.is_set():
            turns += 1
            failed.wait(0.001)
        thread.join()
        assert turns > 10
