"""Rows written from Python values and from Arrow data, and read again."""

import datetime
import decimal

import nyala
import pandas
import polars
import pyarrow
import pytest

UTC = datetime.timezone.utc
TYPES = [
    ("int8", -128),
    ("int16", 32767),
    ("int32", -(2**31)),
    ("int64", 2**63 - 1),
    ("bool", True),
    ("float", 0.5),
    ("double", 0.1),
    ("string", "Grüße \0 'quoted'"),
    ("varchar(3)", "äöü"),
    ("binary", b"\x00\xff"),
    ("timestamp", datetime.datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)),
    ("date", datetime.date(1, 1, 1)),
    ("decimal(5,2)", decimal.Decimal("-999.99")),
    ("decimal(38,0)", decimal.Decimal(10**38 - 1)),
]


def test_every_type_is_read_as_it_was_written(client, name):
    columns = [f"c{i} {ty} null" for i, (ty, _) in enumerate(TYPES)]
    table = client.create_table(name, ["k int64", *columns])
    full = {"k": 1, **{f"c{i}": value for i, (_, value) in enumerate(TYPES)}}
    empty = {"k": 2, **{f"c{i}": None for i in range(len(TYPES))}}
    assert repr(table.insert([full, empty])) == "WriteResult(written=2, ignored=0)"
    assert list(table.scan(your_writes=True)) == [full, empty]
    # Through Arrow and back into another table.
    copy = client.create_table(name + "_copy", ["k int64", *columns])
    assert copy.insert(table.scan()).written == 2
    assert copy.scan().to_arrow() == table.scan().to_arrow()


def test_rows_of_a_failed_call_are_not_written_over_later_ones(client, name):
    table = client.create_table(name, ["k int64", "v string null"])
    with pytest.raises(nyala.SchemaMismatch, match="int does not fit STRING"):
        table.upsert([{"k": 1, "v": "old"}, {"k": 2, "v": 5}])
    table.upsert({"k": 1, "v": "new"})
    assert list(table.scan(your_writes=True)) == [{"k": 1, "v": "new"}]


@pytest.mark.parametrize(
    ("ty", "value", "text"),
    [
        ("int8", 128, "128 does not fit INT8"),
        ("int8", True, "bool does not fit INT8"),
        ("int8", 1.0, "float does not fit INT8"),
        ("bool", 1, "int does not fit BOOL"),
        ("double", "1", "str does not fit DOUBLE"),
        ("double", 2**53 + 1, "9007199254740993 does not fit DOUBLE"),
        ("float", 2**24 + 1, "16777217 does not fit FLOAT"),
        ("float", 1e39, r"1e\+39 does not fit FLOAT"),
        ("string", b"x", "bytes does not fit STRING"),
        ("varchar(2)", "abc", "3 characters"),
        ("binary", "x", "str does not fit BINARY"),
        ("timestamp", datetime.datetime(2026, 1, 1), "without a time zone"),
        (
            "timestamp",
            pandas.Timestamp("2026-01-01T00:00:00.000001001Z"),
            r'column "v": 2026-01-01 00:00:00\.000001001\+00:00 has nanoseconds and does not fit UNIXTIME_MICROS',
        ),
        ("date", datetime.datetime(2026, 1, 1, tzinfo=UTC), "datetime does not fit DATE"),
        ("decimal(3,1)", 0.1, "float does not fit DECIMAL"),
        ("decimal(3,1)", decimal.Decimal("0.01"), "is not a DECIMAL"),
    ],
)
def test_values_that_do_not_fit_are_refused(client, name, ty, value, text):
    table = client.create_table(name, ["k int64", f"v {ty} null"])
    with pytest.raises(nyala.SchemaMismatch, match=text):
        table.insert({"k": 1, "v": value})
    with pytest.raises(nyala.SchemaMismatch, match=text):
        table.scan(filter=nyala.col("v") == value)
    assert table.scan().count() == 0


