import java.util.ArrayList;
import java.util.Arrays;
import java.util.BitSet;
import java.util.List;

import org.apache.kudu.ColumnSchema;
import org.apache.kudu.ColumnSchema.ColumnSchemaBuilder;
import org.apache.kudu.Type;
import org.apache.kudu.client.AsyncKuduScanner.ReadMode;
import org.apache.kudu.client.Insert;
import org.apache.kudu.client.KuduClient;
import org.apache.kudu.client.KuduException;
import org.apache.kudu.client.KuduScanner;
import org.apache.kudu.client.KuduSession;
import org.apache.kudu.client.KuduTable;
import org.apache.kudu.client.OperationResponse;
import org.apache.kudu.client.RowResult;
import org.apache.kudu.client.SessionConfiguration.FlushMode;

/**
 * An application that writes while servers fail: {@code Nemesis MASTERS TABLE} inserts the numbers from 0 on, one after
 * another, until its standard input ends. Then it reads them all back. Each insert that was acknowledged must be there
 * once; one whose outcome is not known may be. An insert that is answered with "already present" was made twice.
 */
public final class Nemesis {
  private Nemesis() {
  }

  public static void main(String[] args) throws Exception {
    List<ColumnSchema> columns =
        Arrays.asList(new ColumnSchemaBuilder("text", Type.STRING).nullable(true).build());
    WritingProgram.run(args[0], args[1], 3, columns, Nemesis::run);
  }

  private static int run(KuduClient client, KuduTable table) throws Exception {
    BitSet acknowledged = new BitSet();
    List<String> wrong = new ArrayList<>();
    int unknown = 0;
    int next = 0;
    long slowest = 0;
    KuduSession session = client.newSession();
    session.setFlushMode(FlushMode.AUTO_FLUSH_SYNC);
    while (!WritingProgram.isTold()) {
      Insert insert = table.newInsert();
      insert.getRow().addLong("key", next);
      insert.getRow().addString("text", "row " + next);
      long start = System.nanoTime();
      try {
        OperationResponse response = session.apply(insert);
        if (response.hasRowError()) {
          wrong.add(next + ": " + response.getRowError().getErrorStatus());
        } else {
          acknowledged.set(next);
        }
      } catch (KuduException e) {
        unknown++;
        System.out.println("unknown " + next + ": " + e.getStatus());
      }
      slowest = Math.max(slowest, System.nanoTime() - start);
      next++;
    }
    session.close();
    int[] seen = read(client, table, next);
    for (int key = 0; key < next; key++) {
      if (acknowledged.get(key) && seen[key] != 1) {
        wrong.add(key + ": acknowledged, and there " + seen[key] + " times");
      } else if (seen[key] > 1) {
        wrong.add(key + ": there " + seen[key] + " times");
      }
    }
    System.out.printf(
        "rows acknowledged: %d, outcome unknown: %d, slowest insert: %d ms%n",
        acknowledged.cardinality(), unknown, slowest / 1_000_000);
    wrong.stream().limit(20).forEach(line -> System.out.println("WRONG " + line));
    return wrong.isEmpty() && !acknowledged.isEmpty() ? 0 : 1;
  }

  /** How often each number is there. */
  private static int[] read(KuduClient client, KuduTable table, int count) throws KuduException {
    int[] seen = new int[count];
    KuduScanner scanner = client.newScannerBuilder(table)
        .readMode(ReadMode.READ_YOUR_WRITES)
        .setProjectedColumnNames(Arrays.asList("key"))
        .build();
    while (scanner.hasMoreRows()) {
      for (RowResult row : scanner.nextRows()) {
        seen[(int) row.getLong(0)]++;
      }
    }
    return seen;
  }
}
