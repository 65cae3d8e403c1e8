"""One cluster for all tests; each table has a name of its own."""

import itertools

import nyala
import pytest

_numbers = itertools.count()


@pytest.fixture(scope="session")
def cluster():
    with nyala.up() as running:
        yield running


@pytest.fixture(scope="session")
def client(cluster):
    return cluster.connect()


@pytest.fixture
def name():
    return f"t{next(_numbers)}"


@pytest.fixture
def table(client, name):
    return client.create_table(name, ["k int64", "v string null"], hash=["k:2"])
