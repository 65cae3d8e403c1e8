import java.util.Arrays;
import java.util.Collections;
import java.util.TreeMap;
import java.util.function.IntFunction;

import org.apache.kudu.ColumnSchema.ColumnSchemaBuilder;
import org.apache.kudu.Schema;
import org.apache.kudu.Type;
import org.apache.kudu.client.CreateTableOptions;
import org.apache.kudu.client.KuduClient;
import org.apache.kudu.client.KuduScanner;
import org.apache.kudu.client.KuduTable;
import org.apache.kudu.client.RowResult;
import org.apache.nifi.processors.kudu.PutKudu;
import org.apache.nifi.serialization.record.MockRecordParser;
import org.apache.nifi.serialization.record.RecordFieldType;
import org.apache.nifi.util.TestRunner;
import org.apache.nifi.util.TestRunners;

/** NiFi's PutKudu in its own test runner. Argument: the masters. */
public final class NifiJob {
  private static final int ROWS = 3000;
  private static final String TABLE = "nifi_rows";
  private final String masters;
  private final KuduClient client;

  private NifiJob(String masters) {
    this.masters = masters;
    client = new KuduClient.KuduClientBuilder(masters).build();
  }

  public static void main(String[] args) throws Exception {
    NifiJob job = new NifiJob(args[0]);
    Checks checks = new Checks("nifi");
    checks.add("3,000 rows are inserted, in three flush modes", job::insert);
    checks.add("UPSERT, UPDATE, INSERT_IGNORE, DELETE, DELETE_IGNORE", job::operations);
    checks.add("an INSERT of rows of which some are there fails, and the others are written", job::failingInsert);
    checks.add("a DELETE and an UPDATE of no row fail", job::failingChanges);
    checks.add("schema drift adds a column", job::drift);
    int code = checks.runAll();
    job.client.close();
    System.exit(code);
  }

  private void insert() throws Exception {
    Schema schema = new Schema(Arrays.asList(new ColumnSchemaBuilder("k", Type.INT32).key(true).build(),
        new ColumnSchemaBuilder("v", Type.STRING).nullable(true).build(),
        new ColumnSchemaBuilder("d", Type.DOUBLE).nullable(true).build()));
    client.createTable(TABLE, schema,
        new CreateTableOptions().addHashPartitions(Collections.singletonList("k"), 3).setNumReplicas(3));
    String[] modes = {"AUTO_FLUSH_SYNC", "AUTO_FLUSH_BACKGROUND", "MANUAL_FLUSH"};
    int each = ROWS / modes.length;
    for (int i = 0; i < modes.length; i++) {
      put("INSERT", modes[i], i * each, (i + 1) * each, k -> "row " + k).assertAllFlowFilesTransferred("success");
    }
    TreeMap<Integer, String> rows = rows();
    Checks.equal("rows", ROWS, rows.size());
    for (int k = 0; k < ROWS; k++) {
      Checks.equal("row " + k, "row " + k + " " + k / 4.0, rows.get(k));
    }
  }

  private void operations() throws Exception {
    put("UPSERT", 10, 20, k -> "upserted").assertAllFlowFilesTransferred("success");
    put("UPSERT", ROWS, ROWS + 5, k -> "new").assertAllFlowFilesTransferred("success");
    put("UPDATE", 20, 30, k -> "updated").assertAllFlowFilesTransferred("success");
    put("INSERT_IGNORE", 25, 35, k -> "ignored").assertAllFlowFilesTransferred("success");
    put("DELETE", 40, 45, k -> "").assertAllFlowFilesTransferred("success");
    put("DELETE_IGNORE", 40, 50, k -> "").assertAllFlowFilesTransferred("success");
    TreeMap<Integer, String> rows = rows();
    Checks.equal("rows", ROWS + 5 - 10, rows.size());
    Checks.equal("upserted", "upserted 2.5", rows.get(10));
    Checks.equal("new", "new 750.0", rows.get(ROWS));
    Checks.equal("updated", "updated 5.0", rows.get(20));
    Checks.equal("updated, and not inserted", "updated 6.25", rows.get(25));
    Checks.equal("neither", "row 30 7.5", rows.get(30));
    Checks.holds("deleted", rows.subMap(40, 50).isEmpty());
  }

