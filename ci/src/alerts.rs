//! `cargo ci alerts`: alerts, dashboards and metrics, checked by Prometheus itself.
//!
//! ```text
//!   promtool check rules · test rules · check config
//!   nyala up ──▶ promtool check metrics
//!            └─▶ prometheus, by service discovery ──▶ every rule evaluates, every panel's query has data
//! ```
//!
//! Kudu's names break some of promtool's rules of style (no `_total`), so only those of nyala's own must keep them.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::command::CommandLine;
use crate::steps::Steps;
use crate::test_cluster::{TestCluster, http_get};
use crate::tools;

/// Longest wait for three scrapes of every server.
const PATIENCE: Duration = Duration::from_secs(120);
const PAUSE: Duration = Duration::from_millis(500);

/// Panels of distributions that have no value before the event: no log segment is deleted in so short a time.
const WITHOUT_DATA: [&str; 1] = ["kudu_log_gc_duration"];

/// Checks files, then a running cluster.
pub(crate) fn run(root: &Path, steps: &mut Steps) {
    let dir = root.join("node/ops/prometheus");
    let mut there = false;
    steps.run("alerts: prometheus", || {
        tools::require(&["promtool", "prometheus"], &["prometheus"])?;
        there = true;
        Ok(())
    });
    if !there {
        return;
    }
    for words in [
        ["check", "rules", "alerts.yml"],
        ["test", "rules", "alerts_test.yml"],
        ["check", "config", "prometheus.yml"],
    ] {
        steps.run(&format!("promtool {}", words.join(" ")), || {
            CommandLine::new("promtool").dir(&dir).args(words).run()
        });
    }
    let mut cluster = None;
    steps.run("alerts: cluster", || {
        let started = TestCluster::start(root)?;
        started.table(&["insert", "measurements", "host=a", "value=1.5"], &[])?;
        started.table(&["scan", "measurements"], &[])?;
        cluster = Some(started);
        Ok(())
    });
    let Some(cluster) = cluster else { return };
    steps.run("promtool check metrics", || {
        cluster.web().iter().try_for_each(|address| check_metrics(address))
    });
    steps.run("alerts: a scraped cluster", || check_scraped(root, &cluster));
}

/// Checks the text of a server: no error, and no fault of style in a name that is nyala's own.
fn check_metrics(address: &str) -> Result<()> {
    let text = http_get(address, "/metrics_prometheus")?;
    let mut child = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("running promtool")?;
    child.stdin.take().context("its input is piped")?.write_all(text.as_bytes())?;
    let output = child.wait_with_output()?;
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    // Code 3: faults of style.
    ensure!(matches!(output.status.code(), Some(0 | 3)), "{address}: {said}");
    let own: Vec<&str> = said.lines().filter(|line| line.starts_with("nyala_")).collect();
    ensure!(own.is_empty(), "{address}: {}", own.join("\n"));
    Ok(())
}

/// A running Prometheus, stopped when dropped.
struct Prometheus {
    child: Child,
    address: String,
    _dir: tempfile::TempDir,
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        // A process that has ended already needs no end.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Prometheus {
    /// Starts Prometheus with the configuration of the tree, but with this master and with short intervals.
    fn start(root: &Path, master: &str) -> Result<Prometheus> {
        let dir = tempfile::tempdir()?;
        let ops = root.join("node/ops/prometheus");
        fs::copy(ops.join("alerts.yml"), dir.path().join("alerts.yml"))?;
        let config = fs::read_to_string(ops.join("prometheus.yml"))?;
        let url = "- url: http://localhost:8051/prometheus-sd";
        ensure!(config.contains(url), "prometheus.yml has no line {url:?}");
        let here = format!("- url: http://{master}/prometheus-sd\n        refresh_interval: 1s");
        let config = config.replace(url, &here).replace("scrape_interval: 15s", "scrape_interval: 1s");
        let config = config.replace("scrape_interval: 1m", "scrape_interval: 1s");
        fs::write(dir.path().join("prometheus.yml"), config)?;
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
        let child = Command::new("prometheus")
            .arg(format!("--config.file={}", dir.path().join("prometheus.yml").display()))
            .arg(format!("--storage.tsdb.path={}", dir.path().join("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .arg("--log.level=error")
            .stdin(Stdio::null())
            .spawn()
            .context("running prometheus")?;
        Ok(Prometheus { child, address, _dir: dir })
    }

    /// Returns the series of a query.
    fn query(&self, query: &str) -> Result<Vec<Value>> {
        let encode = |byte: u8| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => char::from(byte).to_string(),
            byte => format!("%{byte:02X}"),
        };
        let encoded: String = query.bytes().map(encode).collect();
        let answer: Value =
            serde_json::from_str(&http_get(&self.address, &format!("/api/v1/query?query={encoded}"))?)?;
        Ok(answer["data"]["result"].as_array().context("a query has a result")?.clone())
    }

    /// Waits until every server has been scraped three times under each job.
    fn until_scraped(&self, servers: usize) -> Result<()> {
        let begin = Instant::now();
        let scraped = format!("count(count_over_time(up[5m]) >= 3 and up == 1) >= {}", 2 * servers);
        // The first queries meet a port that is not open yet.
        while !self.query(&scraped).is_ok_and(|series| !series.is_empty()) {
            ensure!(
                begin.elapsed() < PATIENCE,
                "not all {servers} servers were scraped: {:?}",
                self.query("up")
            );
            thread::sleep(PAUSE);
        }
        Ok(())
    }
}

/// Checks that rules evaluate and that panels have data.
fn check_scraped(root: &Path, cluster: &TestCluster) -> Result<()> {
    let master = cluster.web().first().context("nyala up names its web ports")?;
    let prometheus = Prometheus::start(root, master)?;
    prometheus.until_scraped(cluster.web().len())?;
    let rules: Value = serde_json::from_str(&http_get(&prometheus.address, "/api/v1/rules")?)?;
    let groups = rules["data"]["groups"].as_array().context("the rules are in groups")?;
    for rule in groups.iter().flat_map(|group| group["rules"].as_array().into_iter().flatten()) {
        ensure!(rule["lastError"].is_null(), "{}: {}", rule["name"], rule["lastError"]);
    }
    let mut empty = BTreeSet::new();
    let mut panels = 0;
    for file in fs::read_dir(root.join("node/ops/grafana"))? {
        let dashboard: Value = serde_json::from_str(&fs::read_to_string(file?.path())?)?;
        for panel in dashboard["panels"].as_array().context("a dashboard has panels")? {
            panels += 1;
            let targets = panel["targets"].as_array().context("a panel has queries")?;
            let queries: Vec<&str> = targets.iter().filter_map(|target| target["expr"].as_str()).collect();
            let mut has_data =
                queries.iter().any(|query| WITHOUT_DATA.iter().any(|name| query.contains(name)));
            for query in &queries {
                has_data = has_data || !prometheus.query(query)?.is_empty();
            }
            if !has_data {
                empty.insert(queries.join(" | "));
            }
        }
    }
    ensure!(empty.is_empty(), "panels without data:\n{}", Vec::from_iter(empty).join("\n"));
    println!("{} servers, {panels} panels with data", cluster.web().len());
    Ok(())
}
