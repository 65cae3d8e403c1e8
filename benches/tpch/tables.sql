CREATE TABLE region (
  r_regionkey BIGINT PRIMARY KEY, r_name VARCHAR NOT NULL, r_comment VARCHAR NOT NULL
) PARTITION BY HASH (r_regionkey) PARTITIONS 2 WITH (replicas = 1);
CREATE TABLE nation (
  n_nationkey BIGINT PRIMARY KEY, n_name VARCHAR NOT NULL, n_regionkey BIGINT NOT NULL, n_comment VARCHAR NOT NULL
) PARTITION BY HASH (n_nationkey) PARTITIONS 2 WITH (replicas = 1);
CREATE TABLE supplier (
  s_suppkey BIGINT PRIMARY KEY, s_name VARCHAR NOT NULL, s_address VARCHAR NOT NULL, s_nationkey BIGINT NOT NULL,
  s_phone VARCHAR NOT NULL, s_acctbal DECIMAL(15, 2) NOT NULL, s_comment VARCHAR NOT NULL
) PARTITION BY HASH (s_suppkey) PARTITIONS 8 WITH (replicas = 1);
CREATE TABLE customer (
  c_custkey BIGINT PRIMARY KEY, c_name VARCHAR NOT NULL, c_address VARCHAR NOT NULL, c_nationkey BIGINT NOT NULL,
  c_phone VARCHAR NOT NULL, c_acctbal DECIMAL(15, 2) NOT NULL, c_mktsegment VARCHAR NOT NULL,
  c_comment VARCHAR NOT NULL
) PARTITION BY HASH (c_custkey) PARTITIONS 8 WITH (replicas = 1);
CREATE TABLE part (
  p_partkey BIGINT PRIMARY KEY, p_name VARCHAR NOT NULL, p_mfgr VARCHAR NOT NULL, p_brand VARCHAR NOT NULL,
  p_type VARCHAR NOT NULL, p_size INT NOT NULL, p_container VARCHAR NOT NULL,
  p_retailprice DECIMAL(15, 2) NOT NULL, p_comment VARCHAR NOT NULL
) PARTITION BY HASH (p_partkey) PARTITIONS 8 WITH (replicas = 1);
CREATE TABLE partsupp (
  ps_partkey BIGINT, ps_suppkey BIGINT, ps_availqty INT NOT NULL, ps_supplycost DECIMAL(15, 2) NOT NULL,
  ps_comment VARCHAR NOT NULL, PRIMARY KEY (ps_partkey, ps_suppkey)
) PARTITION BY HASH (ps_partkey) PARTITIONS 8 WITH (replicas = 1);
CREATE TABLE orders (
  o_orderkey BIGINT PRIMARY KEY, o_custkey BIGINT NOT NULL, o_orderstatus VARCHAR NOT NULL,
  o_totalprice DECIMAL(15, 2) NOT NULL, o_orderdate DATE NOT NULL, o_orderpriority VARCHAR NOT NULL,
  o_clerk VARCHAR NOT NULL, o_shippriority INT NOT NULL, o_comment VARCHAR NOT NULL
) PARTITION BY HASH (o_orderkey) PARTITIONS 8 WITH (replicas = 1);
CREATE TABLE lineitem (
  l_orderkey BIGINT, l_linenumber INT, l_partkey BIGINT NOT NULL, l_suppkey BIGINT NOT NULL,
  l_quantity DECIMAL(15, 2) NOT NULL, l_extendedprice DECIMAL(15, 2) NOT NULL, l_discount DECIMAL(15, 2) NOT NULL,
  l_tax DECIMAL(15, 2) NOT NULL, l_returnflag VARCHAR NOT NULL, l_linestatus VARCHAR NOT NULL,
  l_shipdate DATE NOT NULL, l_commitdate DATE NOT NULL, l_receiptdate DATE NOT NULL,
  l_shipinstruct VARCHAR NOT NULL, l_shipmode VARCHAR NOT NULL, l_comment VARCHAR NOT NULL,
  PRIMARY KEY (l_orderkey, l_linenumber)
) PARTITION BY HASH (l_orderkey) PARTITIONS 8 WITH (replicas = 1);
