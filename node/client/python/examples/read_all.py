"""Reads a whole table into a pyarrow.Table, several times, and prints the rate of each time.

``python read_all.py MASTERS TABLE TIMES``. The same in Rust: ``node/client/examples/read_all.rs``.
"""

import sys
import time

import nyala

masters, table, times = sys.argv[1:]
opened = nyala.connect(masters).table(table)
for _ in range(int(times)):
    start = time.monotonic()
    rows = opened.scan().to_arrow().num_rows
    print(f"{rows} rows, {rows / (time.monotonic() - start):.0f} rows/s", flush=True)
