import static org.apache.kudu.client.KuduPredicate.ComparisonOp.EQUAL;
import static org.apache.kudu.client.KuduPredicate.ComparisonOp.GREATER_EQUAL;
import static org.apache.kudu.client.KuduPredicate.ComparisonOp.LESS;

import java.math.BigDecimal;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.function.LongPredicate;
import java.util.stream.Collectors;
import java.util.stream.LongStream;

import org.apache.kudu.ColumnSchema;
import org.apache.kudu.ColumnSchema.ColumnSchemaBuilder;
import org.apache.kudu.ColumnTypeAttributes;
import org.apache.kudu.Schema;
import org.apache.kudu.Type;
import org.apache.kudu.client.AlterTableOptions;
import org.apache.kudu.client.AsyncKuduScanner.ReadMode;
import org.apache.kudu.client.CreateTableOptions;
import org.apache.kudu.client.KuduClient;
import org.apache.kudu.client.KuduPredicate;
import org.apache.kudu.client.KuduScanToken;
import org.apache.kudu.client.KuduScanner;
import org.apache.kudu.client.KuduSession;
import org.apache.kudu.client.KuduTable;
import org.apache.kudu.client.Operation;
import org.apache.kudu.client.OperationResponse;
import org.apache.kudu.client.PartialRow;
import org.apache.kudu.client.RowResult;
import org.apache.kudu.client.RowResultIterator;
import org.apache.kudu.client.SessionConfiguration.FlushMode;

/** What applications on a Java client of 1.9 or later do. Arguments: the masters, the tablet servers' web addresses. */
public final class OldClient {
  private static final int ROWS = 10_000;
  private static final String TABLE = "old_client";

  private final KuduClient client;
  private final String web;

  private OldClient(KuduClient client, String web) {
    this.client = client;
    this.web = web;
  }

  public static void main(String[] args) throws Exception {
    int code;
    try (KuduClient client = new KuduClient.KuduClientBuilder(args[0]).build()) {
      OldClient old = new OldClient(client, args[1]);
      Checks checks = new Checks("old client");
      checks.add("a table with hash and range partitions is created and described", old::create);
      checks.add("10,000 rows of all types are written in the background", old::write);
      checks.add("all rows come back", old::allRows);
      checks.add("predicates are pushed down", old::predicates);
      checks.add("scan tokens give each row once", old::tokens);
      checks.add("a fault-tolerant scan is in the order of keys", old::faultTolerant);
      checks.add("limits and projections", old::limits);
      checks.add("what was written is read back", old::readYourWrites);
      checks.add("row errors", old::rowErrors);
      checks.add("upsert, update, delete", old::operations);
      checks.add("columns are added, renamed and dropped, and the table renamed", old::alter);
      checks.add("range partitions are added and dropped", old::ranges);
      checks.add("the table is dropped", old::drop);
      code = checks.runAll();
    }
    System.exit(code);
  }

  // ---- rows ------------------------------------------------------------------------------------------------------

  private static ColumnSchema column(String name, Type type) {
    return new ColumnSchemaBuilder(name, type).nullable(true).build();
  }

  private static Schema schema() {
    ColumnTypeAttributes attributes =
        new ColumnTypeAttributes.ColumnTypeAttributesBuilder().precision(18).scale(4).build();
    return new Schema(Arrays.asList(
        new ColumnSchemaBuilder("k", Type.INT64).key(true).build(), column("i8", Type.INT8), column("i16", Type.INT16),
        column("i32", Type.INT32), column("i64", Type.INT64), column("f", Type.FLOAT), column("d", Type.DOUBLE),
        column("b", Type.BOOL), column("s", Type.STRING), column("bin", Type.BINARY),
        column("at", Type.UNIXTIME_MICROS),
        new ColumnSchemaBuilder("dec", Type.DECIMAL).nullable(true).typeAttributes(attributes).build()));
  }

