import static org.apache.spark.sql.functions.avg;
import static org.apache.spark.sql.functions.col;
import static org.apache.spark.sql.functions.count;
import static org.apache.spark.sql.functions.lit;
import static org.apache.spark.sql.functions.max;
import static org.apache.spark.sql.functions.sum;

import java.math.BigDecimal;
import java.sql.Date;
import java.sql.Timestamp;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;

import org.apache.kudu.client.CreateTableOptions;
import org.apache.kudu.spark.kudu.KuduContext;
import org.apache.kudu.spark.kudu.KuduWriteOptions;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.RowFactory;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import scala.collection.JavaConverters;

/**
 * A Spark application on upstream's connector. Rows of all types are made in Spark and written to a table; each query
 * is answered twice, by the table and by Spark's own copy, and the answers must be equal. That a predicate was pushed
 * down is judged by the rows that the servers returned, not by the answer.
 *
 * Arguments: the masters, and the web addresses of the tablet servers.
 */
public final class SparkJob {
  private static final int ROWS = 20_000;
  private static final String TABLE = "spark_rows";

  private static final StructType SCHEMA = new StructType()
      .add("k", DataTypes.LongType, false)
      .add("part", DataTypes.IntegerType, false)
      .add("i8", DataTypes.ByteType, true)
      .add("i16", DataTypes.ShortType, true)
      .add("i32", DataTypes.IntegerType, true)
      .add("i64", DataTypes.LongType, true)
      .add("f32", DataTypes.FloatType, true)
      .add("f64", DataTypes.DoubleType, true)
      .add("b", DataTypes.BooleanType, true)
      .add("s", DataTypes.StringType, true)
      .add("bin", DataTypes.BinaryType, true)
      .add("at", DataTypes.TimestampType, true)
      .add("day", DataTypes.DateType, true)
      .add("d9", DataTypes.createDecimalType(9, 2), true)
      .add("d18", DataTypes.createDecimalType(18, 6), true)
      .add("d38", DataTypes.createDecimalType(38, 10), true);

  /** Predicates that the connector pushes down. */
  private static final List<String> PUSHED = Arrays.asList(
      "k = 17", "k < 100", "k <= 100", "k > 19000", "k >= 19000", "k between 500 and 600", "k in (1, 5, 19999, 70000)",
      "part = 3", "part = 3 and k < 4000", "i8 = 5", "i16 > 900", "i32 <= -400", "i64 >= 15000000000", "f32 < 2.5",
      "f64 > 4990.5", "b = true", "s = 'row 00042'", "s like 'row 001%'", "s >= 'row 19990'", "s is null",
      "s is not null and k < 50", "at < timestamp '1970-01-01 00:30:00'", "day = date '1970-02-01'", "d9 > 190.00",
      "d18 <= 0.000500", "d38 = 7.0000000007", "i32 is null", "i32 is not null");

  /** Predicates that Spark evaluates itself, whole or in part. */
  private static final List<String> OTHERS = Arrays.asList(
      "k % 7 = 0", "k = 1 or s = 'row 00002'", "s like '%42'", "not (k < 19900)", "i8 <> 5", "length(s) > 3 and k < 99",
      "hex(bin) = '0102'", "s in ('row 00001', 'row 00002') and b", "i32 <=> null", "coalesce(i32, 7) = 7");

  private final SparkSession spark;
  private final KuduContext kudu;
  private final String masters;
  private final String web;
  private Dataset<Row> own;

  private SparkJob(String masters, String web) {
    this.masters = masters;
    this.web = web;
    spark = SparkSession.builder().master("local[2]").appName("nyala")
        .config("spark.ui.enabled", false).config("spark.sql.shuffle.partitions", 4)
        .config("spark.driver.host", "127.0.0.1").config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", System.getProperty("java.io.tmpdir") + "/warehouse")
        .getOrCreate();
    // Some checks want tasks to fail; what fails unwanted is printed by its check.
    spark.sparkContext().setLogLevel("OFF");
    kudu = new KuduContext(masters, spark.sparkContext());
  }

