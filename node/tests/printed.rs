//! Snapshots of output for users: help, tables, placement, errors, metric names.
//!
//! `cargo ci bless` rewrites the snapshots; review the diff. Ids and addresses differ from run to run and are replaced
//! by placeholders.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the test observes the program from outside"
)]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Output};

use common::{nyala, stop, up};
use nyala_common::metrics::dashboards;
use nyala_common::metrics::definition::{EntityKind, MetricDef, MetricKind};
use nyala_common::metrics::prometheus::names_of;
use nyala_common::metrics::table::METRICS;

mod common;

/// A running cluster with two tablet servers.
struct Running {
    child: Child,
    printed: String,
    masters: String,
    dir: String,
}

impl Running {
    fn new(dir: &Path) -> Running {
        let data = dir.join("data");
        let (child, printed) = up(&data, &["--tablet-servers=2"]);
        let line = printed.lines().find(|line| line.contains("--masters")).expect("an example");
        let masters = line.rsplit(' ').next().expect("it ends with them").to_string();
        Running { child, masters, printed, dir: dir.to_str().expect("UTF-8").to_string() }
    }

    /// Runs a command. Returns the command line and its output.
    fn transcript(&self, words: &[&str]) -> String {
        let Output { status, stdout, stderr } =
            nyala(words).args(["--masters", &self.masters]).output().expect("the program");
        let out = String::from_utf8(stdout).expect("UTF-8") + &String::from_utf8(stderr).expect("UTF-8");
        let code = status.code().expect("it was not killed");
        let exit = if code == 0 { String::new() } else { format!("exit code {code}\n") };
        let text = out.replace(&self.masters, "<masters>").replace(&self.dir, "<dir>");
        let command = words.join(" ").replace(" --", " \\\n    --").replace(&self.dir, "<dir>");
        format!("$ nyala {command}\n{exit}{}\n", mask_size(&mask_ids(&text)))
    }

    /// Returns the metrics page of each server, masters first.
    fn pages(&self) -> Vec<String> {
        let urls = self.printed.split_whitespace().filter_map(|word| word.strip_prefix("http://"));
        let addresses = urls.filter_map(|url| url.strip_suffix("/metrics"));
        addresses.map(|address| page(address, "/metrics")).collect()
    }
}

fn page(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("the web port");
    write!(stream, "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").expect("it listens");
    let mut response = String::new();
    stream.read_to_string(&mut response).expect("a page");
    response
}

/// Replaces ids, which are words of 32 hexadecimal digits.
/// Replaces the owner and the size of a table: the size grows with the reports of its tablets, each at least a log
/// segment.
fn mask_size(text: &str) -> String {
    let mask = |line: &str| match line {
        _ if line.starts_with("ON DISK about ") => "ON DISK about <size>\n".to_string(),
        // The commands act as the user who runs them.
        _ if line.starts_with("OWNER ") => "OWNER <user>\n".to_string(),
        _ => line.to_string(),
    };
    text.split_inclusive('\n').map(mask).collect()
}

fn mask_ids(text: &str) -> String {
    let is_id = |word: &str| word.len() == 32 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
    let mut shown = String::new();
    for line in text.split_inclusive('\n') {
        let words: Vec<&str> = line.split_inclusive(|c: char| !c.is_ascii_alphanumeric()).collect();
        for word in words {
            let bare = word.trim_end_matches(|c: char| !c.is_ascii_alphanumeric());
            shown.push_str(&if is_id(bare) {
                word.replace(bare, &format!("{:<32}", "<id>"))
            } else {
                word.to_string()
            });
        }
    }
    shown
}

const CREATE: [&str; 19] = [
    "table",
    "create",
    "prices",
    "--column",
    "shop int32",
    "--column",
    "item string",
    "--column",
    "price decimal(9,2) null default=0 encoding=bitshuffle",
    "--key",
    "shop,item",
    "--hash",
    "item:2",
    "--range",
    "shop",
    "--bounds",
    "..100",
    "--bounds",
    "100..",
];

#[test]
fn help_texts() {
    let help = |words: &[&str]| {
        let words = [words, &["--help"]].concat();
        let out = nyala(&words).output().expect("the program").stdout;
        format!("$ nyala {}\n{}\n", words.join(" "), String::from_utf8(out).expect("UTF-8"))
    };
    let commands: [&[&str]; 13] = [
        &[],
        &["table"],
        &["table", "create"],
        &["table", "import"],
        &["table", "export"],
        &["table", "alter"],
        &["table", "drop"],
        &["backup"],
        &["backup", "create"],
        &["restore"],
        &["cluster"],
        &["cluster", "decommission"],
        &["cluster", "rebalance"],
    ];
    insta::assert_snapshot!("help", commands.map(help).concat());
}

