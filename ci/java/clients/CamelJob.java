import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

import org.apache.camel.CamelContext;
import org.apache.camel.ProducerTemplate;
import org.apache.camel.builder.RouteBuilder;
import org.apache.camel.component.kudu.KuduConstants;
import org.apache.camel.impl.DefaultCamelContext;
import org.apache.kudu.ColumnSchema;
import org.apache.kudu.ColumnSchema.ColumnSchemaBuilder;
import org.apache.kudu.ColumnTypeAttributes;
import org.apache.kudu.Schema;
import org.apache.kudu.Type;
import org.apache.kudu.client.CreateTableOptions;
import org.apache.kudu.client.KuduPredicate;

/** Routes of Camel's Kudu component. Arguments: the masters, the tablet servers' web addresses. */
public final class CamelJob {
  private static final int ROWS = 200;
  private final ProducerTemplate template;
  private final String web;
  private final Schema schema;

  private CamelJob(ProducerTemplate template, String web) {
    this.template = template;
    this.web = web;
    ColumnTypeAttributes length = new ColumnTypeAttributes.ColumnTypeAttributesBuilder().length(20).build();
    schema = new Schema(Arrays.asList(new ColumnSchemaBuilder("k", Type.INT32).key(true).build(),
        new ColumnSchemaBuilder("v", Type.VARCHAR).typeAttributes(length).nullable(true).build(),
        new ColumnSchemaBuilder("day", Type.DATE).nullable(true).build(),
        new ColumnSchemaBuilder("at", Type.UNIXTIME_MICROS).nullable(true).build()));
  }

  public static void main(String[] args) throws Exception {
    CamelContext context = new DefaultCamelContext();
    context.addRoutes(new RouteBuilder() {
      @Override
      public void configure() {
        for (String operation : Arrays.asList("create_table", "insert", "update", "upsert", "delete", "scan")) {
          from("direct:" + operation).to("kudu:" + args[0] + "/camel_rows?operation=" + operation);
        }
      }
    });
    context.start();
    CamelJob job = new CamelJob(context.createProducerTemplate(), args[1]);
    Checks checks = new Checks("camel");
    checks.add("a table is created", job::create);
    checks.add("200 rows with VARCHAR, DATE and TIMESTAMP are inserted and read", job::insert);
    checks.add("a second insert changes nothing", job::insertTwice);
    checks.add("a predicate, columns and a limit", job::scans);
    checks.add("update, upsert, delete", job::operations);
    int code = checks.runAll();
    context.stop();
    System.exit(code);
  }

  private static Map<String, Object> row(int k, String v) {
    Map<String, Object> row = new HashMap<>();
    row.put("k", k);
    row.put("v", v);
    row.put("day", new java.sql.Date(k * 86_400_000L));
    row.put("at", new java.sql.Timestamp(k * 1000L));
    return row;
  }

  @SuppressWarnings("unchecked")
  private List<Map<String, Object>> scan(Map<String, Object> headers) {
    return template.requestBodyAndHeaders("direct:scan", null, headers, List.class);
  }

  private void create() {
    Map<String, Object> headers = new HashMap<>();
    headers.put(KuduConstants.CAMEL_KUDU_SCHEMA, schema);
    headers.put(KuduConstants.CAMEL_KUDU_TABLE_OPTIONS,
        new CreateTableOptions().addHashPartitions(Collections.singletonList("k"), 3).setNumReplicas(3));
    template.requestBodyAndHeaders("direct:create_table", null, headers);
    Checks.equal("rows", 0, scan(new HashMap<>()).size());
  }

  private void insert() {
    for (int k = 0; k < ROWS; k++) {
      template.requestBody("direct:insert", row(k, "row " + k));
    }
    List<Map<String, Object>> rows = new ArrayList<>(scan(new HashMap<>()));
    rows.sort((a, b) -> (Integer) a.get("k") - (Integer) b.get("k"));
    Checks.equal("rows", ROWS, rows.size());
    for (int k = 0; k < ROWS; k++) {
      Map<String, Object> row = rows.get(k);
      Checks.equal("k", k, row.get("k"));
      Checks.equal("v", "row " + k, row.get("v"));
      Checks.equal("day", new java.sql.Date(k * 86_400_000L).toString(), row.get("day").toString());
      Checks.equal("at", new java.sql.Timestamp(k * 1000L), row.get("at"));
    }
  }

  private void insertTwice() {
    Checks.equal("rows", ROWS, scan(new HashMap<>()).size());
    template.requestBody("direct:insert", row(1, "again"));
    Map<String, Object> headers = equalTo(1);
    Checks.equal("the first row stays", "row 1", scan(headers).get(0).get("v"));
  }

  private Map<String, Object> equalTo(int k) {
    Map<String, Object> headers = new HashMap<>();
    ColumnSchema column = schema.getColumn("k");
    headers.put(KuduConstants.CAMEL_KUDU_SCAN_PREDICATE,
        KuduPredicate.newComparisonPredicate(column, KuduPredicate.ComparisonOp.EQUAL, (long) k));
    return headers;
  }

  private void scans() throws Exception {
    long before = Checks.counter(web, "scanner_rows_returned");
    Checks.equal("one row", "row 7", scan(equalTo(7)).get(0).get("v"));
    Checks.equal("rows that servers returned", 1L, Checks.counter(web, "scanner_rows_returned") - before);
    Map<String, Object> headers = new HashMap<>();
    headers.put(KuduConstants.CAMEL_KUDU_SCAN_COLUMN_NAMES, Collections.singletonList("v"));
    headers.put(KuduConstants.CAMEL_KUDU_SCAN_LIMIT, 5L);
    List<Map<String, Object>> rows = scan(headers);
    Checks.equal("a limit", 5, rows.size());
    Checks.equal("columns", Collections.singleton("v"), rows.get(0).keySet());
  }

  private void operations() {
    template.requestBody("direct:update", row(2, "updated"));
    template.requestBody("direct:upsert", row(3, "upserted"));
    template.requestBody("direct:upsert", row(ROWS, "new"));
    Map<String, Object> key = new HashMap<>();
    key.put("k", 4);
    template.requestBody("direct:delete", key);
    Checks.equal("updated", "updated", scan(equalTo(2)).get(0).get("v"));
    Checks.equal("upserted", "upserted", scan(equalTo(3)).get(0).get("v"));
    Checks.equal("deleted", 0, scan(equalTo(4)).size());
    Checks.equal("rows", ROWS, scan(new HashMap<>()).size());
  }
}
