//! The web pages in a real browser, and the alerts in Prometheus' own tool.
//!
//! ```text
//!   cargo ci pages    nyala up ──▶ headless Chromium: page, phone and dark screenshots; its console must stay empty
//!   cargo ci alerts   promtool check rules · test rules · check config · check metrics of a running server
//! ```
//!
//! A violation of the content policy, a missing file or a script error is a line of the console. Needs Debian's
//! `chromium`, `prometheus`.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use crate::command::{CommandLine, cargo};
use crate::interop::target_dir;
use crate::steps::Steps;

/// Folder of the screenshots.
#[derive(Args)]
pub(crate) struct PageOptions {
    /// Folder of the screenshots; by default target/pages
    #[arg(long)]
    out: Option<PathBuf>,
}

/// Text that `nyala up` prints once clients can connect.
const READY: &str = "Stop with Ctrl-C";

/// A running cluster, stopped when dropped.
struct TestCluster {
    child: Child,
    /// Web addresses, masters first.
    web: Vec<String>,
    _dir: tempfile::TempDir,
}

impl TestCluster {
    fn start(root: &Path) -> Result<TestCluster> {
        cargo(root, &["build", "--quiet", "--package", "node"])?;
        let program = target_dir()?.join("debug/nyala");
        let dir = tempfile::tempdir()?;
        let data = dir.path().join("data");
        let mut child = Command::new(&program)
            .args(["up", "--free-ports", "--log-level=info", "--dir"])
            .arg(&data)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("starting nyala up")?;
        let mut printed = String::new();
        let mut lines = BufReader::new(child.stdout.take().context("its output")?);
        while !printed.contains(READY) {
            ensure!(lines.read_line(&mut printed)? > 0, "nyala up ended early: {printed}");
        }
        let urls = printed.split_whitespace().filter_map(|word| word.strip_prefix("http://"));
        let web = urls.filter_map(|url| url.strip_suffix("/metrics")).map(str::to_owned).collect();
        let masters = printed.lines().find(|line| line.contains("--masters")).context("an example")?;
        let masters = masters.rsplit(' ').next().unwrap_or_default();
        let cluster = TestCluster { child, web, _dir: dir };
        CommandLine::new(&program)
            .args([
                "table",
                "create",
                "measurements",
                "--column",
                "host string",
                "--column",
                "value double null",
            ])
            .args(["--key", "host", "--hash", "host:4", "--masters", masters])
            .run()?;
        Ok(cluster)
    }

    fn url(&self, server: usize, path: &str) -> Result<String> {
        let address = self.web.get(server).context("nyala up names its web ports")?;
        Ok(format!("http://{address}{path}"))
    }
}

impl Drop for TestCluster {
    fn drop(&mut self) {
        // A process that has ended already needs no end.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Pages in the browser: server (0 the master, 1 a tablet server), path, and text that must be there.
const PAGES: [(usize, &str, &str); 13] = [
    (0, "/", "healthy"),
    (0, "/check", "Findings"),
    (0, "/tables", "measurements"),
    (0, "/tablet-servers", "alive"),
    (0, "/masters", "LEADER"),
    (0, "/varz", "heartbeat_interval_ms"),
    (0, "/config", "Security"),
    (0, "/startup", "the server has started"),
    (1, "/", "tablet server"),
    (1, "/tablets", "measurements"),
    (1, "/scans", "Scans"),
    (1, "/maintenance-manager", "FlushMRSOp"),
    (1, "/mem-trackers", "Memory"),
];

/// Loads the pages in headless Chromium and keeps screenshots.
pub(crate) fn run(root: &Path, options: &PageOptions, steps: &mut Steps) {
    let out = options.out.clone().unwrap_or_else(|| root.join("target/pages"));
    steps.run("pages", || {
        std::fs::create_dir_all(&out)?;
        let cluster = TestCluster::start(root)?;
        for (server, path, text) in PAGES {
            let url = cluster.url(server, path)?;
            let dom = browse(&url, &["--dump-dom".to_owned()])?;
            ensure!(dom.contains(text), "{url}: {text:?} is not on the page:\n{dom}");
            for (form, size, extra) in [
                ("wide", "1280,900", None),
                ("phone", "390,844", None),
                ("dark", "1280,900", Some("--blink-settings=preferredColorScheme=0")),
            ] {
                let name = path.trim_start_matches('/').replace(['?', '='], "-");
                let name = if name.is_empty() { "overview".to_owned() } else { name };
                let role = if server == 0 { "master" } else { "tserver" };
                let file = out.join(format!("{role}-{name}-{form}.png"));
                let mut words =
                    vec![format!("--screenshot={}", file.display()), format!("--window-size={size}")];
                words.extend(extra.map(str::to_owned));
                browse(&url, &words)?;
                ensure!(file.metadata()?.len() > 1000, "{} is empty", file.display());
            }
        }
        println!("screenshots in {}", out.display());
        Ok(())
    });
}

/// Runs the browser on a page and returns what it prints. A line of its console is an error.
fn browse(url: &str, words: &[String]) -> Result<String> {
    let profile = tempfile::tempdir()?;
    let output = Command::new("chromium")
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--enable-logging=stderr"])
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .args(words)
        .arg(url)
        .stdin(Stdio::null())
        .output()
        .context("running chromium (apt-get install chromium)")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    if let Some(line) = errors.lines().find(|line| line.contains("CONSOLE")) {
        bail!("{url}: the console of the browser has a line: {line}");
    }
    ensure!(output.status.success(), "{url}: chromium ended with {}: {errors}", output.status);
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Checks the rules, their tests and the configuration with promtool.
pub(crate) fn alerts(root: &Path, steps: &mut Steps) {
    let dir = root.join("node/ops/prometheus");
    for words in [
        ["check", "rules", "alerts.yml"],
        ["test", "rules", "alerts_test.yml"],
        ["check", "config", "prometheus.yml"],
    ] {
        steps.run(&format!("promtool {}", words.join(" ")), || {
            CommandLine::new("promtool").dir(&dir).args(words).run()
        });
    }
}
