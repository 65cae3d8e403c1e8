import static org.apache.kudu.client.KuduPredicate.ComparisonOp.EQUAL;
import static org.apache.kudu.client.KuduPredicate.ComparisonOp.GREATER;
import static org.apache.kudu.client.KuduPredicate.ComparisonOp.GREATER_EQUAL;
import static org.apache.kudu.client.KuduPredicate.ComparisonOp.LESS;
import static org.apache.kudu.client.KuduPredicate.ComparisonOp.LESS_EQUAL;

import java.math.BigDecimal;
import java.nio.charset.StandardCharsets;
import java.sql.Date;
import java.sql.Timestamp;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.TreeMap;
import java.util.stream.Collectors;
import java.util.stream.IntStream;

import org.apache.kudu.ColumnSchema;
import org.apache.kudu.ColumnSchema.ColumnSchemaBuilder;
import org.apache.kudu.ColumnSchema.CompressionAlgorithm;
import org.apache.kudu.ColumnSchema.Encoding;
import org.apache.kudu.ColumnTypeAttributes;
import org.apache.kudu.Schema;
import org.apache.kudu.Type;
import org.apache.kudu.client.AbstractKuduScannerBuilder;
import org.apache.kudu.client.AlterTableOptions;
import org.apache.kudu.client.AsyncKuduScanner.ReadMode;
import org.apache.kudu.client.CreateTableOptions;
import org.apache.kudu.client.KuduClient;
import org.apache.kudu.client.KuduException;
import org.apache.kudu.client.KuduPredicate;
import org.apache.kudu.client.KuduScanToken;
import org.apache.kudu.client.KuduScanner;
import org.apache.kudu.client.KuduSession;
import org.apache.kudu.client.KuduTable;
import org.apache.kudu.client.Operation;
import org.apache.kudu.client.OperationResponse;
import org.apache.kudu.client.PartialRow;
import org.apache.kudu.client.RangePartitionBound;
import org.apache.kudu.client.RangePartitionWithCustomHashSchema;
import org.apache.kudu.client.RowError;
import org.apache.kudu.client.RowResult;
import org.apache.kudu.client.SessionConfiguration.FlushMode;

/**
 * What an application does with the Java client, checked against the cluster whose masters are the one argument.
 * Each check makes its own table, drops it again and prints a line; the exit code is 1 if one failed.
 */
public final class Interop {
  private final KuduClient client;

  private Interop(KuduClient client) {
    this.client = client;
  }

  private interface Check {
    void run() throws Exception;
  }

  public static void main(String[] args) throws Exception {
    int failed;
    try (KuduClient client =
        new KuduClient.KuduClientBuilder(args[0]).defaultOperationTimeoutMs(30_000).build()) {
      failed = new Interop(client).runAll();
    }
    System.exit(failed == 0 ? 0 : 1);
  }

  private int runAll() {
    TreeMap<String, Check> checks = new TreeMap<>();
    checks.put("01 create, describe, list and delete tables", this::ddl);
    checks.put("02 every type, with and without nulls", this::types);
    checks.put("03 flush modes", this::flushModes);
    checks.put("04 row errors", this::rowErrors);
    checks.put("05 upsert, update, delete and the ignore kinds", this::operations);
    checks.put("06 predicates of every kind", this::predicates);
    checks.put("07 scan tokens", this::scanTokens);
    checks.put("08 snapshot reads", this::snapshots);
    checks.put("09 ordered scan across tablets", this::orderedScan);
    checks.put("10 fault-tolerant scan in small batches", this::faultTolerantScan);
    checks.put("11 alter table", this::alter);
    checks.put("12 range partitions", this::rangePartitions);
    checks.put("13 custom hash schema per range", this::customHash);
    checks.put("14 read your writes", this::readYourWrites);
    checks.put("15 composite keys, bounds and limits", this::keyBounds);
    checks.put("16 immutable and auto-incrementing columns", this::specialColumns);
    checks.put("17 diff scan", this::diffScan);
    checks.put("18 big cells and many batches", this::bigRows);
    checks.put("19 statistics, soft delete and recall", this::softDelete);
    int failed = 0;
    for (String name : checks.keySet()) {
      long start = System.nanoTime();
      String verdict = "ok  ";
      try {
        checks.get(name).run();
      } catch (Throwable problem) {
        verdict = "FAIL";
        failed++;
        problem.printStackTrace(System.out);
      }
      System.out.printf("%s %6.2f s  java: %s%n", verdict, (System.nanoTime() - start) / 1e9, name);
    }
    return failed;
  }

  // ---- tables ----------------------------------------------------------------------------------------------------

  private static ColumnSchema key(String name, Type type) {
    return new ColumnSchemaBuilder(name, type).key(true).build();
  }

  private static ColumnSchema nullable(String name, Type type) {
    return new ColumnSchemaBuilder(name, type).nullable(true).build();
  }

  /** key INT32, v INT32 NULLABLE, s STRING NULLABLE. */
  private static Schema simpleSchema() {
    return new Schema(Arrays.asList(key("key", Type.INT32), nullable("v", Type.INT32), nullable("s", Type.STRING)));
  }