  private static void fill(PartialRow row, long k) {
    row.addLong("k", k);
    if (k % 10 == 9) {
      return;
    }
    row.addByte("i8", (byte) (k % 100));
    row.addShort("i16", (short) (k % 1000));
    row.addInt("i32", (int) (k - 5000));
    row.addLong("i64", k * 1_000_000_007L);
    row.addFloat("f", k / 2f);
    row.addDouble("d", k / 8.0);
    row.addBoolean("b", k % 2 == 0);
    row.addString("s", String.format("row %05d é", k));
    row.addBinary("bin", ("bin " + k).getBytes(StandardCharsets.UTF_8));
    row.addLong("at", k * 1000);
    row.addDecimal("dec", BigDecimal.valueOf(k, 4));
  }

  /** The cells of row `k` as {@link #text} gives them. */
  private static String expected(long k) {
    if (k % 10 == 9) {
      return k + String.join("", Collections.nCopies(11, "|null"));
    }
    List<Object> cells = Arrays.asList(k, k % 100, k % 1000, k - 5000, k * 1_000_000_007L, k / 2f, k / 8.0, k % 2 == 0,
        String.format("row %05d é", k), "bin " + k, k * 1000, BigDecimal.valueOf(k, 4));
    return cells.stream().map(String::valueOf).collect(Collectors.joining("|"));
  }

  private static String text(RowResult row) {
    List<String> cells = new ArrayList<>();
    for (ColumnSchema column : row.getColumnProjection().getColumns()) {
      cells.add(row.isNull(column.getName()) ? "null" : cell(row, column));
    }
    return String.join("|", cells);
  }

  private static String cell(RowResult row, ColumnSchema column) {
    String name = column.getName();
    switch (column.getType()) {
      case INT8: return String.valueOf(row.getByte(name));
      case INT16: return String.valueOf(row.getShort(name));
      case INT32: return String.valueOf(row.getInt(name));
      case INT64:
      case UNIXTIME_MICROS: return String.valueOf(row.getLong(name));
      case FLOAT: return String.valueOf(row.getFloat(name));
      case DOUBLE: return String.valueOf(row.getDouble(name));
      case BOOL: return String.valueOf(row.getBoolean(name));
      case STRING: return row.getString(name);
      case BINARY: return StandardCharsets.UTF_8.decode(row.getBinary(name)).toString();
      default: return String.valueOf(row.getDecimal(name));
    }
  }

  private static List<String> sorted(LongPredicate keep) {
    return LongStream.range(0, ROWS).filter(keep).mapToObj(OldClient::expected).sorted().collect(Collectors.toList());
  }

  private static List<String> read(KuduScanner scanner) throws Exception {
    List<String> rows = new ArrayList<>();
    while (scanner.hasMoreRows()) {
      RowResultIterator batch = scanner.nextRows();
      while (batch.hasNext()) {
        rows.add(text(batch.next()));
      }
    }
    scanner.close();
    return rows;
  }

  private KuduTable table() throws Exception {
    return client.openTable(TABLE);
  }

  private OperationResponse apply(Operation operation, long k) throws Exception {
    fill(operation.getRow(), k);
    KuduSession session = client.newSession();
    OperationResponse response = session.apply(operation);
    session.close();
    return response;
  }

  // ---- checks ----------------------------------------------------------------------------------------------------

  private void create() throws Exception {
    PartialRow lower = schema().newPartialRow();
    lower.addLong("k", 0);
    PartialRow upper = schema().newPartialRow();
    upper.addLong("k", 2 * ROWS);
    CreateTableOptions options = new CreateTableOptions().addHashPartitions(Collections.singletonList("k"), 3)
        .setRangePartitionColumns(Collections.singletonList("k")).addRangePartition(lower, upper).setNumReplicas(3);
    KuduTable table = client.createTable(TABLE, schema(), options);
    Checks.equal("columns", 12, table.getSchema().getColumnCount());
    Checks.equal("replication factor", 3, client.openTable(TABLE).getNumReplicas());
    Checks.holds("it is listed", client.getTablesList("old_").getTablesList().contains(TABLE));
    Checks.equal("tablet servers", 3, client.listTabletServers().getTabletServersCount());
  }

  private void write() throws Exception {
    KuduTable table = table();
    KuduSession session = client.newSession();
    session.setFlushMode(FlushMode.AUTO_FLUSH_BACKGROUND);
    for (long k = 0; k < ROWS; k++) {
      Operation insert = table.newInsert();
      fill(insert.getRow(), k);
      session.apply(insert);
    }
    session.close();
    Checks.equal("row errors", 0, session.getPendingErrors().getRowErrors().length);
  }

