//! Pages of a small server.

use std::sync::Arc;

use super::definition::EntityKind;
use super::prometheus::Naming;
use super::query::MetricQuery;
use super::snapshot::{Entity, MetricSnapshot, MetricValue};
use super::{Histogram, MetricRegistry, MetricSource, json, prometheus, table};

fn registry() -> Arc<MetricRegistry> {
    let registry = MetricRegistry::new("kudu.tabletserver");
    let latency = Histogram::default();
    [10, 20, 40, 2_000].iter().for_each(|value| latency.record(*value));
    registry.register(move |out: &mut MetricSnapshot| {
        out.server.attribute("uuid", "07");
        out.server.counter(&table::RPCS_QUEUE_OVERFLOW, 2);
        out.server.of_method(&table::HANDLER_LATENCY, "kudu_tserver_TabletServerService_Write", &latency);
        out.server.gauge(&table::MEMORY_LIMIT, 4096);
        let labels = [("tracker", "a\"b")];
        out.server.labelled(&table::TRACKED_MEMORY, &labels, MetricValue::Integer(7));
        let mut tablet = Entity::new(EntityKind::Tablet, "ab01");
        tablet.attribute("table_name", "orders");
        tablet.counter(&table::ROWS_INSERTED, 5);
        tablet.value(&table::TABLET_STATE, MetricValue::Text("RUNNING".into()));
        tablet.gauge(&table::SAFE_TIME_LAG, 1_500_000);
        out.others.push(tablet);
    });
    registry
}

fn query(text: &str) -> MetricQuery {
    MetricQuery::parse(text).expect("a valid query")
}

#[test]
fn json_is_in_kudus_form() {
    let page = json::render(registry().snapshot(), &query("metrics=rows,state"));
    expect_test::expect![[r#"
        [
          {
            "type": "tablet",
            "id": "ab01",
            "attributes": {
              "table_name": "orders"
            },
            "metrics": [
              {
                "name": "rows_inserted",
                "value": 5
              },
              {
                "name": "state",
                "value": "RUNNING"
              }
            ]
          }
        ]"#]]
    .assert_eq(&page);
}

#[test]
fn json_has_schemas_and_distributions() {
    let asked = "include_schema=1&include_raw_histograms=1&types=server&metrics=handler";
    let page = json::render(registry().snapshot(), &query(asked));
    expect_test::expect![[r#"
        [
          {
            "type": "server",
            "id": "kudu.tabletserver",
            "attributes": {
              "uuid": "07"
            },
            "metrics": [
              {
                "name": "handler_latency_kudu_tserver_TabletServerService_Write",
                "label": "Handler Latency",
                "type": "histogram",
                "unit": "microseconds",
                "description": "Time from the arrival of a call of this method to its reply.",
                "total_count": 4,
                "min": 10,
                "mean": 517.5,
                "percentile_75": 40,
                "percentile_95": 1984,
                "percentile_99": 1984,
                "percentile_99_9": 1984,
                "percentile_99_99": 1984,
                "max": 2000,
                "total_sum": 2070,
                "last": 2000,
                "values": [
                  10,
                  20,
                  40,
                  1984
                ],
                "counts": [
                  1,
                  1,
                  1,
                  1
                ]
              }
            ]
          }
        ]"#]]
    .assert_eq(&page);
}

#[test]
fn text_has_kudus_names_and_our_own() {
    let page = prometheus::render(
        registry().snapshot(),
        &query("metrics=overflow,memory,rows,lag,state"),
        Naming::ByRole,
    );
    expect_test::expect![[r#"
        # HELP kudu_rows_inserted Rows inserted.
        # TYPE kudu_rows_inserted counter
        kudu_rows_inserted{type="tablet", id="ab01", table_name="orders", unit_type="rows"} 5
        # HELP kudu_tserver_rpcs_queue_overflow Calls rejected by a full service queue.
        # TYPE kudu_tserver_rpcs_queue_overflow counter
        kudu_tserver_rpcs_queue_overflow{unit_type="requests"} 2
        # HELP nyala_memory_limit_bytes Limit of tracked memory.
        # TYPE nyala_memory_limit_bytes gauge
        nyala_memory_limit_bytes 4096
        # HELP nyala_safe_time_lag_seconds Time by which the replica's safe time is behind the clock.
        # TYPE nyala_safe_time_lag_seconds gauge
        nyala_safe_time_lag_seconds{type="tablet", id="ab01", table_name="orders"} 1.5
        # HELP nyala_tracked_memory_bytes Tracked memory by consumer.
        # TYPE nyala_tracked_memory_bytes gauge
        nyala_tracked_memory_bytes{tracker="a\"b"} 7
    "#]]
    .assert_eq(&page);
}

#[test]
fn text_has_summaries() {
    let page = prometheus::render(registry().snapshot(), &query("metrics=handler"), Naming::Labelled);
    let name = "kudu_handler_latency_kudu_tserver_TabletServerService_Write";
    let line =
        |start: String| page.lines().find(|line| line.starts_with(&start)).unwrap_or_default().to_owned();
    assert_eq!(line(format!("# TYPE {name}")), format!("# TYPE {name} summary"));
    let labels = "type=\"tserver\", unit_type=\"microseconds\"";
    assert_eq!(
        line(format!("{name}{{{labels}, quantile=\"0.75\"")),
        format!("{name}{{{labels}, quantile=\"0.75\"}} 40")
    );
    assert_eq!(line(format!("{name}_count")), format!("{name}_count{{{labels}}} 4"));
}

#[test]
fn sources_that_are_gone_are_not_asked() {
    let registry = MetricRegistry::new("kudu.master");
    let source: Arc<dyn MetricSource> =
        Arc::new(|out: &mut MetricSnapshot| out.server.gauge(&table::UPTIME, 1));
    registry.register_weak(&source);
    assert_eq!(registry.snapshot().server.samples.len(), 1);
    drop(source);
    assert!(registry.snapshot().server.samples.is_empty());
}
