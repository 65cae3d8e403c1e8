//! Accessibility of a page: axe-core in headless Chromium, on a copy of the page.
//!
//! ```text
//!   page, style, axe.min.js ──▶ copy ──GET /──▶ Chromium ──POST /found──▶ violations
//! ```
//!
//! The pages forbid every script, so the markup and the style of a page are copied into one that runs the checks, and
//! sends what they find.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::command::CommandLine;

const VERSION: &str = "4.14.1";

/// Longest wait for the findings of a page.
const PATIENCE: Duration = Duration::from_secs(120);
const PAUSE: Duration = Duration::from_millis(20);

/// Impacts that fail a check.
const SERIOUS: [&str; 2] = ["serious", "critical"];

/// The script of axe-core.
pub(crate) struct Axe {
    script: String,
}

impl Axe {
    /// Fetches the package into a folder, unless it is there.
    pub(crate) fn fetch(dir: &Path) -> Result<Axe> {
        let archive = dir.join(format!("axe-core-{VERSION}.tgz"));
        if !archive.exists() {
            CommandLine::new("npm")
                .args(["pack", "--silent", &format!("axe-core@{VERSION}"), "--pack-destination"])
                .args([dir])
                .run()?;
        }
        CommandLine::new("tar").args(["xzf"]).args([&archive]).args(["-C"]).args([dir]).run()?;
        Ok(Axe { script: fs::read_to_string(dir.join("package/axe.min.js"))? })
    }

    /// Returns the copy of a page that runs the checks. `style` is the page's style sheet.
    fn copy(&self, html: &str, style: &str) -> Result<String> {
        let (head, rest) = html.split_once("<link rel=\"stylesheet\"").context("a page has a style")?;
        let (_, rest) = rest.split_once('>').context("a tag has an end")?;
        let (body, _) = rest.rsplit_once("</body>").context("a page has a body")?;
        // The parser ends a script at its end tag, wherever it stands.
        let script = self.script.replace("</script", "<\\/script");
        Ok(format!(
            "{head}<style>{style}</style>{body}<script>{script}</script><script>
            axe.run(document, {{resultTypes: ['violations']}}).then(found => {{
              const kept = found.violations.map(of => ({{
                rule: of.id, impact: of.impact, help: of.help, nodes: of.nodes.map(node => node.html).slice(0, 3)
              }}));
              fetch('/found', {{method: 'POST', body: JSON.stringify(kept)}});
            }});</script></body></html>"
        ))
    }

    /// Checks a page; a serious finding is an error. Returns the number of lesser ones.
    pub(crate) fn check(&self, html: &str, style: &str) -> Result<usize> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let browser = Browser::open(&format!("http://{}/", listener.local_addr()?))?;
        let found = exchange(&listener, &self.copy(html, style)?)?;
        drop(browser);
        let violations: Vec<Value> = serde_json::from_str(&found)?;
        let is_serious =
            |violation: &&Value| violation["impact"].as_str().is_none_or(|impact| SERIOUS.contains(&impact));
        let serious: Vec<String> = violations.iter().filter(is_serious).map(Value::to_string).collect();
        ensure!(serious.is_empty(), "not accessible: {}", serious.join("\n"));
        Ok(violations.len())
    }
}

/// A browser with one page, ended when dropped.
struct Browser {
    child: Child,
    _profile: tempfile::TempDir,
}

impl Browser {
    fn open(url: &str) -> Result<Browser> {
        let profile = tempfile::tempdir()?;
        let child = Command::new("chromium")
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--window-size=1280,900"])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .arg(url)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("running chromium")?;
        Ok(Browser { child, _profile: profile })
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // A process that has ended already needs no end.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Answers the browser's requests with the copy until it has sent the findings.
fn exchange(listener: &TcpListener, copy: &str) -> Result<String> {
    listener.set_nonblocking(true)?;
    let begin = Instant::now();
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false)?;
                // A browser closes connections that it opened and does not need.
                if let Ok(Some(found)) = answer(stream, copy) {
                    return Ok(found);
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => std::thread::sleep(PAUSE),
            Err(error) => return Err(error.into()),
        }
        ensure!(begin.elapsed() < PATIENCE, "axe-core did not end within {PATIENCE:?}");
    }
}

/// Answers one request; returns the body of a POST.
fn answer(stream: TcpStream, copy: &str) -> Result<Option<String>> {
    stream.set_read_timeout(Some(Duration::from_secs(1)))?;
    let mut reader = BufReader::new(stream.try_clone()?);
    let (mut first, mut length) = (String::new(), 0);
    reader.read_line(&mut first)?;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 || line.trim().is_empty() {
            break;
        }
        if let Some((_, value)) =
            line.split_once(':').filter(|(name, _)| name.eq_ignore_ascii_case("content-length"))
        {
            length = value.trim().parse()?;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let page = if first.starts_with("GET / ") { copy } else { "" };
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: text/html; charset=utf-8\r\ncontent-length: {}\r\n",
        page.len()
    );
    write!(&stream, "{head}connection: close\r\n\r\n{page}")?;
    Ok(first.starts_with("POST").then(|| String::from_utf8_lossy(&body).into_owned()))
}