  private static CreateTableOptions hashed(String column, int buckets) {
    return new CreateTableOptions().addHashPartitions(Collections.singletonList(column), buckets).setNumReplicas(1);
  }

  private KuduTable simpleTable(String name, int buckets) throws KuduException {
    return create(name, simpleSchema(), hashed("key", buckets));
  }

  /** Creates a table, dropping what an earlier failed run left. */
  private KuduTable create(String name, Schema schema, CreateTableOptions options) throws KuduException {
    if (client.tableExists(name)) {
      client.deleteTable(name);
    }
    return client.createTable(name, schema, options);
  }

  private static Operation row(Operation operation, int key, Integer v, String s) {
    PartialRow row = operation.getRow();
    row.addInt("key", key);
    if (v == null) {
      row.setNull("v");
    } else {
      row.addInt("v", v);
    }
    if (s == null) {
      row.setNull("s");
    } else {
      row.addString("s", s);
    }
    return operation;
  }

  /** Inserts keys from..to with v = 10 * key (null for every tenth) and s = "s" + key. */
  private void fill(KuduTable table, int from, int to) throws KuduException {
    KuduSession session = client.newSession();
    session.setFlushMode(FlushMode.MANUAL_FLUSH);
    session.setMutationBufferSpace(100_000, 64L << 20);
    for (int key = from; key < to; key++) {
      session.apply(row(table.newInsert(), key, key % 10 == 0 ? null : 10 * key, "s" + key));
    }
    noErrors(session.flush());
    session.close();
  }

  private static void noErrors(List<OperationResponse> responses) {
    List<RowError> errors = OperationResponse.collectErrors(responses);
    that(errors.isEmpty(), "row errors: " + errors);
  }

  private static void that(boolean holds, String otherwise) {
    if (!holds) {
      throw new AssertionError(otherwise);
    }
  }

  private static void same(Object expected, Object actual) {
    that(expected == null ? actual == null : expected.equals(actual), "expected " + expected + ", got " + actual);
  }

  private static List<String> rows(KuduScanner scanner) throws KuduException {
    List<String> rows = new ArrayList<>();
    while (scanner.hasMoreRows()) {
      for (RowResult result : scanner.nextRows()) {
        rows.add(result.rowToString());
      }
    }
    scanner.close();
    return rows;
  }

  private static List<Integer> keys(KuduScanner scanner) throws KuduException {
    List<Integer> keys = new ArrayList<>();
    while (scanner.hasMoreRows()) {
      for (RowResult result : scanner.nextRows()) {
        keys.add(result.getInt("key"));
      }
    }
    scanner.close();
    return keys;
  }

  private static List<Integer> range(int from, int to) {
    return IntStream.range(from, to).boxed().collect(Collectors.toList());
  }

  private static List<Integer> sorted(List<Integer> keys) {
    return keys.stream().sorted().collect(Collectors.toList());
  }

  // ---- checks ----------------------------------------------------------------------------------------------------

  private void ddl() throws Exception {
    ColumnSchema name = new ColumnSchemaBuilder("name", Type.STRING)
        .nullable(true).defaultValue("none").encoding(Encoding.DICT_ENCODING)
        .compressionAlgorithm(CompressionAlgorithm.LZ4).desiredBlockSize(4096).comment("what it is called").build();
    Schema schema = new Schema(Arrays.asList(key("key", Type.INT64), name));
    KuduTable table = create("java_ddl", schema, hashed("key", 4).setComment("a comment").setOwner("somebody"));
    same("java_ddl", table.getName());
    same(1, table.getNumReplicas());
    same("somebody", table.getOwner());
    same("a comment", table.getComment());
    same(4, table.getPartitionSchema().getHashBucketSchemas().get(0).getNumBuckets());
    ColumnSchema back = table.getSchema().getColumn("name");
    same("none", back.getDefaultValue());
    same(Encoding.DICT_ENCODING, back.getEncoding());
    same(CompressionAlgorithm.LZ4, back.getCompressionAlgorithm());
    same(4096, back.getDesiredBlockSize());
    same("what it is called", back.getComment());
    that(client.getTablesList().getTablesList().contains("java_ddl"), "the table is not listed");
    same(Collections.singletonList("java_ddl"), client.getTablesList("java_dd").getTablesList());
    that(client.listTabletServers().getTabletServersCount() >= 1, "no tablet server");
    that(!client.getClusterId().isEmpty(), "no cluster id");
    try {
      client.createTable("java_ddl", schema, hashed("key", 4));
      that(false, "a second table of that name was created");
    } catch (KuduException exists) {
      that(exists.getStatus().isAlreadyPresent(), exists.toString());
    }
    client.deleteTable("java_ddl");
    that(!client.tableExists("java_ddl"), "the table is still there");
    try {
      client.openTable("java_ddl");
      that(false, "a deleted table was opened");
    } catch (KuduException missing) {
      that(missing.getStatus().isNotFound(), missing.toString());
    }
  }

