import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.stream.Collectors;
import java.util.stream.LongStream;

import org.apache.flink.connector.kudu.table.catalog.KuduCatalog;
import org.apache.flink.table.api.EnvironmentSettings;
import org.apache.flink.table.api.TableEnvironment;
import org.apache.flink.types.Row;
import org.apache.flink.util.CloseableIterator;

/**
 * SQL of Flink in batch mode, on the catalog of its Kudu connector. Arguments: the masters, the tablet servers' web
 * addresses.
 */
public final class FlinkJob {
  private static final int ROWS = 2000;

  private final TableEnvironment flink;
  private final String web;

  private FlinkJob(TableEnvironment flink, String web) {
    this.flink = flink;
    this.web = web;
  }

  public static void main(String[] args) {
    TableEnvironment flink = TableEnvironment.create(EnvironmentSettings.inBatchMode());
    flink.getConfig().set("parallelism.default", "2");
    flink.registerCatalog("kudu", new KuduCatalog(args[0]));
    flink.useCatalog("kudu");
    FlinkJob job = new FlinkJob(flink, args[1]);
    Checks checks = new Checks("flink");
    checks.add("a table is created and listed", job::create);
    checks.add("2,000 rows of 8 columns are inserted", job::insert);
    checks.add("all rows come back", job::allRows);
    checks.add("filters are pushed down", job::filters);
    checks.add("aggregates and a join", job::aggregates);
    checks.add("an insert of a known key is an upsert", job::upsert);
    checks.add("the table is renamed and dropped", job::drop);
    System.exit(checks.runAll());
  }

  // The connector writes columns of TINYINT and SMALLINT, but cannot read them.

  // ---- rows ------------------------------------------------------------------------------------------------------

  private static String cells(long k) {
    return String.format("(%d, %d, %d, %d, %b, %s, %s, %s)", k, k % 100, k % 1000, k - 1000, k % 2 == 0, k / 4.0,
        k / 2.0, k % 10 == 9 ? "''" : String.format("'row %05d'", k));
  }

  /** Inserts rows; literals have types of their own, which Flink does not convert. An empty text stands for NULL. */
  private void insert(String rows) throws Exception {
    flink.executeSql("INSERT INTO flink_rows SELECT CAST(k AS BIGINT), n, CAST(m AS BIGINT), "
        + "i32, b, CAST(d AS DOUBLE), CAST(f AS FLOAT), NULLIF(CAST(s AS STRING), '') FROM (VALUES " + rows
        + ") AS rows_of(k, n, m, i32, b, d, f, s)").await();
  }

  private static String text(long k) {
    return String.format("%d|%d|%d|%d|%b|%s|%s|%s", k, k % 100, k % 1000, k - 1000, k % 2 == 0, k / 4.0,
        (float) (k / 2.0), k % 10 == 9 ? "null" : String.format("row %05d", k));
  }

  private List<String> query(String sql) throws Exception {
    List<String> rows = new ArrayList<>();
    try (CloseableIterator<Row> results = flink.executeSql(sql).collect()) {
      while (results.hasNext()) {
        Row row = results.next();
        List<String> cells = new ArrayList<>();
        for (int i = 0; i < row.getArity(); i++) {
          cells.add(String.valueOf(row.getField(i)));
        }
        rows.add(String.join("|", cells));
      }
    }
    Collections.sort(rows);
    return rows;
  }

  private static List<String> expected(java.util.function.LongPredicate keep) {
    return LongStream.range(0, ROWS).filter(keep).mapToObj(FlinkJob::text).sorted().collect(Collectors.toList());
  }

  // ---- checks ----------------------------------------------------------------------------------------------------

  private void create() {
    flink.executeSql("CREATE TABLE flink_rows (k BIGINT, n INT, m BIGINT, i32 INT, b BOOLEAN, d DOUBLE, "
        + "f FLOAT, s STRING, PRIMARY KEY (k) NOT ENFORCED) "
        + "WITH ('hash-columns'='k', 'hash-partitions'='3', 'replicas'='3')");
    Checks.holds("it is listed", Arrays.asList(flink.listTables()).contains("flink_rows"));
  }

  private void insert() throws Exception {
    for (long from = 0; from < ROWS; from += 500) {
      insert(LongStream.range(from, from + 500).mapToObj(FlinkJob::cells).collect(Collectors.joining(", ")));
    }
  }

  private void allRows() throws Exception {
    Checks.equal("rows", expected(k -> true), query("SELECT * FROM flink_rows"));
  }

  private void filters() throws Exception {
    // A literal must be of the column's type, or Flink converts the column and filters by itself.
    pushed("k < CAST(50 AS BIGINT)", k -> k < 50);
    pushed("k >= CAST(1990 AS BIGINT)", k -> k >= 1990);
    pushed("i32 > -900 AND i32 <= -890", k -> k > 100 && k <= 110);
    pushed("i32 = 5", k -> k == 1005);
    pushed("d > CAST(498.5 AS DOUBLE)", k -> k / 4.0 > 498.5);
    pushed("s = 'row 00042'", k -> k == 42);
    pushed("s IS NULL", k -> k % 10 == 9);
    pushed("s IS NOT NULL AND i32 < -970", k -> k % 10 != 9 && k < 30);
  }

  private void pushed(String filter, java.util.function.LongPredicate keep) throws Exception {
    long before = Checks.counter(web, "scanner_rows_returned");
    List<String> rows = query("SELECT * FROM flink_rows WHERE " + filter);
    long returned = Checks.counter(web, "scanner_rows_returned") - before;
    Checks.equal(filter, expected(keep), rows);
    Checks.equal(filter + ": rows that servers returned", (long) rows.size(), returned);
  }

  private void aggregates() throws Exception {
    long sum = LongStream.range(0, ROWS).filter(k -> k % 2 == 0).map(k -> k - 1000).sum();
    Checks.equal("a sum", Collections.singletonList("1000|" + sum),
        query("SELECT COUNT(*), SUM(CAST(i32 AS BIGINT)) FROM flink_rows WHERE b"));
    Checks.equal("a join", Collections.singletonList(String.valueOf(ROWS)),
        query("SELECT COUNT(*) FROM flink_rows a JOIN flink_rows b ON a.k = b.k"));
  }

  private void upsert() throws Exception {
    insert("(7, 1, 2, 3, true, 4.0, 5.0, 'new')");
    Checks.equal("the row", Collections.singletonList("7|1|2|3|true|4.0|5.0|new"),
        query("SELECT * FROM flink_rows WHERE k = 7"));
    Checks.equal("rows", Collections.singletonList(String.valueOf(ROWS)), query("SELECT COUNT(*) FROM flink_rows"));
  }

  private void drop() throws Exception {
    flink.executeSql("ALTER TABLE flink_rows RENAME TO flink_renamed");
    Checks.equal("rows", Collections.singletonList(String.valueOf(ROWS)), query("SELECT COUNT(*) FROM flink_renamed"));
    flink.executeSql("DROP TABLE flink_renamed");
    Checks.holds("it is listed still", !Arrays.asList(flink.listTables()).contains("flink_renamed"));
  }
}