  public static void main(String[] args) {
    SparkJob job = new SparkJob(args[0], args[1]);
    Checks checks = new Checks("spark");
    checks.add("a table is created and 20,000 rows of 16 columns are written", job::write);
    checks.add("a fresh table has a size, so that a join of it is not broadcast", job::size);
    checks.add("all rows come back", job::allRows);
    checks.add("predicates that are pushed down", job::pushed);
    checks.add("predicates that Spark evaluates", job::others);
    checks.add("a projection and a limit", job::projection);
    checks.add("aggregates and a join", job::aggregates);
    checks.add("the planned number of scans is that of the tablets", job::partitions);
    checks.add("SQL: view, insert, filter", job::sql);
    checks.add("upsert, update, delete, and the ignore kinds", job::operations);
    checks.add("row errors fail the job by name", job::rowErrors);
    checks.add("a snapshot of the past", job::snapshot);
    checks.add("a table that is not there", job::missing);
    checks.add("the table is dropped", job::drop);
    int code = checks.runAll();
    job.spark.stop();
    System.exit(code);
  }

  // ---- rows ------------------------------------------------------------------------------------------------------

  private static Row row(long k) {
    boolean hasNulls = k % 10 == 9;
    if (hasNulls) {
      Object[] cells = new Object[SCHEMA.size()];
      cells[0] = k;
      cells[1] = (int) (k % 8);
      return RowFactory.create(cells);
    }
    return RowFactory.create(k, (int) (k % 8), (byte) (k % 100), (short) (k % 1000), (int) (k - 10_000), k * 1_000_000L,
        k / 4.0f, k / 4.0, k % 2 == 0, String.format("row %05d", k), new byte[] {(byte) (k >> 8), (byte) k},
        new Timestamp(k * 1000), new Date(k % 365 * 86_400_000L), BigDecimal.valueOf(k, 2), BigDecimal.valueOf(k, 6),
        BigDecimal.valueOf(k * 10_000_000_000L + k, 10));
  }

  private Dataset<Row> rows(long from, long to) {
    List<Row> rows = new ArrayList<>();
    for (long k = from; k < to; k++) {
      rows.add(row(k));
    }
    return spark.createDataFrame(rows, SCHEMA);
  }

  private void create(String table, int buckets) {
    CreateTableOptions options = new CreateTableOptions()
        .addHashPartitions(Collections.singletonList("k"), buckets).setNumReplicas(1);
    kudu.createTable(table, SCHEMA, JavaConverters.asScalaBuffer(Arrays.asList("k", "part")).toSeq(), options);
  }

  private Dataset<Row> table(String name, String... options) {
    Map<String, String> all = new HashMap<>(Map.of("kudu.master", masters, "kudu.table", name));
    for (int i = 0; i < options.length; i += 2) {
      all.put(options[i], options[i + 1]);
    }
    return spark.read().format("kudu").options(all).load();
  }

  /** Rows as texts, sorted: binary cells have no equality of their own. */
  private static List<String> texts(Dataset<Row> rows) {
    return rows.collectAsList().stream().map(SparkJob::text).sorted().collect(Collectors.toList());
  }

  private static String text(Row row) {
    List<String> cells = new ArrayList<>();
    for (int i = 0; i < row.size(); i++) {
      Object cell = row.get(i);
      cells.add(cell instanceof byte[] ? Arrays.toString((byte[]) cell) : String.valueOf(cell));
    }
    return String.join("|", cells);
  }

  // ---- checks ----------------------------------------------------------------------------------------------------

  private void write() {
    own = rows(0, ROWS).cache();
    create(TABLE, 4);
    Checks.holds("the table exists", kudu.tableExists(TABLE));
    kudu.insertRows(own, TABLE, kudu.insertRows$default$3());
  }

  private void size() {
    long bytes = table(TABLE).queryExecution().optimizedPlan().stats().sizeInBytes().toLong();
    Checks.holds("a table of " + ROWS + " rows says that it has " + bytes + " bytes", bytes > 10 << 20);
    Dataset<Row> join =
        table(TABLE).as("a").join(table(TABLE).as("b"), col("a.k").equalTo(col("b.k")));
    String plan = join.queryExecution().executedPlan().toString();
    Checks.holds("the fresh table is broadcast:\n" + plan, !plan.contains("BroadcastHashJoin"));
    Checks.equal("rows of the join", (long) ROWS, join.count());
  }

  private void allRows() {
    Checks.equal("count", (long) ROWS, table(TABLE).count());
    Checks.equal("rows", texts(own), texts(table(TABLE)));
  }

  private void pushed() throws Exception {
    for (String predicate : PUSHED) {
      long before = Checks.counter(web, "scanner_rows_returned");
      List<String> got = texts(table(TABLE).filter(predicate));
      long returned = Checks.counter(web, "scanner_rows_returned") - before;
      Checks.equal(predicate, texts(own.filter(predicate)), got);
      Checks.equal(predicate + ": rows that servers returned", (long) got.size(), returned);
    }
  }