  private void failingInsert() throws Exception {
    put("INSERT", 48, 52, k -> "again").assertAllFlowFilesTransferred("failure");
    TreeMap<Integer, String> rows = rows();
    Checks.equal("a row that was not there", "again 12.0", rows.get(48));
    Checks.equal("a row that was there", "row 50 12.5", rows.get(50));
  }

  private void failingChanges() throws Exception {
    put("DELETE", 40, 41, k -> "").assertAllFlowFilesTransferred("failure");
    put("UPDATE", 40, 41, k -> "").assertAllFlowFilesTransferred("failure");
    Checks.holds("no row came to be", !rows().containsKey(40));
  }

  private void drift() throws Exception {
    MockRecordParser reader = new MockRecordParser();
    reader.addSchemaField("k", RecordFieldType.INT);
    reader.addSchemaField("v", RecordFieldType.STRING);
    reader.addSchemaField("added", RecordFieldType.LONG);
    reader.addRecord(9000, "drifted", 77L);
    TestRunner runner = runner("UPSERT", "AUTO_FLUSH_SYNC", reader);
    runner.setProperty("Handle Schema Drift", "true");
    run(runner).assertAllFlowFilesTransferred("success");
    KuduTable table = client.openTable(TABLE);
    Checks.equal("its type", Type.INT64, table.getSchema().getColumn("added").getType());
    KuduScanner scanner = client.newScannerBuilder(table).build();
    long sum = 0;
    for (RowResult row : scanner) {
      sum += row.isNull("added") ? 0 : row.getLong("added");
    }
    Checks.equal("the only value", 77L, sum);
  }

  private TestRunner put(String operation, int from, int to, IntFunction<String> value) throws Exception {
    return put(operation, "AUTO_FLUSH_BACKGROUND", from, to, value);
  }

  /** Sends one flow file with a record for each key. */
  private TestRunner put(String operation, String mode, int from, int to, IntFunction<String> value)
      throws Exception {
    MockRecordParser reader = new MockRecordParser();
    reader.addSchemaField("k", RecordFieldType.INT);
    if (!operation.startsWith("DELETE")) {
      reader.addSchemaField("v", RecordFieldType.STRING);
      reader.addSchemaField("d", RecordFieldType.DOUBLE);
    }
    for (int k = from; k < to; k++) {
      if (operation.startsWith("DELETE")) {
        reader.addRecord(k);
      } else {
        reader.addRecord(k, value.apply(k), k / 4.0);
      }
    }
    return run(runner(operation, mode, reader));
  }

  private TestRunner runner(String operation, String mode, MockRecordParser reader) throws Exception {
    TestRunner runner = TestRunners.newTestRunner(new PutKudu());
    runner.setProperty("Kudu Masters", masters);
    runner.setProperty("Table Name", TABLE);
    runner.setProperty("record-reader", "records");
    runner.setProperty("Insert Operation", operation);
    runner.setProperty("Flush Mode", mode);
    runner.addControllerService("records", reader);
    runner.enableControllerService(reader);
    return runner;
  }

  private static TestRunner run(TestRunner runner) {
    runner.enqueue("records");
    runner.run();
    return runner;
  }

  private TreeMap<Integer, String> rows() throws Exception {
    TreeMap<Integer, String> rows = new TreeMap<>();
    for (RowResult row : client.newScannerBuilder(client.openTable(TABLE)).build()) {
      Checks.holds("a key twice", rows.put(row.getInt("k"), row.getString("v") + " " + row.getDouble("d")) == null);
    }
    return rows;
  }
}