#[test]
fn table_and_cluster_commands() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let running = Running::new(dir.path());
    let rows = dir.path().join("rows.csv");
    let rows = rows.to_str().expect("UTF-8");
    std::fs::write(rows, "shop,item,price\n7,apple,1.25\n700,pear,\n").expect("the test owns the directory");
    let create = [&CREATE[..], &["--replicas", "1"]].concat();
    let mut transcript = running.transcript(&create);
    for words in [
        &["table", "describe", "prices"][..],
        &["table", "import", "prices", rows],
        &["table", "scan", "prices"],
        &["table", "scan", "prices", "--count"],
        &["table", "scan", "prices", "--count", "--limit", "1"],
        &["table", "scan", "prices", "--where", "shop > 2147483647"],
        &["table", "scan", "prices", "--where", "item < ''", "--count"],
        &["cluster", "rebalance", "--report-only"],
        &["table", "describe", "nothing"],
        &["table", "create", "bad", "--column", "k int33"],
        &["table", "scan", "prices", "--where", "price ~ 1"],
        &["table", "drop", "prices"],
        &["table", "drop", "prices", "--yes"],
        &["table", "list"],
        &["table", "list", "--dropped"],
        &["table", "recall", "prices"],
        &["table", "alter", "prices", "--add-column", "size int8 null", "--rename-column", "price=cost"],
        &["table", "drop", "prices", "--yes", "--now"],
        &["cluster", "set-flag", "masters", "log_level", "warn,node=error"],
        &["cluster", "set-flag", "masters", "log_level", "node=loud"],
        &["cluster", "maintenance", "0123", "on"],
    ] {
        transcript.push_str(&running.transcript(words));
    }
    stop(running.child);
    insta::assert_snapshot!("cluster", transcript);
}

/// Dashboards and alerts depend on these names.
#[test]
fn metrics_keep_their_names() {
    let shown = METRICS.iter().map(|def| {
        let (entity, kind, own) = (def.entity.name(), def.kind.name(), if def.own { "nyala " } else { "" });
        format!("{entity:<7}{:<34}{kind:<10}{} {own}{}: {}\n", def.name, def.level.name(), def.unit, def.help)
    });
    insta::assert_snapshot!("metrics", shown.collect::<String>());
}

/// `cargo ci bless` writes the dashboards of `node/ops/grafana`.
#[test]
fn dashboards_are_made_from_the_table() {
    for dashboard in dashboards::all() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("ops/grafana").join(dashboard.file);
        let json = serde_json::to_string_pretty(&dashboard.json).expect("JSON") + "\n";
        expect_test::expect_file![path].assert_eq(&json);
    }
}

/// Every alert watches metrics that exist and names a section of the runbooks that exists.
#[test]
fn alerts_name_metrics_and_runbooks() {
    let alerts = include_str!("../ops/prometheus/alerts.yml");
    let mut names: Vec<String> = METRICS.iter().flat_map(|def| names_of(def)).collect();
    names.extend(["memory_usage", "rpcs_queue_overflow"].map(|name| format!("_{name}")));
    let distributions = METRICS.iter().filter(|def| def.kind == MetricKind::Histogram);
    let of_parts = |name: String| [format!("{name}_sum"), format!("{name}_count")];
    names.extend(distributions.flat_map(|def| names_of(def)).flat_map(of_parts));
    let is_word = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let expressions = alerts.lines().filter_map(|line| line.trim().strip_prefix("expr: "));
    for word in expressions.flat_map(|line| line.split(|letter| !is_word(letter))) {
        let is_metric = word.starts_with("nyala_") || (word.starts_with("kudu_") && word != "kudu_");
        assert!(!is_metric || names.iter().any(|name| name == word), "{word} is no metric");
    }
    let operations = include_str!("../OPERATIONS.md");
    let headings =
        operations.lines().filter_map(|line| line.strip_prefix("## ").or(line.strip_prefix("### ")));
    let anchors: Vec<String> = headings.map(|line| line.to_lowercase().replace(' ', "-")).collect();
    let rules = alerts.matches("- alert: ").count();
    let runbooks: Vec<&str> =
        alerts.lines().filter_map(|line| line.trim().strip_prefix("runbook: node/OPERATIONS.md#")).collect();
    assert_eq!(rules, runbooks.len(), "every alert names its runbook");
    for runbook in runbooks {
        assert!(anchors.iter().any(|anchor| anchor == runbook), "OPERATIONS.md has no section {runbook}");
    }
}

#[test]
fn servers_show_their_metrics() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let running = Running::new(dir.path());
    running.transcript(&[&CREATE[..], &["--replicas", "1"]].concat());
    let pages = running.pages();
    let (master, tablet_servers) = pages.split_first().expect("three servers");
    for name in ["uptime", "catalog_tablet_servers", "handler_latency_kudu_master_MasterService_TSHeartbeat"]
    {
        assert!(master.contains(&format!("\"name\": \"{name}\"")), "{name}: {master}");
    }
    // Every metric has a source. Tables are counted a second after the start, and calls by method have longer names.
    let all = pages.concat();
    let of_methods = ["handler_latency", "queue_overflow_rejections", "timed_out_on_response"];
    let is_shown = |def: &&&MetricDef| def.entity != EntityKind::Table && !of_methods.contains(&def.name);
    for name in of_methods {
        assert!(
            all.contains(&format!("\"name\": \"{name}_kudu_master_MasterService_TSHeartbeat\"")),
            "{name}: {all}"
        );
    }
    for def in METRICS.iter().filter(is_shown) {
        assert!(all.contains(&format!("\"name\": \"{}\"", def.name)), "{}: {all}", def.name);
    }
    assert_eq!(tablet_servers.len(), 2);
    stop(running.child);
}