  private static Schema allTypes() {
    List<ColumnSchema> columns = new ArrayList<>(Collections.singletonList(key("key", Type.INT32)));
    for (Type type : Type.values()) {
      ColumnSchemaBuilder column = new ColumnSchemaBuilder(type.getName(), type).nullable(true);
      if (type == Type.DECIMAL) {
        continue;
      }
      if (type == Type.VARCHAR) {
        column.typeAttributes(new ColumnTypeAttributes.ColumnTypeAttributesBuilder().length(10).build());
      }
      columns.add(column.build());
    }
    for (int precision : new int[] {9, 18, 38}) {
      columns.add(new ColumnSchemaBuilder("decimal" + precision, Type.DECIMAL).nullable(true).typeAttributes(
          new ColumnTypeAttributes.ColumnTypeAttributesBuilder().precision(precision).scale(4).build()).build());
    }
    return new Schema(columns);
  }

  /** The values of row 0..3: null, smallest, largest, ordinary. */
  private static Object value(ColumnSchema column, int row) {
    switch (column.getType()) {
      case INT8: return new Object[] {null, Byte.MIN_VALUE, Byte.MAX_VALUE, (byte) 8}[row];
      case INT16: return new Object[] {null, Short.MIN_VALUE, Short.MAX_VALUE, (short) 16}[row];
      case INT32: return new Object[] {null, Integer.MIN_VALUE, Integer.MAX_VALUE, 32}[row];
      case INT64: return new Object[] {null, Long.MIN_VALUE, Long.MAX_VALUE, 64L}[row];
      case BINARY: return new Object[] {null, new byte[0], new byte[] {-1, 0, 1}, new byte[] {0}}[row];
      case STRING: return new Object[] {null, "", "\u00e9\u20ac\ud83d\ude00\u0000x", "ordinary"}[row];
      case BOOL: return new Object[] {null, false, true, true}[row];
      case FLOAT: return new Object[] {null, -Float.MAX_VALUE, Float.POSITIVE_INFINITY, 1.5f}[row];
      case DOUBLE: return new Object[] {null, -Double.MAX_VALUE, Double.NaN, 2.5}[row];
      case UNIXTIME_MICROS:
        return new Object[] {null, new Timestamp(-1), new Timestamp(253402300799999L), new Timestamp(0)}[row];
      case VARCHAR: return new Object[] {null, "", "ten chars!", "s"}[row];
      case DATE:
        return new Object[] {
            null, Date.valueOf("0001-01-01"), Date.valueOf("9999-12-31"), Date.valueOf("2026-02-28")}[row];
      case DECIMAL:
        String nines = String.join("", Collections.nCopies(column.getTypeAttributes().getPrecision() - 4, "9"));
        return new Object[] {null, new BigDecimal("-" + nines + ".9999"), new BigDecimal(nines + ".9999"),
            new BigDecimal("1.2345")}[row];
      default: throw new AssertionError(column.toString());
    }
  }

  private static String text(Object value) {
    return value instanceof byte[] ? Arrays.toString((byte[]) value) : String.valueOf(value);
  }

  private void types() throws Exception {
    Schema schema = allTypes();
    KuduTable table = create("java_types", schema, hashed("key", 2));
    KuduSession session = client.newSession();
    session.setFlushMode(FlushMode.MANUAL_FLUSH);
    for (int key = 0; key < 4; key++) {
      Operation insert = table.newInsert();
      insert.getRow().addInt("key", key);
      for (ColumnSchema column : schema.getColumns().subList(1, schema.getColumnCount())) {
        Object value = value(column, key);
        if (value == null) {
          insert.getRow().setNull(column.getName());
        } else {
          insert.getRow().addObject(column.getName(), value);
        }
      }
      session.apply(insert);
    }
    noErrors(session.flush());
    int seen = 0;
    KuduScanner scanner = client.newScannerBuilder(table).build();
    while (scanner.hasMoreRows()) {
      for (RowResult result : scanner.nextRows()) {
        seen++;
        for (ColumnSchema column : schema.getColumns().subList(1, schema.getColumnCount())) {
          Object expected = value(column, result.getInt("key"));
          Object actual = result.isNull(column.getName()) ? null : result.getObject(column.getName());
          same(column.getName() + " " + text(expected), column.getName() + " " + text(actual));
        }
      }
    }
    same(4, seen);
    client.deleteTable("java_types");
  }

  private void flushModes() throws Exception {
    KuduTable table = simpleTable("java_flush", 3);
    KuduSession session = client.newSession();
    session.setFlushMode(FlushMode.AUTO_FLUSH_SYNC);
    for (int key = 0; key < 50; key++) {
      OperationResponse response = session.apply(row(table.newInsert(), key, key, null));
      that(!response.hasRowError() && response.getWriteTimestampRaw() > 0, String.valueOf(response.getRowError()));
    }
    session.setFlushMode(FlushMode.MANUAL_FLUSH);
    for (int key = 50; key < 1000; key++) {
      session.apply(row(table.newInsert(), key, key, "x"));
    }
    noErrors(session.flush());
    session.setFlushMode(FlushMode.AUTO_FLUSH_BACKGROUND);
    for (int key = 1000; key < 21_000; key++) {
      session.apply(row(table.newInsert(), key, key, "background"));
    }
    session.flush();
    same(0, session.countPendingErrors());
    session.close();
    same(range(0, 21_000), sorted(keys(client.newScannerBuilder(table).build())));
    client.deleteTable("java_flush");
  }

