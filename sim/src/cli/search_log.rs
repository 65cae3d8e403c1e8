//! The log of a search: each run as soon as it has ended, one line of JSON each. A search that begins again with the
//! same programs repeats no run, and all mutants share the runs without one.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::hash::{DefaultHasher, Hasher};
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use engine::sync::Mutex;
use serde::{Deserialize, Serialize};

/// The run that a record is of.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct RunKey {
    /// Fingerprint of the program.
    pub program: String,
    /// The mutant's number in it; 0 for none.
    pub mutant: u32,
    /// World, profile, size and seed.
    pub run: String,
}

/// The outcome of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RunRecord {
    pub hash: String,
    /// Violations: the oracle and its message.
    pub failures: Vec<(String, String)>,
    pub cpu: Duration,
}

/// All runs so far.
pub(super) struct SearchLog {
    file: Mutex<File>,
    known: Mutex<HashMap<RunKey, RunRecord>>,
}

impl SearchLog {
    /// Opens a log. A line that was cut off by an interruption is ignored.
    pub(super) fn open(path: &Path) -> Result<SearchLog> {
        let text = fs::read_to_string(path).unwrap_or_default();
        let known = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let file = OpenOptions::new().create(true).append(true).open(path);
        let mut file = file.with_context(|| format!("opening {}", path.display()))?;
        if !text.is_empty() && !text.ends_with('\n') {
            writeln!(file)?;
        }
        Ok(SearchLog { file: Mutex::new(file), known: Mutex::new(known) })
    }

    /// Returns the record of a run; makes the run if there is none.
    pub(super) fn get(&self, key: RunKey, run: impl FnOnce() -> Result<RunRecord>) -> Result<RunRecord> {
        let known = self.known.lock().get(&key).cloned();
        if let Some(known) = known {
            return Ok(known);
        }
        let record = run()?;
        let line = serde_json::to_string(&(&key, &record))?;
        writeln!(self.file.lock(), "{line}").context("writing the log of runs")?;
        self.known.lock().insert(key, record.clone());
        Ok(record)
    }
}

/// Returns a fingerprint of a program: of its bytes.
pub(super) fn fingerprint(program: &Path) -> Result<String> {
    let bytes = fs::read(program).with_context(|| format!("reading {}", program.display()))?;
    let mut hasher = DefaultHasher::new();
    hasher.write(&bytes);
    Ok(format!("{:016x}", hasher.finish()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_run_is_repeated_by_the_next_search() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("runs.jsonl");
        let key =
            |mutant| RunKey { program: "p".to_string(), mutant, run: "madsim swarm smoke 1".to_string() };
        let failures = vec![("rows".to_string(), "twice".to_string())];
        let record = RunRecord { hash: "ab".to_string(), failures, cpu: Duration::from_millis(7) };
        let log = SearchLog::open(&path).expect("a new file");
        assert_eq!(log.get(key(3), || Ok(record.clone())).expect("it is made"), record);
        fs::write(&path, fs::read_to_string(&path).expect("a file") + "[{\"program").expect("a cut line");
        let log = SearchLog::open(&path).expect("the same file");
        let none = || panic!("it is known");
        assert_eq!(log.get(key(3), none).expect("it is known"), record);
        log.get(key(0), || Ok(record.clone())).expect("another run");
        let log = SearchLog::open(&path).expect("the same file");
        assert_eq!(log.get(key(0), none).expect("it was written on a line of its own"), record);
    }
}