@pytest.mark.parametrize(
    ("ty", "values", "text"),
    [
        ("int64", [1.0, 2.5], "2.5 does not fit INT64"),
        ("int8", [1, 128], "128"),
        ("float", [1e300], "1e300 does not fit FLOAT"),
        ("decimal(3,1)", [0.5], "float does not fit DECIMAL"),
        ("decimal(3,1)", [decimal.Decimal("0.25")], "0.25 does not fit DECIMAL"),
        ("timestamp", [datetime.datetime(2026, 1, 1)], "without a time zone"),
        ("timestamp", [datetime.date(2026, 1, 1)], "without a time zone"),
        ("timestamp", pandas.to_datetime([1001], utc=True), "does not fit UNIXTIME_MICROS"),
        ("date", [datetime.datetime(2026, 1, 1, 12)], "does not fit DATE"),
        ("varchar(2)", ["abc"], "3 characters"),
    ],
)
def test_arrow_values_that_would_change_are_refused(client, name, ty, values, text):
    table = client.create_table(name, ["k int64", f"v {ty} null"])
    rows = pyarrow.table({"k": range(len(values)), "v": pyarrow.array(values)})
    with pytest.raises(nyala.SchemaMismatch, match=text):
        table.insert(rows)
    assert table.scan(your_writes=True).count() == 0


@pytest.mark.parametrize(
    ("ty", "values", "stored"),
    [
        ("int64", [1.0, None], [1, None]),
        ("int64", [None, None], [None, None]),
        ("decimal(3,1)", ["0.5", "1.50"], [decimal.Decimal("0.5"), decimal.Decimal("1.5")]),
        ("timestamp", pandas.to_datetime([1000], utc=True), [datetime.datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=UTC)]),
        ("date", ["2026-01-01"], [datetime.date(2026, 1, 1)]),
        ("string", pandas.Categorical(["a", "b", "a"]), ["a", "b", "a"]),
    ],
)
def test_arrow_values_of_another_type_are_written_if_they_stay_equal(client, name, ty, values, stored):
    table = client.create_table(name, ["k int64", f"v {ty} null"])
    table.insert(pyarrow.table({"k": range(len(values)), "v": pyarrow.array(values)}))
    rows = sorted(table.scan(your_writes=True).rows(), key=lambda row: row["k"])
    assert [row["v"] for row in rows] == stored


@pytest.mark.parametrize(
    "text",
    ["2026-01-01T00:00:00.000001Z", "2026-01-01T05:30:00.000001+05:30", "2026-01-01T00:00:00.000001000Z"],
)
def test_timestamps_of_pandas_are_written_to_the_microsecond(client, name, text):
    table = client.create_table(name, ["k int64", "at timestamp"])
    table.insert({"k": 1, "at": pandas.Timestamp(text)})
    at = datetime.datetime(2026, 1, 1, microsecond=1, tzinfo=UTC)
    assert list(table.scan(your_writes=True)) == [{"k": 1, "at": at}]


def test_rows_are_inserted_updated_and_deleted(table):
    table.insert([{"k": k, "v": "new"} for k in range(4)])
    assert repr(table.insert_ignore([{"k": 3}, {"k": 4}])) == "WriteResult(written=1, ignored=1)"
    table.upsert({"k": 0, "v": "upserted"})
    table.update([{"k": 1, "v": "updated"}, {"k": 2, "v": None}])
    table.delete({"k": 3})
    rows = {row["k"]: row["v"] for row in table.scan()}
    assert rows == {0: "upserted", 1: "updated", 2: None, 4: None}


def test_refused_rows_are_named_and_the_others_written(table):
    table.insert({"k": 2})
    with pytest.raises(nyala.RowsRefused) as raised:
        table.insert([{"k": k} for k in range(4)])
    assert [row for row, _ in raised.value.rows] == [2]
    assert (raised.value.count, raised.value.written) == (1, 3)
    assert table.scan().count() == 4


@pytest.mark.parametrize("rows", ["text", [1], 7])
def test_rows_of_another_kind_are_refused(table, rows):
    with pytest.raises((ValueError, TypeError)):
        table.insert(rows)


def test_an_unknown_column_names_the_nearest(table):
    with pytest.raises(nyala.InvalidRequest, match='no column "vv"; did you mean "v"'):
        table.insert({"k": 1, "vv": "x"})


def test_frames_of_pyarrow_pandas_and_polars_are_written_and_read(table):
    table.insert(pyarrow.table({"k": [1, 2], "v": ["a", None]}))
    table.insert(pandas.DataFrame({"k": [3], "v": ["b"]}))
    table.insert(polars.DataFrame({"k": [4], "v": ["c"]}))
    expected = [(1, "a"), (2, None), (3, "b"), (4, "c")]
    assert sorted(table.scan().to_polars().rows()) == expected
    frame = table.scan().to_pandas().sort_values("k")
    assert list(frame["k"]) == [1, 2, 3, 4]
    stream = pyarrow.RecordBatchReader.from_stream(table.scan(["k"]))
    assert sorted(k for batch in stream for k in batch.column(0).to_pylist()) == [1, 2, 3, 4]
