"""Drivers that people use, against ``nyala-sql serve`` with passwords and TLS.

Variables: ``NYALA_SQL``, the program; ``NYALA``, the one that runs its cluster.
"""

import os
import re
import subprocess
from typing import NamedTuple

import adbc_driver_flightsql.dbapi as adbc
import psycopg
import pyarrow
import pytest
import trustme
from cryptography.hazmat.primitives import serialization

ROWS = 1000
ROOTS = "adbc.flight.sql.client_option.tls_root_certs"


class Served(NamedTuple):
    postgres: str
    flight: str
    ca_file: str
    ca: str


def certificates(folder):
    """Writes a CA, and a certificate with its key as PKCS#8, which only the owner may read."""
    ca = trustme.CA()
    issued = ca.issue_cert("localhost", "127.0.0.1")
    key = serialization.load_pem_private_key(issued.private_key_pem.bytes(), password=None)
    pkcs8 = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    ca.cert_pem.write_to_path(str(folder / "ca.pem"))
    (folder / "cert.pem").write_bytes(b"".join(pem.bytes() for pem in issued.cert_chain_pems))
    secret(folder / "key.pem", pkcs8)


def secret(path, data):
    path.touch(mode=0o600)
    path.write_bytes(data)


def address(line):
    return re.search(r"127\.0\.0\.1:\d+", line).group()


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    certificates(folder)
    secret(folder / "passwords", b"ann:secret\n")
    command = [
        os.environ["NYALA_SQL"],
        "serve",
        "--listen=127.0.0.1:0",
        "--flight-listen=127.0.0.1:0",
        f"--dir={folder / 'data'}",
        f"--password-file={folder / 'passwords'}",
        f"--tls-cert-file={folder / 'cert.pem'}",
        f"--tls-key-file={folder / 'key.pem'}",
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        found = {}
        while len(found) < 2:
            line = process.stdout.readline()
            assert line, "the server ended"
            for protocol in ("Postgres protocol", "Arrow Flight SQL"):
                if f"serving {protocol}" in line or f"serving the {protocol}" in line:
                    found[protocol] = address(line)
        ca_file = folder / "ca.pem"
        yield Served(
            found["Postgres protocol"], found["Arrow Flight SQL"], str(ca_file), ca_file.read_text()
        )
    finally:
        process.terminate()
        process.wait()


def flight(served, scheme="grpc+tls", **options):
    options = {"username": "ann", "password": "secret", ROOTS: served.ca} | options
    options = {name: value for name, value in options.items() if value is not None}
    return adbc.connect(f"{scheme}://{served.flight}", db_kwargs=options, autocommit=True)


def postgres(served, **options):
    host, port = served.postgres.split(":")
    options = {"user": "ann", "password": "secret", "sslmode": "verify-full", "sslrootcert": served.ca_file} | options
    return psycopg.connect(host=host, port=port, dbname="default", autocommit=True, **options)


def test_rows_of_one_driver_are_read_by_the_other(served):
    with postgres(served) as connection:
        connection.execute("CREATE TABLE t (k BIGINT PRIMARY KEY, v TEXT) PARTITION BY HASH (k) PARTITIONS 2")
        with connection.cursor() as cursor:
            cursor.executemany("INSERT INTO t VALUES (%s, %s)", [(k, f"row {k}") for k in range(10)])
    with flight(served) as connection, connection.cursor() as cursor:
        more = pyarrow.table({"k": pyarrow.array(range(10, ROWS), pyarrow.int64()), "v": ["more"] * (ROWS - 10)})
        cursor.adbc_ingest("t", more, mode="append")
        cursor.execute("SELECT k, v FROM t WHERE k < ? ORDER BY k", [11])
        rows = cursor.fetch_arrow_table().to_pylist()
    assert rows == [{"k": k, "v": f"row {k}"} for k in range(10)] + [{"k": 10, "v": "more"}]
    with postgres(served) as connection:
        assert connection.execute("SELECT count(*), sum(k) FROM t").fetchone() == (ROWS, ROWS * (ROWS - 1) // 2)


@pytest.mark.parametrize(
    "options",
    [{"password": "wrong"}, {"username": "bob"}, {"username": None, "password": None}, {ROOTS: None}],
    ids=["a wrong password", "another name", "no name", "no certificate authority"],
)
def test_flight_refuses(served, options):
    with pytest.raises(adbc.Error):
        with flight(served, **options) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT 1")
            cursor.fetchall()


def test_flight_refuses_plain_text(served):
    with pytest.raises(adbc.Error):
        with flight(served, scheme="grpc") as connection, connection.cursor() as cursor:
            cursor.execute("SELECT 1")
            cursor.fetchall()


@pytest.mark.parametrize(
    "options",
    [{"password": "wrong"}, {"user": "bob"}, {"sslmode": "disable", "sslrootcert": ""}],
    ids=["a wrong password", "another name", "plain text"],
)
def test_postgres_refuses(served, options):
    with pytest.raises(psycopg.OperationalError):
        postgres(served, **options).close()
