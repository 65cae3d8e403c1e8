//! Grafana's dashboards, made from the table of metrics: overview, server, tables.
//!
//! A counter is shown as its rate, a gauge as it is. A distribution is shown by the values of the last minutes, because
//! one since the start would hide a change: nyala's own as its 99th percentile, Kudu's, which have no buckets, as the
//! mean.

use serde_json::{Value, json};

use super::definition::{EntityKind, MetricDef, MetricKind, MetricLevel};
use super::prometheus::names_of;
use super::table::{self, METRICS};

/// A dashboard: its file's name and its JSON.
pub struct Dashboard {
    pub file: &'static str,
    pub json: Value,
}

/// Metrics of the overview: first those that say that the cluster is well, then load, then resources.
static OVERVIEW: &[&MetricDef] = &[
    &table::CATALOG_TABLET_SERVERS,
    &table::CATALOG_TABLET_SERVERS_ALIVE,
    &table::RAFT_LEADERLESS_TABLETS,
    &table::CATALOG_TABLETS_UNDER_REPLICATED,
    &table::RAFT_REPLICA_LAG,
    &table::TABLETS_NUM_FAILED,
    &table::CLOCK_TRUSTED,
    &table::ROWS_INSERTED,
    &table::SCANNER_ROWS_RETURNED,
    &table::LOG_SYNC_LATENCY,
    &table::RPC_INCOMING_QUEUE_TIME,
    &table::RPCS_QUEUE_OVERFLOW,
    &table::MEMORY_REJECTIONS,
    &table::MEMORY_USAGE,
    &table::DISK_FREE,
    &table::CPU_UTIME,
    &table::WORKERS_BUSY,
    &table::COPIES_FAILED,
];

/// Metrics of single methods.
const OF_METHODS: [&str; 3] = ["handler_latency", "queue_overflow_rejections", "timed_out_on_response"];

/// Returns all dashboards.
pub fn all() -> Vec<Dashboard> {
    let of = |kinds: &[EntityKind]| -> Vec<&'static MetricDef> {
        let shown = |def: &&&'static MetricDef| {
            // The end of their names is not known here.
            kinds.contains(&def.entity) && def.level >= MetricLevel::Info && !OF_METHODS.contains(&def.name)
        };
        METRICS.iter().filter(shown).copied().collect()
    };
    vec![
        dashboard("overview", "nyala: overview", OVERVIEW),
        dashboard("server", "nyala: server", &of(&[EntityKind::Server])),
        dashboard("tables", "nyala: tables", &of(&[EntityKind::Table, EntityKind::Tablet])),
    ]
}

fn dashboard(uid: &'static str, title: &str, defs: &[&'static MetricDef]) -> Dashboard {
    // The state of a tablet is a text, which Prometheus does not have.
    let drawn = defs.iter().filter(|def| def.name != table::TABLET_STATE.name);
    let panels: Vec<Value> = drawn.enumerate().map(|(at, def)| panel(at, def)).collect();
    let file = match uid {
        "overview" => "overview.json",
        "server" => "server.json",
        _ => "tables.json",
    };
    let variable = json!({
        "name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source",
    });
    let json = json!({
        "uid": format!("nyala-{uid}"),
        "title": title,
        "tags": ["nyala"],
        "schemaVersion": 39,
        "editable": true,
        "refresh": "30s",
        "time": { "from": "now-1h", "to": "now" },
        "templating": { "list": [variable] },
        "panels": panels,
    });
    Dashboard { file, json }
}

const COLUMNS: usize = 3;
const WIDTH: usize = 8;
const HEIGHT: usize = 7;

fn panel(at: usize, def: &MetricDef) -> Value {
    let target = |(at, name): (usize, String)| {
        let letter = char::from(b'A' + at as u8);
        json!({ "refId": letter.to_string(), "expr": expression(def, &name), "legendFormat": legend(def) })
    };
    json!({
        "id": at + 1,
        "type": "timeseries",
        "title": def.help.trim_end_matches('.'),
        "description": format!("{} ({}{})", def.name, def.unit, statistic(def)),
        "datasource": { "type": "prometheus", "uid": "${datasource}" },
        "gridPos": { "x": at % COLUMNS * WIDTH, "y": at / COLUMNS * HEIGHT, "w": WIDTH, "h": HEIGHT },
        "fieldConfig": { "defaults": { "unit": unit(def), "min": 0 }, "overrides": [] },
        "targets": names_of(def).into_iter().enumerate().map(target).collect::<Vec<_>>(),
    })
}

/// Returns the query of a panel.
pub fn expression(def: &MetricDef, name: &str) -> String {
    match (def.kind, def.own) {
        (MetricKind::Counter, _) => format!("rate({name}[5m])"),
        (MetricKind::Gauge, _) => name.to_owned(),
        (MetricKind::Histogram, false) => format!("rate({name}_sum[5m]) / rate({name}_count[5m])"),
        (MetricKind::Histogram, true) => {
            format!("histogram_quantile(0.99, sum by (le, instance) (rate({name}_bucket[5m])))")
        }
    }
}

/// Returns the statistic of a distribution that a panel shows.
fn statistic(def: &MetricDef) -> &'static str {
    match (def.kind, def.own) {
        (MetricKind::Histogram, false) => ", mean of 5 minutes",
        (MetricKind::Histogram, true) => ", 99th percentile of 5 minutes",
        _ => "",
    }
}

fn legend(def: &MetricDef) -> &'static str {
    match def.entity {
        EntityKind::Server => "{{instance}} {{dir}}{{tracker}}",
        EntityKind::Table | EntityKind::Tablet => "{{table_name}} {{instance}}",
    }
}

/// Returns Grafana's unit.
fn unit(def: &MetricDef) -> &'static str {
    match (def.unit, def.own, def.kind) {
        ("bytes", _, MetricKind::Counter) => "Bps",
        ("bytes", _, _) => "bytes",
        ("microseconds", true, _) | ("seconds", _, _) => "s",
        ("microseconds", false, _) => "µs",
        ("milliseconds", _, _) => "ms",
        _ => "short",
    }
}