  private void rowErrors() throws Exception {
    KuduTable table = simpleTable("java_errors", 2);
    fill(table, 0, 100);
    KuduSession session = client.newSession();
    session.setFlushMode(FlushMode.MANUAL_FLUSH);
    for (int key = 90; key < 110; key++) {
      session.apply(row(table.newInsert(), key, 1, null));
    }
    List<RowError> errors = OperationResponse.collectErrors(session.flush());
    same(10, errors.size());
    Set<Integer> bad = new HashSet<>();
    for (RowError error : errors) {
      that(error.getErrorStatus().isAlreadyPresent(), error.toString());
      bad.add(error.getOperation().getRow().getInt("key"));
    }
    same(new HashSet<>(range(90, 100)), bad);
    same(110, keys(client.newScannerBuilder(table).build()).size());
    Operation update = row(table.newUpdate(), 5000, 1, null);
    session.apply(update);
    RowError missing = OperationResponse.collectErrors(session.flush()).get(0);
    that(missing.getErrorStatus().isNotFound(), missing.toString());
    session.setFlushMode(FlushMode.AUTO_FLUSH_BACKGROUND);
    session.apply(row(table.newInsert(), 0, 1, null));
    session.flush();
    same(1, session.countPendingErrors());
    that(session.getPendingErrors().getRowErrors()[0].getErrorStatus().isAlreadyPresent(), "another error");
    session.setIgnoreAllDuplicateRows(true);
    session.setFlushMode(FlushMode.AUTO_FLUSH_SYNC);
    that(!session.apply(row(table.newInsert(), 0, 1, null)).hasRowError(), "the duplicate was not ignored");
    session.close();
    client.deleteTable("java_errors");
  }

  private void operations() throws Exception {
    KuduTable table = simpleTable("java_operations", 2);
    fill(table, 1, 5);
    KuduSession session = client.newSession();
    session.setFlushMode(FlushMode.MANUAL_FLUSH);
    session.apply(row(table.newUpsert(), 1, 100, "upserted"));
    session.apply(row(table.newUpsert(), 9, 900, "inserted"));
    Operation update = table.newUpdate();
    update.getRow().addInt("key", 2);
    update.getRow().setNull("s");
    session.apply(update);
    Operation delete = table.newDelete();
    delete.getRow().addInt("key", 3);
    session.apply(delete);
    session.apply(row(table.newInsertIgnore(), 4, 1, "ignored"));
    session.apply(row(table.newUpdateIgnore(), 77, 1, "ignored"));
    Operation deleteIgnore = table.newDeleteIgnore();
    deleteIgnore.getRow().addInt("key", 78);
    session.apply(deleteIgnore);
    session.apply(row(table.newUpsertIgnore(), 10, 1000, "upserted"));
    noErrors(session.flush());
    Set<String> expected = new HashSet<>(Arrays.asList(
        "INT32 key=1, INT32 v=100, STRING s=upserted", "INT32 key=2, INT32 v=20, STRING s=NULL",
        "INT32 key=4, INT32 v=40, STRING s=s4", "INT32 key=9, INT32 v=900, STRING s=inserted",
        "INT32 key=10, INT32 v=1000, STRING s=upserted"));
    same(expected, new HashSet<>(rows(client.newScannerBuilder(table).build())));
    session.apply(row(table.newInsert(), 3, 33, "again"));
    noErrors(session.flush());
    same(Collections.singletonList("INT32 key=3, INT32 v=33, STRING s=again"),
        rows(client.newScannerBuilder(table).addPredicate(comparison(table, "key", EQUAL, 3)).build()));
    session.close();
    client.deleteTable("java_operations");
  }

  private static KuduPredicate comparison(
      KuduTable table, String column, KuduPredicate.ComparisonOp op, Object value) {
    return KuduPredicate.newComparisonPredicate(table.getSchema().getColumn(column), op, value);
  }

