"""Definitions of tables."""

import nyala
import pytest


def test_a_table_is_described_as_it_was_created(client, name):
    table = client.create_table(
        name,
        ["host string", "at timestamp", "price decimal(15,2) null default=1.5"],
        key=["host", "at"],
        hash=["host:2"],
        comment="prices",
        owner="ann",
    )
    assert (table.name, table.comment, table.owner, table.num_replicas) == (name, "prices", "ann", 1)
    assert table.key == ["host", "at"]
    assert table.columns == [
        "host STRING NOT NULL",
        "at UNIXTIME_MICROS NOT NULL",
        "price DECIMAL(15, 2) NULLABLE",
    ]
    assert name in client.tables()
    client.drop_table(name)
    assert name not in client.tables()


def test_columns_and_ranges_are_altered(client, name):
    table = client.create_table(name, ["k int32", "a string null"], range=["k"], ranges=["0..10"])
    table.insert({"k": 1, "a": "x"})
    with pytest.raises(nyala.NyalaError):
        table.insert({"k": 10})
    table = client.alter_table(name, add=["b int64 default=7"], rename=[("a", "c")], add_ranges=["10..20"])
    table.insert({"k": 10, "c": "y", "b": 8})
    assert sorted(table.scan().rows(), key=lambda row: row["k"]) == [
        {"k": 1, "c": "x", "b": 7},
        {"k": 10, "c": "y", "b": 8},
    ]
    renamed = client.alter_table(name, drop=["c"], drop_ranges=["0..10"], new_name=name + "_new")
    assert renamed.scan().rows() == [{"k": 10, "b": 8}]


@pytest.mark.parametrize(
    ("act", "error", "text"),
    [
        (lambda client: client.table("none"), nyala.NotFound, "none"),
        (lambda client: client.create_table("x", ["k int65"]), nyala.InvalidRequest, "there are"),
        (lambda client: client.create_table("x", ["k int8"], key=["v"]), nyala.InvalidRequest, "come first"),
        (lambda client: client.create_table("x", ["k int8"], ranges=["0..1"]), ValueError, "needs range"),
        (lambda client: client.alter_table("none", drop=["a"]), nyala.NotFound, "none"),
    ],
)
def test_errors_say_what_is_wrong(client, act, error, text):
    with pytest.raises(error, match=text):
        act(client)


def test_no_cluster_is_an_error_and_not_a_hang():
    with pytest.raises(nyala.NyalaError):
        nyala.connect("127.0.0.1:1", timeout=0.2)
    with pytest.raises(ValueError, match="timeout"):
        nyala.connect("127.0.0.1:1", timeout=-1)
