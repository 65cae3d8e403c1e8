import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;

import org.apache.kudu.ColumnSchema;
import org.apache.kudu.ColumnSchema.ColumnSchemaBuilder;
import org.apache.kudu.Type;
import org.apache.kudu.client.AsyncKuduScanner.ReadMode;
import org.apache.kudu.client.KuduClient;
import org.apache.kudu.client.KuduException;
import org.apache.kudu.client.KuduScanner;
import org.apache.kudu.client.KuduSession;
import org.apache.kudu.client.KuduTable;
import org.apache.kudu.client.Operation;
import org.apache.kudu.client.OperationResponse;
import org.apache.kudu.client.RowError;
import org.apache.kudu.client.RowResult;
import org.apache.kudu.client.SessionConfiguration.FlushMode;

/**
 * An application that writes and reads while servers fail: {@code Soak MASTERS TABLE SEED} upserts and deletes rows in
 * batches, and reads the table back between batches, until its standard input ends. A row is as its last acknowledged
 * write left it. A row whose last write has an unknown outcome may be as before or after it, and is not written again.
 * The program ends at once with code 1 when a read finds anything else.
 */
public final class Soak {
  private static final int KEYS = 10_000;
  private static final int BATCH = 50;
  private static final long PAUSE_MS = 100;
  private static final long READ_INTERVAL_MS = 10_000;
  private static final long LAST_READ_MS = 120_000;
  private static final long DELETED = -1;

  private final KuduClient client;
  private final KuduTable table;
  private final KuduSession session;
  private final Random random;
  /** Version of each row by its last acknowledged write; DELETED if that was a delete. */
  private final Map<Long, Long> settled = new HashMap<>();
  /** Version that a write of unknown outcome would have left. */
  private final Map<Long, Long> unknown = new HashMap<>();
  private final List<String> wrong = new ArrayList<>();
  private long version;
  private long acknowledged;
  private long reads;
  private long failedReads;
  private long rowsRead;
  private long slowestMs;

  private Soak(KuduClient client, KuduTable table, long seed) {
    this.client = client;
    this.table = table;
    session = client.newSession();
    session.setFlushMode(FlushMode.MANUAL_FLUSH);
    random = new Random(seed);
  }

  public static void main(String[] args) throws Exception {
    List<ColumnSchema> columns = Arrays.asList(
        new ColumnSchemaBuilder("version", Type.INT64).build(),
        new ColumnSchemaBuilder("text", Type.STRING).build());
    WritingProgram.run(args[0], args[1], 6, columns,
        (client, table) -> new Soak(client, table, Long.parseLong(args[2])).run());
  }

  private int run() throws InterruptedException {
    long lastRead = System.nanoTime();
    while (!WritingProgram.isTold() && wrong.isEmpty()) {
      long start = System.nanoTime();
      writeBatch();
      slowestMs = Math.max(slowestMs, (System.nanoTime() - start) / 1_000_000);
      if (System.nanoTime() - lastRead > READ_INTERVAL_MS * 1_000_000) {
        readAll();
        lastRead = System.nanoTime();
      }
      Thread.sleep(PAUSE_MS);
    }
    long start = System.nanoTime();
    while (wrong.isEmpty() && !readAll()) {
      if (System.nanoTime() - start > LAST_READ_MS * 1_000_000) {
        wrong.add("the last read failed for " + LAST_READ_MS + " ms");
      }
      Thread.sleep(1000);
    }
    System.out.printf(
        "Java client: %d writes acknowledged, %d of unknown outcome, %d rows checked by %d reads, %d reads failed, "
            + "slowest batch %d ms%n",
        acknowledged, unknown.size(), rowsRead, reads, failedReads, slowestMs);
    wrong.stream().limit(20).forEach(line -> System.out.println("WRONG " + line));
    return wrong.isEmpty() && acknowledged > 0 ? 0 : 1;
  }

  /** Writes a batch of distinct rows, a few of them deletes. */
  private void writeBatch() {
    Map<Operation, Long> written = new IdentityHashMap<>();
    Map<Long, Long> versions = new HashMap<>();
    try {
      while (versions.size() < BATCH) {
        long key = random.nextInt(KEYS + unknown.size());
        if (unknown.containsKey(key) || versions.containsKey(key)) {
          continue;
        }
        boolean there = settled.getOrDefault(key, DELETED) != DELETED;
        long next = there && random.nextInt(10) == 0 ? DELETED : ++version;
        Operation operation = operation(key, next);
        versions.put(key, next);
        written.put(operation, key);
        session.apply(operation);
      }
      settle(session.flush(), written, versions);
    } catch (KuduException e) {
      System.out.println("unknown: a batch: " + e.getStatus());
      unknown.putAll(versions);
    }
  }

  private Operation operation(long key, long next) {
    Operation operation = next == DELETED ? table.newDelete() : table.newUpsert();
    operation.getRow().addLong("key", key);
    if (next != DELETED) {
      operation.getRow().addLong("version", next);
      operation.getRow().addString("text", text(key, next));
    }
    return operation;
  }

  private static String text(long key, long version) {
    return "row " + key + " version " + version;
  }

  /** Records the outcome of each row of a batch. */
  private void settle(
      List<OperationResponse> responses, Map<Operation, Long> written, Map<Long, Long> versions) {
    if (responses.size() != written.size()) {
      wrong.add("a batch of " + written.size() + " rows has " + responses.size() + " responses");
    }
    for (OperationResponse response : responses) {
      if (response.hasRowError()) {
        RowError error = response.getRowError();
        long key = written.get(error.getOperation());
        unknown.put(key, versions.remove(key));
        String line = key + ": " + error.getErrorStatus();
        System.out.println("unknown: " + line);
        if (error.getErrorStatus().isNotFound() || error.getErrorStatus().isAlreadyPresent()) {
          wrong.add("a delete of a row that is there, or it was made twice: " + line);
        }
      }
    }
    settled.putAll(versions);
    acknowledged += versions.size();
  }

  /** Reads all rows and compares them; returns false if they cannot be read now. */
  private boolean readAll() {
    Map<Long, Long> seen = new HashMap<>();
    try {
      KuduScanner scanner = client.newScannerBuilder(table).readMode(ReadMode.READ_YOUR_WRITES).build();
      while (scanner.hasMoreRows()) {
        for (RowResult row : scanner.nextRows()) {
          long key = row.getLong("key");
          long found = row.getLong("version");
          if (seen.put(key, found) != null) {
            wrong.add(key + ": there twice");
          }
          if (!row.getString("text").equals(text(key, found))) {
            wrong.add(key + ": version " + found + " has the text " + row.getString("text"));
          }
        }
      }
    } catch (KuduException e) {
      System.out.println("a read failed: " + e.getStatus());
      failedReads++;
      return false;
    }
    Set<Long> keys = new HashSet<>(seen.keySet());
    keys.addAll(settled.keySet());
    for (long key : keys) {
      compare(key, seen.getOrDefault(key, DELETED));
    }
    reads++;
    rowsRead += seen.size();
    return true;
  }

  private void compare(long key, long found) {
    long before = settled.getOrDefault(key, DELETED);
    if (found == before) {
      return;
    }
    Long after = unknown.get(key);
    if (after != null && after == found) {
      // What was seen once stays.
      settled.put(key, found);
      return;
    }
    wrong.add(key + ": acknowledged version " + before + ", unknown " + after + ", found " + found
        + " (" + DELETED + ": none)");
  }
}