  private void predicates() throws Exception {
    KuduTable table = simpleTable("java_predicates", 4);
    fill(table, 0, 1000);
    ColumnSchema v = table.getSchema().getColumn("v");
    ColumnSchema s = table.getSchema().getColumn("s");
    ColumnSchema key = table.getSchema().getColumn("key");
    same(1, count(table, comparison(table, "key", EQUAL, 500)));
    same(9, count(table, comparison(table, "v", LESS, 100)));
    same(10, count(table, comparison(table, "v", LESS_EQUAL, 110)));
    same(9, count(table, comparison(table, "v", GREATER, 9890)) + count(table, comparison(table, "v", EQUAL, -1)));
    same(9, count(table, comparison(table, "v", GREATER_EQUAL, 9910)));
    same(100, count(table, KuduPredicate.newIsNullPredicate(v)));
    same(900, count(table, KuduPredicate.newIsNotNullPredicate(v)));
    same(3, count(table, KuduPredicate.newInListPredicate(s, Arrays.asList("s1", "s10", "s999", "none"))));
    same(2, count(table, KuduPredicate.newInListPredicate(key, Arrays.asList(7, 8, 100_000))));
    same(111, count(table, comparison(table, "s", GREATER_EQUAL, "s9"), comparison(table, "s", LESS, "t")));
    same(10, count(table, comparison(table, "key", GREATER_EQUAL, 20), comparison(table, "key", LESS, 30)));
    same(9, count(table, comparison(table, "key", GREATER_EQUAL, 20), comparison(table, "key", LESS, 30),
        KuduPredicate.newIsNotNullPredicate(v)));
    same(0, count(table, comparison(table, "key", LESS, 5), comparison(table, "key", GREATER, 5)));
    KuduScanner projected = client.newScannerBuilder(table).setProjectedColumnNames(Collections.singletonList("s"))
        .addPredicate(comparison(table, "v", EQUAL, 70)).build();
    same(Collections.singletonList("STRING s=s7"), rows(projected));
    KuduScanner counted =
        client.newScannerBuilder(table).setProjectedColumnNames(Collections.emptyList()).build();
    int rows = 0;
    while (counted.hasMoreRows()) {
      rows += counted.nextRows().getNumRows();
    }
    same(1000, rows);
    client.deleteTable("java_predicates");
    typedPredicates();
  }

  private void typedPredicates() throws Exception {
    KuduTable table = create("java_typed_predicates", allTypes(), hashed("key", 2));
    KuduSession session = client.newSession();
    for (int key = 0; key < 4; key++) {
      Operation insert = table.newInsert();
      insert.getRow().addInt("key", key);
      for (ColumnSchema column : table.getSchema().getColumns().subList(1, table.getSchema().getColumnCount())) {
        if (key > 0) {
          insert.getRow().addObject(column.getName(), value(column, key));
        }
      }
      that(!session.apply(insert).hasRowError(), "the row was refused");
    }
    for (ColumnSchema column : table.getSchema().getColumns().subList(1, table.getSchema().getColumnCount())) {
      if (column.getType() == Type.DOUBLE) {
        // NaN, the largest of them, equals every number for the real server's comparison.
        continue;
      }
      KuduPredicate ordinary = KuduPredicate.newComparisonPredicate(column, EQUAL, value(column, 3));
      same(column.getName() + " " + (column.getType() == Type.BOOL ? 2 : 1),
          column.getName() + " " + count(table, ordinary));
      same(column.getName() + " 1", column.getName() + " " + count(table, KuduPredicate.newIsNullPredicate(column)));
      KuduPredicate smaller = KuduPredicate.newComparisonPredicate(column, LESS, value(column, 3));
      // The ordinary binary value {0} has the smallest below it, {-1, 0, 1} above.
      same(column.getName() + " < 1", column.getName() + " < " + count(table, smaller));
    }
    session.close();
    client.deleteTable("java_typed_predicates");
  }

  private int count(KuduTable table, KuduPredicate... predicates) throws KuduException {
    KuduScanner.KuduScannerBuilder builder = client.newScannerBuilder(table);
    Arrays.asList(predicates).forEach(builder::addPredicate);
    return rows(builder.build()).size();
  }

  private void scanTokens() throws Exception {
    KuduTable table = simpleTable("java_tokens", 4);
    fill(table, 0, 2000);
    List<KuduScanToken> tokens = client.newScanTokenBuilder(table)
        .setProjectedColumnNames(Arrays.asList("key", "v"))
        .addPredicate(comparison(table, "key", LESS, 1500)).build();
    same(4, tokens.size());
    Set<Integer> seen = new HashSet<>();
    for (KuduScanToken token : tokens) {
      same(1, token.getTablet().getReplicas().size());
      seen.addAll(keys(KuduScanToken.deserializeIntoScanner(token.serialize(), client)));
    }
    same(new HashSet<>(range(0, 1500)), seen);
    seen.clear();
    for (KuduScanToken token : client.newScanTokenBuilder(table).setSplitSizeBytes(1).build()) {
      List<Integer> part = keys(token.intoScanner(client));
      part.forEach(key -> that(seen.add(key), "key " + key + " came twice"));
    }
    same(2000, seen.size());
    client.deleteTable("java_tokens");
  }

  private void snapshots() throws Exception {
    KuduTable table = simpleTable("java_snapshots", 3);
    fill(table, 0, 100);
    long before = client.getLastPropagatedTimestamp();
    fill(table, 100, 200);
    KuduSession session = client.newSession();
    OperationResponse updated = session.apply(row(table.newUpdate(), 5, -5, "later"));
    long then = updated.getWriteTimestampRaw();
    Operation delete = table.newDelete();
    delete.getRow().addInt("key", 6);
    session.apply(delete);
    that(then > before, "time went backwards");
    // A snapshot sees what is older than its timestamp.
    same(range(0, 100), sorted(keys(at(table, before + 1).build())));
    same(200, keys(at(table, then).build()).size());
    KuduPredicate five = comparison(table, "key", EQUAL, 5);
    same(Collections.singletonList("INT32 key=5, INT32 v=50, STRING s=s5"),
        rows(at(table, then).addPredicate(five).build()));
    same(Collections.singletonList("INT32 key=5, INT32 v=-5, STRING s=later"),
        rows(at(table, then + 1).addPredicate(five).build()));
    KuduScanner latest = client.newScannerBuilder(table).readMode(ReadMode.READ_AT_SNAPSHOT).build();
    same(199, keys(latest).size());
    session.close();
    client.deleteTable("java_snapshots");
  }

