//! `cargo ci pages`: the web pages in a real browser.
//!
//! ```text
//!   nyala up ──▶ headless Chromium: page, phone and dark screenshots; its console must stay empty
//!            └─▶ axe-core (axe.rs): no serious finding about accessibility
//! ```
//!
//! A violation of the content policy, a missing file or a script error is a line of the console. Needs Debian's
//! `chromium` and `npm`.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use crate::axe::Axe;
use crate::steps::Steps;
use crate::test_cluster::{TestCluster, http_get};
use crate::tools;

/// Folder of the screenshots.
#[derive(Args)]
pub(crate) struct PageOptions {
    /// Folder of the screenshots; by default target/pages
    #[arg(long)]
    out: Option<PathBuf>,
}

/// Pages in the browser: server (0 the master, 1 a tablet server), path, and text that must be there.
const PAGES: [(usize, &str, &str); 20] = [
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
    (0, "/history-holds", "History holds"),
    (1, "/rpcz?html", "Samples"),
    (1, "/stacks", "another task"),
    (1, "/threadz", "Workers"),
    (1, "/memz", "resident"),
    (1, "/scrub", "Scrub"),
    (1, "/transactions", "Operations"),
];

/// Pages of one tablet, without its id, and text that must be there.
const TABLET_PAGES: [(&str, &str); 2] =
    [("/tablet?id=", "Rowsets"), ("/tablet-rowsetlayout-svg?id=", "<svg")];

/// Returns the pages of the cluster, those of a tablet with the id of one.
fn all_pages(cluster: &TestCluster) -> Result<Vec<(usize, String, &'static str)>> {
    let list = http_get(cluster.web().get(1).context("nyala up names its web ports")?, "/tablets")?;
    let id = list.split("/tablet?id=").nth(1).and_then(|rest| rest.get(..32));
    let id = id.context("the first tablet server has a tablet")?;
    let of_tablet = TABLET_PAGES.iter().map(|(path, text)| (1, format!("{path}{id}"), *text));
    Ok(PAGES
        .iter()
        .map(|(server, path, text)| (*server, (*path).to_owned(), *text))
        .chain(of_tablet)
        .collect())
}

/// Forms of a screenshot: name, size of the window, further option.
const FORMS: [(&str, &str, Option<&str>); 3] = [
    ("wide", "1280,900", None),
    ("phone", "390,844", None),
    ("dark", "1280,900", Some("--blink-settings=preferredColorScheme=0")),
];

/// Loads the pages in headless Chromium, keeps screenshots, and checks their accessibility.
pub(crate) fn run(root: &Path, options: &PageOptions, steps: &mut Steps) {
    let out = options.out.clone().unwrap_or_else(|| root.join("target/pages"));
    let mut cluster = None;
    steps.run("pages: cluster", || {
        tools::require(&["chromium", "npm"], &["chromium", "npm"])?;
        std::fs::create_dir_all(&out)?;
        cluster = Some(TestCluster::start(root)?);
        Ok(())
    });
    let Some(cluster) = cluster else { return };
    steps.run("pages: browser", || {
        let pages = all_pages(&cluster)?;
        pages.iter().try_for_each(|(server, path, text)| show(&cluster, *server, path, text, &out))?;
        println!("screenshots in {}", out.display());
        Ok(())
    });
    steps.run("pages: accessibility", || check_accessibility(&cluster, &out));
}

/// Loads a page, which must have `text`, and keeps its screenshots.
fn show(cluster: &TestCluster, server: usize, path: &str, text: &str, out: &Path) -> Result<()> {
    let url = cluster.url(server, path)?;
    let dom = browse(&url, &["--dump-dom".to_owned()])?;
    ensure!(dom.contains(text), "{url}: {text:?} is not on the page:\n{dom}");
    // The id of a tablet differs from run to run.
    let path = path.split_once("?id=").map_or(path, |(page, _)| page);
    let name = path.trim_start_matches('/').replace(['?', '='], "-");
    let name = if name.is_empty() { "overview".to_owned() } else { name };
    let role = if server == 0 { "master" } else { "tserver" };
    for (form, size, extra) in FORMS {
        let file = out.join(format!("{role}-{name}-{form}.png"));
        let mut words = vec![format!("--screenshot={}", file.display()), format!("--window-size={size}")];
        words.extend(extra.map(str::to_owned));
        browse(&url, &words)?;
        ensure!(file.metadata()?.len() > 1000, "{} is empty", file.display());
    }
    Ok(())
}

fn check_accessibility(cluster: &TestCluster, out: &Path) -> Result<()> {
    let axe = Axe::fetch(out)?;
    let mut lesser = 0;
    let pages = all_pages(cluster)?;
    for (server, path, _) in &pages {
        let address = cluster.web().get(*server).context("nyala up names its web ports")?;
        let html = http_get(address, path)?;
        let style =
            html.split("href=\"").find_map(|rest| rest.split('"').next().filter(|to| to.ends_with(".css")));
        let style = http_get(address, style.context("a page has a style")?)?;
        let found = axe.check(&html, &style);
        lesser += found.with_context(|| format!("{address}{path}"))?;
    }
    println!("{} pages without a serious finding, {lesser} lesser ones", pages.len());
    Ok(())
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
