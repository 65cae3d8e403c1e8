import java.io.File;
import java.io.IOException;
import java.net.ServerSocket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;

/**
 * SQL of Trino on its Kudu connector: the tables of TPC-H's smallest scale are copied into the cluster, and each query
 * is answered by the copies and by Trino's own generator. Arguments: the masters, the tablet servers' web addresses,
 * the folder of the unpacked server. The server runs in a process of its own and ends with this one.
 */
public final class TrinoJob {
  private static final List<String> TABLES =
      Arrays.asList("region", "nation", "supplier", "customer", "part", "partsupp", "orders", "lineitem");

  /** `%s` is the catalog and schema. */
  private static final List<String> QUERIES = Arrays.asList(
      "SELECT returnflag, linestatus, count(*), sum(CAST(quantity AS bigint)), min(extendedprice), max(discount) "
          + "FROM %s.lineitem WHERE linenumber < 5 GROUP BY returnflag, linestatus",
      "SELECT o.orderpriority, count(*) FROM %1$s.orders o WHERE EXISTS (SELECT 1 FROM %1$s.lineitem l "
          + "WHERE l.orderkey = o.orderkey AND l.quantity > 45) GROUP BY o.orderpriority",
      "SELECT n.name, count(*) FROM %1$s.customer c JOIN %1$s.nation n ON c.nationkey = n.nationkey "
          + "JOIN %1$s.region r ON n.regionkey = r.regionkey WHERE r.name = 'ASIA' GROUP BY n.name",
      "SELECT orderkey, linenumber, partkey, comment FROM %s.lineitem WHERE orderkey BETWEEN 100 AND 200",
      "SELECT s.suppkey, max(ps.supplycost) FROM %1$s.supplier s JOIN %1$s.partsupp ps ON s.suppkey = ps.suppkey "
          + "WHERE ps.availqty IN (1, 17, 101, 3325) GROUP BY s.suppkey",
      "SELECT brand, container, count(DISTINCT partkey) FROM %s.part WHERE size > 40 AND name LIKE '%%green%%' "
          + "GROUP BY brand, container",
      "SELECT c.custkey, count(o.orderkey) FROM %1$s.customer c LEFT JOIN %1$s.orders o ON c.custkey = o.custkey "
          + "GROUP BY c.custkey ORDER BY 2 DESC, 1 LIMIT 20");

  private final Statement sql;
  private final String web;

  private TrinoJob(Statement sql, String web) {
    this.sql = sql;
    this.web = web;
  }

  public static void main(String[] args) throws Exception {
    int port;
    try (ServerSocket free = new ServerSocket(0)) {
      port = free.getLocalPort();
    }
    Process server = start(Path.of(args[2]), args[0], port);
    int code;
    try (Connection connection = connect(server, port); Statement sql = connection.createStatement()) {
      TrinoJob job = new TrinoJob(sql, args[1]);
      Checks checks = new Checks("trino");
      checks.add("the eight tables of TPC-H are copied", job::copy);
      checks.add("queries give what the generator gives", job::queries);
      checks.add("a table with keys, partitions and all types", job::types);
      checks.add("predicates are pushed down", job::predicates);
      checks.add("inserts are upserts, rows are deleted", job::changes);
      checks.add("columns are added, renamed and dropped", job::columns);
      checks.add("the table is renamed and dropped", job::drop);
      code = checks.runAll();
    } finally {
      server.destroyForcibly().waitFor();
    }
    System.exit(code);
  }

  // ---- server ----------------------------------------------------------------------------------------------------

  private static Process start(Path home, String masters, int port) throws IOException {
    Path etc = Files.createTempDirectory("trino");
    Files.createDirectories(etc.resolve("catalog"));
    Files.writeString(etc.resolve("catalog/kudu.properties"),
        "connector.name=kudu\nkudu.client.master-addresses=" + masters + "\n");
    Files.writeString(etc.resolve("catalog/tpch.properties"), "connector.name=tpch\n");
    Files.writeString(etc.resolve("config.properties"), String.join("\n", "coordinator=true",
        "node-scheduler.include-coordinator=true", "http-server.http.port=" + port,
        "discovery.uri=http://127.0.0.1:" + port, "query.max-memory=300MB", "query.max-memory-per-node=300MB",
        "query.max-total-memory-per-node=500MB", "memory.heap-headroom-per-node=200MB", ""));
    Files.writeString(etc.resolve("log.properties"), "io.trino=WARN\n");
    List<String> command = new ArrayList<>(Arrays.asList(Path.of(System.getProperty("java.home"), "bin/java").toString(),
        "-Xmx1200M", "-XX:+UseSerialGC", "-Djdk.attach.allowAttachSelf=true", "-Dnode.environment=ci",
        "-Dnode.id=ci", "-Dnode.data-dir=" + etc.resolve("data"), "-Dnode.server-log-file=" + etc.resolve("log"),
        "-Dlog.levels-file=" + etc.resolve("log.properties"), "-Dconfig=" + etc.resolve("config.properties"),
        "-Dcatalog.config-dir=" + etc.resolve("catalog"), "-Dplugin.dir=" + home.resolve("plugin")));
    command.addAll(Arrays.asList("-cp", home.resolve("lib") + "/*", "io.trino.server.TrinoServer"));
    ProcessBuilder builder = new ProcessBuilder(command).directory(etc.toFile()).redirectErrorStream(true)
        .redirectOutput(new File(etc.toFile(), "output"));
    Process process = builder.start();
    Runtime.getRuntime().addShutdownHook(new Thread(process::destroyForcibly));
    return process;
  }