  private KuduScanner.KuduScannerBuilder at(KuduTable table, long timestamp) {
    return client.newScannerBuilder(table).readMode(ReadMode.READ_AT_SNAPSHOT).snapshotTimestampRaw(timestamp);
  }

  private void orderedScan() throws Exception {
    Schema schema = simpleSchema();
    CreateTableOptions options =
        new CreateTableOptions().setRangePartitionColumns(Collections.singletonList("key")).setNumReplicas(1);
    for (int split : new int[] {-100, 0, 250, 500}) {
      PartialRow row = schema.newPartialRow();
      row.addInt("key", split);
      options.addSplitRow(row);
    }
    KuduTable table = create("java_ordered", schema, options);
    List<Integer> shuffled = range(-300, 700);
    Collections.shuffle(shuffled, new java.util.Random(1));
    KuduSession session = client.newSession();
    session.setFlushMode(FlushMode.MANUAL_FLUSH);
    for (int key : shuffled) {
      session.apply(row(table.newInsert(), key, 1, "x"));
    }
    noErrors(session.flush());
    List<Integer> ordered = new ArrayList<>();
    List<KuduScanToken> tokens = client.newScanTokenBuilder(table).setFaultTolerant(true).build();
    same(5, tokens.size());
    for (KuduScanToken token : tokens) {
      ordered.addAll(keys(token.intoScanner(client)));
    }
    same(range(-300, 700), ordered);
    same(range(-300, 700), keys(client.newScannerBuilder(table).setFaultTolerant(true).build()));
    session.close();
    client.deleteTable("java_ordered");
  }

  private void faultTolerantScan() throws Exception {
    KuduTable table = simpleTable("java_fault_tolerant", 3);
    fill(table, 0, 5000);
    KuduScanner scanner =
        client.newScannerBuilder(table).setFaultTolerant(true).batchSizeBytes(1000).scanRequestTimeout(5000).build();
    int batches = 0;
    List<Integer> keys = new ArrayList<>();
    while (scanner.hasMoreRows()) {
      batches++;
      for (RowResult result : scanner.nextRows()) {
        keys.add(result.getInt("key"));
      }
      if (batches % 10 == 0 && scanner.hasMoreRows()) {
        scanner.keepAlive();
      }
    }
    that(batches > 10, "only " + batches + " batches");
    same(range(0, 5000), sorted(keys));
    client.deleteTable("java_fault_tolerant");
  }

  private void alter() throws Exception {
    KuduTable table = simpleTable("java_alter", 2);
    fill(table, 0, 20);
    client.alterTable("java_alter", new AlterTableOptions()
        .addColumn("filled", Type.INT64, 7L).addNullableColumn("empty", Type.STRING));
    KuduSession session = client.newSession();
    that(!session.apply(row(table.newInsert(), 100, 1, null)).hasRowError(), "a writer with the old schema was refused");
    client.alterTable("java_alter", new AlterTableOptions().renameColumn("s", "text").changeComment("v", "a number"));
    KuduTable altered = client.openTable("java_alter");
    same("a number", altered.getSchema().getColumn("v").getComment());
    KuduPredicate one = comparison(altered, "key", EQUAL, 1);
    same(Collections.singletonList("INT32 key=1, INT32 v=10, STRING text=s1, INT64 filled=7, STRING empty=NULL"),
        rows(client.newScannerBuilder(altered).addPredicate(one).build()));
    Operation renamed = row(table.newInsert(), 101, 1, "to a column that has another name now");
    try {
      that(session.apply(renamed).hasRowError(), "a renamed column was written under its old name");
    } catch (KuduException refused) {
      that(refused.getStatus().isInvalidArgument(), refused.toString());
    }
    client.alterTable("java_alter", new AlterTableOptions().dropColumn("text").changeDefault("filled", 8L));
    client.alterTable("java_alter", new AlterTableOptions().renameTable("java_altered"));
    KuduTable last = client.openTable("java_altered");
    same(Arrays.asList("key", "v", "filled", "empty"),
        last.getSchema().getColumns().stream().map(ColumnSchema::getName).collect(Collectors.toList()));
    Operation later = last.newInsert();
    later.getRow().addInt("key", 102);
    that(!session.apply(later).hasRowError(), "the row was refused");
    same(Collections.singletonList("INT32 key=102, INT32 v=NULL, INT64 filled=8, STRING empty=NULL"),
        rows(client.newScannerBuilder(last).addPredicate(comparison(last, "key", EQUAL, 102)).build()));
    same(22, count(last));
    session.close();
    client.deleteTable("java_altered");
  }

  private static PartialRow bound(Schema schema, int key) {
    PartialRow row = schema.newPartialRow();
    row.addInt("key", key);
    return row;
  }