  private void allRows() throws Exception {
    List<String> rows = read(client.newScannerBuilder(table()).build());
    Collections.sort(rows);
    Checks.equal("rows", sorted(k -> true), rows);
  }

  private void predicates() throws Exception {
    Schema schema = schema();
    pushed("k >= 9000", KuduPredicate.newComparisonPredicate(schema.getColumn("k"), GREATER_EQUAL, 9000L),
        k -> k >= 9000);
    pushed("i8 = 7", KuduPredicate.newComparisonPredicate(schema.getColumn("i8"), EQUAL, 7L), k -> k % 100 == 7);
    pushed("s < row 00100", KuduPredicate.newComparisonPredicate(schema.getColumn("s"), LESS, "row 00100"),
        k -> k < 100 && k % 10 != 9);
    pushed("b", KuduPredicate.newComparisonPredicate(schema.getColumn("b"), EQUAL, true), k -> k % 2 == 0);
    pushed("d < 10", KuduPredicate.newComparisonPredicate(schema.getColumn("d"), LESS, 10.0),
        k -> k < 80 && k % 10 != 9);
    BigDecimal bound = BigDecimal.valueOf(9990, 4);
    pushed("dec >= 0.999", KuduPredicate.newComparisonPredicate(schema.getColumn("dec"), GREATER_EQUAL, bound),
        k -> k >= 9990 && k % 10 != 9);
    pushed("k in", KuduPredicate.newInListPredicate(schema.getColumn("k"), Arrays.asList(1L, 5L, 77_777L)),
        k -> k == 1 || k == 5);
    pushed("s is null", KuduPredicate.newIsNullPredicate(schema.getColumn("s")), k -> k % 10 == 9);
    pushed("s is not null", KuduPredicate.newIsNotNullPredicate(schema.getColumn("s")), k -> k % 10 != 9);
  }

  private void pushed(String what, KuduPredicate predicate, LongPredicate keep) throws Exception {
    long before = Checks.counter(web, "scanner_rows_returned");
    List<String> rows = read(client.newScannerBuilder(table()).addPredicate(predicate).build());
    long returned = Checks.counter(web, "scanner_rows_returned") - before;
    Collections.sort(rows);
    Checks.equal(what, sorted(keep), rows);
    Checks.equal(what + ": rows that servers returned", (long) rows.size(), returned);
  }

  private void tokens() throws Exception {
    List<KuduScanToken> tokens = client.newScanTokenBuilder(table()).build();
    Checks.equal("tokens", 3, tokens.size());
    List<String> rows = new ArrayList<>();
    for (KuduScanToken token : tokens) {
      rows.addAll(read(KuduScanToken.deserializeIntoScanner(token.serialize(), client)));
    }
    Collections.sort(rows);
    Checks.equal("rows", sorted(k -> true), rows);
  }

  private void faultTolerant() throws Exception {
    KuduScanner scanner = client.newScannerBuilder(table()).setFaultTolerant(true).batchSizeBytes(20_000)
        .setProjectedColumnNames(Collections.singletonList("k")).build();
    List<Long> keys = read(scanner).stream().map(Long::valueOf).collect(Collectors.toList());
    int runs = 1;
    for (int i = 1; i < keys.size(); i++) {
      runs += keys.get(i) < keys.get(i - 1) ? 1 : 0;
    }
    Checks.equal("runs of rising keys: one for each tablet", 3, runs);
    List<Long> all = LongStream.range(0, ROWS).boxed().collect(Collectors.toList());
    Collections.sort(keys);
    Checks.equal("keys", all, keys);
  }

  private void limits() throws Exception {
    Checks.equal("a limit", 42, read(client.newScannerBuilder(table()).limit(42).build()).size());
    List<String> cells = read(client.newScannerBuilder(table()).setProjectedColumnNames(Arrays.asList("s", "k"))
        .addPredicate(KuduPredicate.newComparisonPredicate(schema().getColumn("k"), EQUAL, 5L)).build());
    Checks.equal("a projection", Collections.singletonList("row 00005 é|5"), cells);
    int counted = 0;
    KuduScanner scanner =
        client.newScannerBuilder(table()).setProjectedColumnNames(Collections.emptyList()).build();
    while (scanner.hasMoreRows()) {
      counted += scanner.nextRows().getNumRows();
    }
    Checks.equal("a count without columns", ROWS, counted);
  }