  /** Connects once the server answers a query. */
  private static Connection connect(Process server, int port) throws Exception {
    long end = System.nanoTime() + 120_000_000_000L;
    while (true) {
      Connection connection = DriverManager.getConnection("jdbc:trino://127.0.0.1:" + port + "/kudu/default?user=ci");
      try (Statement probe = connection.createStatement(); ResultSet rows = probe.executeQuery("SELECT 1")) {
        rows.next();
        return connection;
      } catch (SQLException starting) {
        connection.close();
        Checks.holds("the server ended: " + starting, server.isAlive());
        Checks.holds("the server does not answer: " + starting, System.nanoTime() < end);
        Thread.sleep(200);
      }
    }
  }

  // ---- queries ---------------------------------------------------------------------------------------------------

  private List<String> query(String text) throws SQLException {
    List<String> rows = new ArrayList<>();
    try (ResultSet results = sql.executeQuery(text)) {
      int columns = results.getMetaData().getColumnCount();
      while (results.next()) {
        List<String> cells = new ArrayList<>();
        for (int i = 1; i <= columns; i++) {
          cells.add(String.valueOf(results.getObject(i)));
        }
        rows.add(String.join("|", cells));
      }
    }
    Collections.sort(rows);
    return rows;
  }

  private void run(String text) throws SQLException {
    sql.execute(text);
  }

  // ---- checks ----------------------------------------------------------------------------------------------------

  private void copy() throws SQLException {
    for (String table : TABLES) {
      // The connector has no VARCHAR(n), DATE or CHAR; it stores their texts.
      run("CREATE TABLE " + table + " AS SELECT * FROM tpch.tiny." + table);
      Checks.equal(table, query("SELECT count(*) FROM tpch.tiny." + table), query("SELECT count(*) FROM " + table));
    }
  }

  private void queries() throws SQLException {
    for (String text : QUERIES) {
      Checks.equal(text, query(String.format(text, "tpch.tiny")), query(String.format(text, "kudu.default")));
    }
  }

  private void types() throws SQLException {
    run("CREATE TABLE kinds (k bigint WITH (primary_key = true), b boolean WITH (nullable = true), "
        + "i tinyint WITH (nullable = true), r real WITH (nullable = true), d double WITH (nullable = true), "
        + "m decimal(18, 4) WITH (nullable = true), s varchar WITH (nullable = true, encoding = 'dictionary'), "
        + "t timestamp(3) WITH (nullable = true)) "
        + "WITH (partition_by_hash_columns = ARRAY['k'], partition_by_hash_buckets = 3, number_of_replicas = 3)");
    run("INSERT INTO kinds SELECT n, n % 2 = 0, CAST(n % 100 AS tinyint), CAST(n / 2.0 AS real), n / 4.0E0, "
        + "CAST(n AS decimal(18, 4)) / 100, format('row %05d', n), timestamp '2020-01-01 00:00:00' + n * interval '1' "
        + "second FROM UNNEST(sequence(0, 999)) AS numbers(n)");
    run("INSERT INTO kinds VALUES (1000, NULL, NULL, NULL, NULL, NULL, NULL, NULL)");
    Checks.equal("one row", Collections.singletonList("7|false|7|3.5|1.75|0.0700|row 00007|2020-01-01 00:00:07.0"),
        query("SELECT * FROM kinds WHERE k = 7"));
    Checks.equal("sums", Collections.singletonList("1001|1000|4995.0000"),
        query("SELECT count(*), count(s), sum(m) FROM kinds"));
  }

  private void predicates() throws Exception {
    pushed("k < 10", 10);
    pushed("k IN (1, 5, 5000)", 2);
    pushed("k BETWEEN 100 AND 119", 20);
    pushed("s = 'row 00042'", 1);
    pushed("d > 249.0E0", 3);
    pushed("m >= decimal '9.9500'", 5);
    pushed("s IS NULL", 1);
    pushed("b AND k < 100", 50);
  }

  private void pushed(String filter, long expected) throws Exception {
    long before = Checks.counter(web, "scanner_rows_returned");
    List<String> rows = query("SELECT k, s FROM kinds WHERE " + filter);
    long returned = Checks.counter(web, "scanner_rows_returned") - before;
    Checks.equal(filter, expected, (long) rows.size());
    Checks.equal(filter + ": rows that servers returned", expected, returned);
  }

  private void changes() throws SQLException {
    run("INSERT INTO kinds VALUES (7, true, tinyint '1', real '2', 3E0, decimal '4.0000', 'changed', NULL)");
    Checks.equal("changed", Collections.singletonList("7|true|1|2.0|3.0|4.0000|changed|null"),
        query("SELECT * FROM kinds WHERE k = 7"));
    run("DELETE FROM kinds WHERE k < 5");
    run("DELETE FROM kinds WHERE s = 'row 00500'");
    Checks.equal("rows", Collections.singletonList("995"), query("SELECT count(*) FROM kinds"));
  }

  private void columns() throws SQLException {
    run("ALTER TABLE kinds ADD COLUMN added varchar WITH (nullable = true)");
    run("ALTER TABLE kinds RENAME COLUMN s TO text");
    run("ALTER TABLE kinds DROP COLUMN r");
    Checks.equal("cells", Collections.singletonList("row 00009|null"),
        query("SELECT text, added FROM kinds WHERE k = 9"));
  }

  private void drop() throws SQLException {
    run("ALTER TABLE kinds RENAME TO renamed");
    Checks.equal("rows", Collections.singletonList("995"), query("SELECT count(*) FROM renamed"));
    run("DROP TABLE renamed");
    for (String table : TABLES) {
      run("DROP TABLE " + table);
    }
    Checks.equal("tables", Collections.emptyList(), query("SHOW TABLES FROM kudu.default"));
  }
}
