//! The check of a cluster by Kudu's own tool: every tablet has its replicas, and they hold the same rows.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use nyala_common::env::Env;
use sim_plan::{Host, Plan};

use super::host_env::Loopback;
use crate::workload::MASTER_PORT;

/// Time until a cluster is healthy, after which what the tool says is a failure.
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_secs(1);
/// Last lines of the tool that a failure quotes.
const LINES_MAX: usize = 30;

/// The tool and the cluster that it checks.
pub(super) struct Ksck {
    /// The unpacked package: `bin/kudu`, and its libraries in `lib`.
    kudu: PathBuf,
    masters: String,
}

impl Ksck {
    pub(super) fn new(kudu: &Path, plan: &Plan, network: Loopback) -> Ksck {
        let masters = (0..plan.cluster.masters)
            .map(|number| network.address(Host::Master(number), MASTER_PORT).to_string());
        Ksck { kudu: kudu.to_path_buf(), masters: masters.collect::<Vec<_>>().join(",") }
    }

    /// Runs the tool until it finds nothing; returns what it still finds in the end.
    pub(super) async fn run(&self, env: &Env) -> Option<String> {
        let until = env.now().mono.after(PATIENCE);
        loop {
            let found = self.find().err()?;
            if env.now().mono >= until {
                return Some(format!("ksck: {found}"));
            }
            env.sleep(PAUSE).await;
        }
    }

    /// Checks the tables whose columns the tool knows: unsigned and 16-byte integers are none of its types.
    fn find(&self) -> Result<(), String> {
        let check = ["cluster", "ksck", &self.masters, "--checksum_scan"];
        let Err(said) = self.tool(&check) else { return Ok(()) };
        let unknown: BTreeSet<&str> = said.lines().filter_map(table_of_unknown_type).collect();
        if unknown.is_empty() {
            return Err(last_lines(&said));
        }
        let tables = self.tool(&["table", "list", &self.masters]).map_err(|said| last_lines(&said))?;
        let known: Vec<&str> = tables.lines().filter(|table| !unknown.contains(table)).collect();
        if known.is_empty() {
            return Ok(());
        }
        let tables = format!("--tables={}", known.join(","));
        self.tool(&[&check[..], &[tables.as_str()]].concat()).map(drop).map_err(|said| last_lines(&said))
    }

    /// Runs the tool; returns what it prints, as an error if it fails.
    fn tool(&self, words: &[&str]) -> Result<String, String> {
        let output = Command::new(self.kudu.join("bin/kudu"))
            .args(words)
            .env("LD_LIBRARY_PATH", self.kudu.join("lib"))
            .env("SASL_PATH", self.kudu.join("lib/sasl2"))
            .stdin(Stdio::null())
            .output()
            .map_err(|error| format!("{}: {error}", self.kudu.display()))?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        match output.status.success() {
            true => Ok(text(&output.stdout)),
            false => Err(text(&output.stdout) + &text(&output.stderr)),
        }
    }
}

/// Returns the table that a line says the tool cannot open, as it does not know the type of a column.
fn table_of_unknown_type(line: &str) -> Option<&str> {
    let (_, rest) = line.split_once("unable to open table ")?;
    let (table, why) = rest.split_once(": ")?;
    why.contains("Unknown column type in schema").then_some(table)
}

fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LINES_MAX)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_of_a_type_that_the_tool_lacks_is_named() {
        let line = "E2026 ksck_remote.cc:630] unable to open table model1: Invalid argument: Unknown column type in \
                    schema: k0 UINT16 NOT NULL";
        assert_eq!(table_of_unknown_type(line), Some("model1"));
        assert_eq!(table_of_unknown_type("unable to open table model1: Timed out: no leader"), None);
        assert_eq!(table_of_unknown_type("FAILED"), None);
    }
}