  private void rangePartitions() throws Exception {
    Schema schema = simpleSchema();
    KuduTable table = create("java_ranges", schema,
        new CreateTableOptions().setRangePartitionColumns(Collections.singletonList("key")).setNumReplicas(1)
            .addRangePartition(bound(schema, 0), bound(schema, 100))
            .addRangePartition(bound(schema, 99), bound(schema, 200),
                RangePartitionBound.EXCLUSIVE_BOUND, RangePartitionBound.INCLUSIVE_BOUND));
    same(Arrays.asList("0 <= VALUES < 100", "100 <= VALUES < 201"), table.getFormattedRangePartitions(30_000));
    fill(table, 0, 201);
    KuduSession session = client.newSession();
    RowError outside = session.apply(row(table.newInsert(), 500, 1, null)).getRowError();
    that(outside != null && outside.getErrorStatus().isNotFound(), String.valueOf(outside));
    client.alterTable("java_ranges", new AlterTableOptions()
        .addRangePartition(bound(schema, 500), bound(schema, 600))
        .dropRangePartition(bound(schema, 0), bound(schema, 100)));
    same(Arrays.asList("100 <= VALUES < 201", "500 <= VALUES < 600"), table.getFormattedRangePartitions(30_000));
    that(!session.apply(row(table.newInsert(), 500, 1, null)).hasRowError(), "the new range refused its row");
    same(102, count(table));
    session.close();
    client.deleteTable("java_ranges");
  }

  private void customHash() throws Exception {
    Schema schema = simpleSchema();
    RangePartitionWithCustomHashSchema custom = new RangePartitionWithCustomHashSchema(
        bound(schema, 100), bound(schema, 200),
        RangePartitionBound.INCLUSIVE_BOUND, RangePartitionBound.EXCLUSIVE_BOUND);
    custom.addHashPartitions(Collections.singletonList("key"), 5, 7);
    KuduTable table = create("java_custom_hash", schema,
        hashed("key", 2).setRangePartitionColumns(Collections.singletonList("key"))
            .addRangePartition(bound(schema, 0), bound(schema, 100)).addRangePartition(custom));
    same(7, client.newScanTokenBuilder(table).build().size());
    fill(table, 0, 200);
    same(range(0, 200), sorted(keys(client.newScannerBuilder(table).build())));
    for (int key : new int[] {0, 99, 100, 150, 199}) {
      same(1, count(table, comparison(table, "key", EQUAL, key)));
    }
    RangePartitionWithCustomHashSchema more = new RangePartitionWithCustomHashSchema(
        bound(schema, 200), bound(schema, 300),
        RangePartitionBound.INCLUSIVE_BOUND, RangePartitionBound.EXCLUSIVE_BOUND);
    more.addHashPartitions(Collections.singletonList("key"), 3, 0);
    client.alterTable("java_custom_hash", new AlterTableOptions().addRangePartition(more));
    KuduTable altered = client.openTable("java_custom_hash");
    same(10, client.newScanTokenBuilder(altered).build().size());
    fill(altered, 200, 300);
    same(300, count(altered));
    client.deleteTable("java_custom_hash");
  }

  private void readYourWrites() throws Exception {
    KuduTable table = simpleTable("java_read_your_writes", 3);
    KuduSession session = client.newSession();
    for (int key = 0; key < 100; key++) {
      session.apply(row(table.newInsert(), key, 1, "x"));
      KuduScanner scanner = client.newScannerBuilder(table).readMode(ReadMode.READ_YOUR_WRITES).build();
      same(key + 1, keys(scanner).size());
    }
    session.close();
    client.deleteTable("java_read_your_writes");
  }

  private void keyBounds() throws Exception {
    Schema schema = new Schema(Arrays.asList(
        key("host", Type.STRING), key("at", Type.INT64), nullable("value", Type.DOUBLE)));
    KuduTable table = create("java_keys", schema, hashed("host", 2));
    KuduSession session = client.newSession();
    session.setFlushMode(FlushMode.AUTO_FLUSH_BACKGROUND);
    for (int host = 0; host < 20; host++) {
      for (long at = -10; at < 90; at++) {
        Operation insert = table.newInsert();
        insert.getRow().addString("host", "h" + host + (host % 2 == 0 ? "\u0000" : ""));
        insert.getRow().addLong("at", at);
        insert.getRow().addDouble("value", host * at);
        session.apply(insert);
      }
    }
    session.flush();
    same(0, session.countPendingErrors());
    PartialRow lower = schema.newPartialRow();
    lower.addString("host", "h3");
    lower.addLong("at", 0);
    PartialRow upper = schema.newPartialRow();
    upper.addString("host", "h3");
    upper.addLong("at", 50);
    same(50, rows(client.newScannerBuilder(table).lowerBound(lower).exclusiveUpperBound(upper).build()).size());
    same(100, count(table, comparison(table, "host", EQUAL, "h4\u0000")));
    same(10, count(table, comparison(table, "host", EQUAL, "h5"), comparison(table, "at", LESS, 0L)));
    same(7, rows(client.newScannerBuilder(table).limit(7).build()).size());
    same(2000, count(table));
    session.close();
    client.deleteTable("java_keys");
  }

