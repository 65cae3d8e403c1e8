"""Client of nyala and Apache Kudu clusters.

>>> import nyala
>>> client = nyala.connect("127.0.0.1:7051")
>>> table = client.create_table("metrics", ["host string", "at timestamp", "value double null"],
...                             key=["host", "at"], hash=["host:4"])
>>> table.insert([{"host": "a", "at": 0, "value": 1.5}])
WriteResult(written=1, ignored=0)
>>> table.scan(filter=nyala.col("value") >= 1.0).to_arrow()
"""

from ._nyala import (
    AlreadyPresent,
    Client,
    Column,
    CorruptData,
    DeadlineExceeded,
    Filter,
    InvalidRequest,
    NotFound,
    NyalaError,
    Rows,
    RowsRefused,
    Scan,
    SchemaMismatch,
    SecurityError,
    Table,
    Unavailable,
    Unsupported,
    WriteResult,
    col,
    connect,
)
from .cluster import Cluster, up

__all__ = [
    "AlreadyPresent",
    "Client",
    "Cluster",
    "Column",
    "CorruptData",
    "DeadlineExceeded",
    "Filter",
    "InvalidRequest",
    "NotFound",
    "NyalaError",
    "Rows",
    "RowsRefused",
    "Scan",
    "SchemaMismatch",
    "SecurityError",
    "Table",
    "Unavailable",
    "Unsupported",
    "WriteResult",
    "col",
    "connect",
    "up",
]