  private void others() {
    for (String predicate : OTHERS) {
      Checks.equal(predicate, texts(own.filter(predicate)), texts(table(TABLE).filter(predicate)));
    }
  }

  private void projection() {
    Checks.equal("two columns", texts(own.select("s", "d9")), texts(table(TABLE).select("s", "d9")));
    Checks.equal("a limit", 10, table(TABLE).limit(10).collectAsList().size());
  }

  private void aggregates() {
    Checks.equal("groups", texts(groups(own)), texts(groups(table(TABLE))));
    Dataset<Row> few = spark.range(0, 50).toDF("k");
    Checks.equal("join", texts(own.join(few, "k")), texts(table(TABLE).join(few, "k")));
  }

  private static Dataset<Row> groups(Dataset<Row> rows) {
    return rows.groupBy("part").agg(count(lit(1)), sum("i64"), max("s"), avg("d9"), sum("d38"), max("at"));
  }

  private void partitions() {
    Checks.equal("partitions", 4, table(TABLE).rdd().getNumPartitions());
    Checks.equal("one bucket is scanned for one key", 1, table(TABLE).filter("k = 5").rdd().getNumPartitions());
  }

  private void sql() {
    table(TABLE).createOrReplaceTempView("kudu_rows");
    own.createOrReplaceTempView("own_rows");
    String query = "select part, count(*), sum(i32) from %s where k < 5000 and s is not null group by part";
    Checks.equal("a query", texts(spark.sql(String.format(query, "own_rows"))),
        texts(spark.sql(String.format(query, "kudu_rows"))));
    create("spark_sql", 2);
    table("spark_sql").createOrReplaceTempView("spark_sql");
    spark.sql("insert into table spark_sql select * from own_rows where k < 100");
    Checks.equal("rows inserted by SQL", texts(own.filter("k < 100")), texts(table("spark_sql")));
    kudu.deleteTable("spark_sql");
  }

  private void operations() {
    create("spark_ops", 2);
    kudu.insertRows(rows(0, 100), "spark_ops", kudu.insertRows$default$3());
    Dataset<Row> changed = rows(50, 150).withColumn("s", lit("changed"));
    kudu.upsertRows(changed, "spark_ops", kudu.upsertRows$default$3());
    Checks.equal("upserted", 100L, table("spark_ops").filter("s = 'changed'").count());
    kudu.updateRows(rows(0, 10).withColumn("i32", lit(-1)), "spark_ops", kudu.updateRows$default$3());
    Checks.equal("updated", 10L, table("spark_ops").filter("i32 = -1").count());
    kudu.deleteRows(rows(0, 20).select("k", "part"), "spark_ops", kudu.deleteRows$default$3());
    Checks.equal("after the delete", 130L, table("spark_ops").count());
    KuduWriteOptions ignore = new KuduWriteOptions(true, false, true, false, false);
    kudu.insertRows(rows(0, 60), "spark_ops", ignore);
    Checks.equal("inserted what was missing", 150L, table("spark_ops").count());
    Checks.equal("what was there is as it was", 100L, table("spark_ops").filter("s = 'changed'").count());
    kudu.deleteTable("spark_ops");
  }

  private void rowErrors() {
    Checks.fails("a second insert", "already present", () ->
        kudu.insertRows(rows(0, 1), TABLE, kudu.insertRows$default$3()));
    Checks.fails("an update of no row", "not found", () ->
        kudu.updateRows(rows(ROWS, ROWS + 1), TABLE, kudu.updateRows$default$3()));
    Checks.equal("count", (long) ROWS, table(TABLE).count());
  }

  private void snapshot() throws Exception {
    long now = System.currentTimeMillis() + 1;
    // Snapshots are named by milliseconds: what follows must be of a later one.
    while (System.currentTimeMillis() <= now) {
      Thread.onSpinWait();
    }
    kudu.upsertRows(rows(0, 10).withColumn("s", lit("later")), TABLE, kudu.upsertRows$default$3());
    Checks.equal("the latest", 10L, table(TABLE).filter("s = 'later'").count());
    Dataset<Row> then = table(TABLE, "kudu.snapshotTimestampMs", String.valueOf(now));
    Checks.equal("the past", 0L, then.filter(col("s").equalTo("later")).count());
    Checks.equal("rows of the past", texts(own), texts(then));
  }

  private void missing() {
    Checks.fails("a read", "does not exist", () -> table("spark_none").count());
  }

  private void drop() {
    kudu.deleteTable(TABLE);
    Checks.holds("the table exists still", !kudu.tableExists(TABLE));
  }
}
