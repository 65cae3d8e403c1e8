import java.util.Arrays;
import java.util.Collections;
import java.util.List;

import org.apache.beam.sdk.Pipeline;
import org.apache.beam.sdk.coders.StringUtf8Coder;
import org.apache.beam.sdk.io.GenerateSequence;
import org.apache.beam.sdk.io.kudu.KuduIO;
import org.apache.beam.sdk.io.kudu.TableAndRecord;
import org.apache.beam.sdk.options.PipelineOptionsFactory;
import org.apache.beam.sdk.testing.PAssert;
import org.apache.beam.sdk.transforms.Count;
import org.apache.beam.sdk.transforms.SerializableFunction;
import org.apache.beam.sdk.values.PCollection;
import org.apache.kudu.ColumnSchema.ColumnSchemaBuilder;
import org.apache.kudu.Schema;
import org.apache.kudu.Type;
import org.apache.kudu.client.CreateTableOptions;
import org.apache.kudu.client.KuduClient;
import org.apache.kudu.client.KuduPredicate;
import org.apache.kudu.client.Operation;
import org.apache.kudu.client.RowResult;

/** Pipelines of Beam's KuduIO on its direct runner. Arguments: the masters, the tablet servers' web addresses. */
public final class BeamJob {
  private static final long ROWS = 10_000;
  private static final String TABLE = "beam_rows";

  private final String masters;
  private final String web;

  private BeamJob(String masters, String web) {
    this.masters = masters;
    this.web = web;
  }

  public static void main(String[] args) {
    BeamJob job = new BeamJob(args[0], args[1]);
    Checks checks = new Checks("beam");
    checks.add("10,000 rows are written", job::write);
    checks.add("all rows are read", job::readAll);
    checks.add("a projection and a predicate are pushed down", job::readSome);
    checks.add("rows are read by a fault-tolerant scan in small batches", job::readSlowly);
    checks.add("upserts change rows, and a second insert fails the pipeline", job::upsert);
    checks.add("rows are deleted", job::delete);
    System.exit(checks.runAll());
  }

  // Beam asks for the names of these classes, so they cannot be lambdas.

  private static final class Insert implements KuduIO.FormatFunction<Long> {
    @Override
    public Operation apply(TableAndRecord<Long> input) {
      return fill(input.getTable().newInsert(), input.getRecord(), "row ");
    }
  }

  private static final class Upsert implements KuduIO.FormatFunction<Long> {
    @Override
    public Operation apply(TableAndRecord<Long> input) {
      return fill(input.getTable().newUpsert(), input.getRecord(), "changed ");
    }
  }

  private static final class Delete implements KuduIO.FormatFunction<Long> {
    @Override
    public Operation apply(TableAndRecord<Long> input) {
      Operation delete = input.getTable().newDelete();
      delete.getRow().addLong("k", input.getRecord());
      return delete;
    }
  }

  private static final class Text implements SerializableFunction<RowResult, String> {
    @Override
    public String apply(RowResult row) {
      return row.getString("s");
    }
  }

  private static Operation fill(Operation operation, long k, String word) {
    operation.getRow().addLong("k", k);
    operation.getRow().addString("s", word + k);
    return operation;
  }

  private static Schema schema() {
    return new Schema(Arrays.asList(new ColumnSchemaBuilder("k", Type.INT64).key(true).build(),
        new ColumnSchemaBuilder("s", Type.STRING).nullable(true).build()));
  }

  private void write(KuduIO.FormatFunction<Long> format, long from, long to) {
    Pipeline pipeline = Pipeline.create(PipelineOptionsFactory.create());
    KuduIO.Write<Long> write = KuduIO.write();
    pipeline.apply(GenerateSequence.from(from).to(to))
        .apply(write.withMasterAddresses(masters).withTable(TABLE).withFormatFn(format));
    pipeline.run().waitUntilFinish();
  }

  private KuduIO.Read<String> read() {
    return KuduIO.<String>read().withMasterAddresses(masters).withTable(TABLE).withParseFn(new Text())
        .withCoder(StringUtf8Coder.of());
  }

  /** Reads and checks the number of rows, and some of them if there are few. */
  private static void check(KuduIO.Read<String> read, long count, List<String> rows) {
    Pipeline pipeline = Pipeline.create(PipelineOptionsFactory.create());
    PCollection<String> texts = pipeline.apply(read);
    PAssert.thatSingleton(texts.apply(Count.globally())).isEqualTo(count);
    if (!rows.isEmpty()) {
      PAssert.that(texts).containsInAnyOrder(rows);
    }
    pipeline.run().waitUntilFinish();
  }

  private void write() throws Exception {
    try (KuduClient client = new KuduClient.KuduClientBuilder(masters).build()) {
      client.createTable(TABLE, schema(), new CreateTableOptions()
          .addHashPartitions(Collections.singletonList("k"), 3).setNumReplicas(3));
    }
    write(new Insert(), 0, ROWS);
  }

  private void readAll() {
    check(read(), ROWS, Collections.emptyList());
  }

  private void readSome() throws Exception {
    long before = Checks.counter(web, "scanner_rows_returned");
    KuduPredicate few = KuduPredicate.newComparisonPredicate(schema().getColumn("k"),
        KuduPredicate.ComparisonOp.LESS, 3L);
    check(read().withPredicates(Collections.singletonList(few)).withProjectedColumns(Collections.singletonList("s")), 3,
        Arrays.asList("row 0", "row 1", "row 2"));
    Checks.equal("rows that servers returned", 3L, Checks.counter(web, "scanner_rows_returned") - before);
  }

  private void readSlowly() {
    check(read().withFaultTolerent(true).withBatchSize(10_000), ROWS, Collections.emptyList());
  }

  private void upsert() {
    write(new Upsert(), ROWS - 2, ROWS + 2);
    KuduPredicate last = KuduPredicate.newComparisonPredicate(schema().getColumn("k"),
        KuduPredicate.ComparisonOp.GREATER_EQUAL, ROWS - 3);
    check(read().withPredicates(Collections.singletonList(last)), 5, Arrays.asList("row " + (ROWS - 3),
        "changed " + (ROWS - 2), "changed " + (ROWS - 1), "changed " + ROWS, "changed " + (ROWS + 1)));
    Checks.fails("a second insert", "error(s) occurred writing to Kudu", () -> write(new Insert(), 0, 1));
  }

  private void delete() {
    write(new Delete(), 10, ROWS + 2);
    check(read(), 10, Collections.emptyList());
  }
}