  private void readYourWrites() throws Exception {
    for (long k = ROWS; k < ROWS + 20; k++) {
      Checks.holds("insert " + k, !apply(table().newInsert(), k).hasRowError());
      List<String> rows = read(client.newScannerBuilder(table()).readMode(ReadMode.READ_YOUR_WRITES)
          .addPredicate(KuduPredicate.newComparisonPredicate(schema().getColumn("k"), EQUAL, k)).build());
      Checks.equal("row " + k, Collections.singletonList(expected(k)), rows);
    }
  }

  private void rowErrors() throws Exception {
    OperationResponse twice = apply(table().newInsert(), 1);
    Checks.holds("a second insert", twice.hasRowError() && twice.getRowError().getErrorStatus().isAlreadyPresent());
    OperationResponse none = apply(table().newUpdate(), ROWS + 100);
    Checks.holds("an update of none", none.hasRowError() && none.getRowError().getErrorStatus().isNotFound());
    OperationResponse outside = null;
    try {
      outside = apply(table().newInsert(), 3 * ROWS);
    } catch (Exception refused) {
      Checks.holds("outside of all ranges: " + refused, refused.getMessage().contains("does not exist"));
    }
    Checks.holds("outside of all ranges", outside == null || outside.hasRowError());
  }

  private void operations() throws Exception {
    for (long k = ROWS; k < ROWS + 20; k++) {
      Operation delete = table().newDelete();
      delete.getRow().addLong("k", k);
      KuduSession session = client.newSession();
      Checks.holds("delete " + k, !session.apply(delete).hasRowError());
      session.close();
    }
    Checks.holds("upsert", !apply(table().newUpsert(), 3).hasRowError());
    Checks.holds("update", !apply(table().newUpdate(), 4).hasRowError());
    allRows();
  }

  private void alter() throws Exception {
    client.alterTable(TABLE, new AlterTableOptions().addColumn("added", Type.INT32, 7).addNullableColumn("free",
        Type.STRING));
    client.alterTable(TABLE, new AlterTableOptions().renameColumn("i8", "small").dropColumn("bin"));
    client.alterTable(TABLE, new AlterTableOptions().renameTable("old_renamed"));
    Schema schema = client.openTable("old_renamed").getSchema();
    List<String> names = schema.getColumns().stream().map(ColumnSchema::getName).collect(Collectors.toList());
    Checks.equal("columns", Arrays.asList("k", "small", "i16", "i32", "i64", "f", "d", "b", "s", "at", "dec", "added",
        "free"), names);
    KuduPredicate one = KuduPredicate.newComparisonPredicate(schema.getColumn("k"), EQUAL, 8L);
    List<String> cells = read(client.newScannerBuilder(client.openTable("old_renamed")).addPredicate(one)
        .setProjectedColumnNames(Arrays.asList("small", "added", "free")).build());
    Checks.equal("cells", Collections.singletonList("8|7|null"), cells);
    client.alterTable("old_renamed", new AlterTableOptions().renameTable(TABLE));
  }

  private void ranges() throws Exception {
    Schema schema = table().getSchema();
    PartialRow lower = schema.newPartialRow();
    lower.addLong("k", 2 * ROWS);
    PartialRow upper = schema.newPartialRow();
    upper.addLong("k", 4 * ROWS);
    client.alterTable(TABLE, new AlterTableOptions().addRangePartition(lower, upper));
    Operation insert = table().newInsert();
    insert.getRow().addLong("k", 3 * ROWS);
    insert.getRow().addInt("added", 1);
    KuduSession session = client.newSession();
    Checks.holds("an insert into the new range", !session.apply(insert).hasRowError());
    session.close();
    client.alterTable(TABLE, new AlterTableOptions().dropRangePartition(lower, upper));
    Checks.equal("rows", ROWS, read(client.newScannerBuilder(table()).build()).size());
  }

  private void drop() throws Exception {
    client.deleteTable(TABLE);
    Checks.holds("the table exists still", !client.tableExists(TABLE));
  }
}