  private void specialColumns() throws Exception {
    Schema schema = new Schema(Arrays.asList(key("key", Type.INT32),
        new ColumnSchemaBuilder("fixed", Type.STRING).nullable(true).immutable(true).build(),
        nullable("free", Type.INT32)));
    KuduTable table = create("java_immutable", schema, hashed("key", 2));
    KuduSession session = client.newSession();
    Operation insert = table.newInsert();
    insert.getRow().addInt("key", 1);
    insert.getRow().addString("fixed", "first");
    that(!session.apply(insert).hasRowError(), "the row was refused");
    Operation update = table.newUpdate();
    update.getRow().addInt("key", 1);
    update.getRow().addString("fixed", "second");
    RowError refused = session.apply(update).getRowError();
    that(refused != null && refused.getErrorStatus().isImmutable(), String.valueOf(refused));
    Operation ignoring = table.newUpdateIgnore();
    ignoring.getRow().addInt("key", 1);
    ignoring.getRow().addString("fixed", "second");
    ignoring.getRow().addInt("free", 2);
    that(!session.apply(ignoring).hasRowError(), "update ignore was refused");
    same(Collections.singletonList("INT32 key=1, STRING fixed=first, INT32 free=2"),
        rows(client.newScannerBuilder(table).build()));
    client.deleteTable("java_immutable");

    Schema counting = new Schema(Arrays.asList(
        new ColumnSchemaBuilder("name", Type.STRING).nonUniqueKey(true).build(), nullable("v", Type.INT32)));
    KuduTable counted = create("java_auto_incrementing", counting,
        new CreateTableOptions().setRangePartitionColumns(Collections.emptyList()).setNumReplicas(1));
    for (int v = 0; v < 3; v++) {
      Operation same = counted.newInsert();
      same.getRow().addString("name", "same");
      same.getRow().addInt("v", v);
      that(!session.apply(same).hasRowError(), "the row was refused");
    }
    List<String> rows = rows(client.newScannerBuilder(counted).build());
    same(3, rows.size());
    that(rows.get(2).contains("INT64 auto_incrementing_id=3, INT32 v=2"), rows.toString());
    session.close();
    client.deleteTable("java_auto_incrementing");
  }

  private void diffScan() throws Exception {
    KuduTable table = simpleTable("java_diff", 2);
    fill(table, 0, 10);
    long from = client.getLastPropagatedTimestamp();
    KuduSession session = client.newSession();
    session.apply(row(table.newUpdate(), 1, 111, "s1"));
    session.apply(row(table.newInsert(), 50, 5, "new"));
    Operation delete = table.newDelete();
    delete.getRow().addInt("key", 2);
    session.apply(delete);
    long to = client.getLastPropagatedTimestamp();
    session.apply(row(table.newInsert(), 51, 5, "after"));
    KuduScanner scanner = client.newScannerBuilder(table).diffScan(from + 1, to + 1).build();
    TreeMap<Integer, Boolean> changed = new TreeMap<>();
    while (scanner.hasMoreRows()) {
      for (RowResult result : scanner.nextRows()) {
        changed.put(result.getInt("key"), result.isDeleted());
      }
    }
    same("{1=false, 2=true, 50=false}", changed.toString());
    session.close();
    client.deleteTable("java_diff");
  }

  private void bigRows() throws Exception {
    KuduTable table = simpleTable("java_big", 2);
    char[] big = new char[64 * 1024];
    Arrays.fill(big, 'b');
    String text = new String(big, 0, big.length);
    KuduSession session = client.newSession();
    session.setFlushMode(FlushMode.MANUAL_FLUSH);
    for (int key = 0; key < 200; key++) {
      session.apply(row(table.newInsert(), key, key, text));
      if (key % 20 == 19) {
        noErrors(session.flush());
      }
    }
    session.apply(row(table.newInsert(), 1000, 1, text + "b"));
    RowError tooBig = OperationResponse.collectErrors(session.flush()).get(0);
    that(tooBig.getErrorStatus().isInvalidArgument(), tooBig.toString());
    KuduScanner scanner = client.newScannerBuilder(table).build();
    int batches = 0;
    long bytes = 0;
    while (scanner.hasMoreRows()) {
      batches++;
      for (RowResult result : scanner.nextRows()) {
        bytes += result.getString("s").getBytes(StandardCharsets.UTF_8).length;
      }
    }
    same(200L * big.length, bytes);
    that(batches >= 3, "13 MB came in " + batches + " batches");
    session.close();
    client.deleteTable("java_big");
  }

  private void softDelete() throws Exception {
    KuduTable table = simpleTable("java_soft", 2);
    fill(table, 0, 30);
    that(client.getTableStatistics("java_soft").getOnDiskSize() >= 0, "a negative size");
    client.deleteTable("java_soft", 600);
    that(!client.getTablesList().getTablesList().contains("java_soft"), "a soft-deleted table is listed");
    that(client.getSoftDeletedTablesList().getTablesList().contains("java_soft"), "it is not among the deleted");
    client.recallDeletedTable(table.getTableId());
    that(client.getTablesList().getTablesList().contains("java_soft"), "the recalled table is not listed");
    same(30, count(client.openTable("java_soft")));
    client.deleteTable("java_soft");
  }
}
