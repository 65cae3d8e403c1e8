import java.io.IOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;

import org.apache.kudu.ColumnSchema;
import org.apache.kudu.ColumnSchema.ColumnSchemaBuilder;
import org.apache.kudu.Schema;
import org.apache.kudu.Type;
import org.apache.kudu.client.CreateTableOptions;
import org.apache.kudu.client.KuduClient;
import org.apache.kudu.client.KuduException;
import org.apache.kudu.client.KuduTable;

/**
 * Frame of the programs that write while servers fail: it connects, makes the table, prints "writing", and ends with
 * the exit code of the work. The work writes until the standard input ends.
 */
final class WritingProgram {
  private static volatile boolean told;

  /** Work of one program. */
  interface Work {
    /** Writes to a new table until {@link WritingProgram#isTold}, and checks it; returns the exit code. */
    int run(KuduClient client, KuduTable table) throws Exception;
  }

  private WritingProgram() {
  }

  /** Returns true once the standard input has ended. */
  static boolean isTold() {
    return told;
  }

  /** Runs the work on a table of these columns after an INT64 key, hashed by the key. Does not return. */
  static void run(String masters, String table, int buckets, List<ColumnSchema> columns, Work work)
      throws Exception {
    listen();
    int code;
    try (KuduClient client =
        new KuduClient.KuduClientBuilder(masters).defaultOperationTimeoutMs(60_000).build()) {
      KuduTable created = create(client, table, buckets, columns);
      System.out.println("writing");
      code = work.run(client, created);
    }
    System.exit(code);
  }

  private static void listen() {
    Thread listener = new Thread(() -> {
      try {
        while (System.in.read() >= 0) {
          // Only the end counts.
        }
      } catch (IOException e) {
        // As good as the end.
      }
      told = true;
    });
    listener.setDaemon(true);
    listener.start();
  }

  private static KuduTable create(KuduClient client, String name, int buckets, List<ColumnSchema> columns)
      throws KuduException {
    List<ColumnSchema> all = new ArrayList<>();
    all.add(new ColumnSchemaBuilder("key", Type.INT64).key(true).build());
    all.addAll(columns);
    CreateTableOptions options = new CreateTableOptions()
        .addHashPartitions(Arrays.asList("key"), buckets)
        .setNumReplicas(3);
    return client.createTable(name, new Schema(all), options);
  }
}
