//! Upstream's own JUnit classes, run one by one: those of the Java client, compiled from their published sources, and
//! those of the Spark connector, from their published jar.
//!
//! ```text
//!   testSources.jar ─ imports rewritten to the shaded packages ─ javac ─▶ classes
//!   ci/upstream.toml, ci/upstream-spark.toml: classes that must pass, and missing features that others wait for
//!   a JVM per class ─ harness ─▶ `kudu` of a [`Harness`]: ours ([`super::mini_cluster`]) or the real one ─▶ servers
//! ```
//!
//! A test that fails unexpectedly is retried once alone, as upstream's own builds do (`KUDU_FLAKY_TEST_ATTEMPTS`),
//! because many of these tests depend on sleeps. A pass is reported as flaky; a second failure is a failure.
//!
//! The sources are never committed, and unpacked under `target` only. *Not here:* the page, [`super::report`].

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use super::clients::{self, JavaPackages};
use super::java::{JVM, compile};
use super::packages::Packages;
use crate::command::CommandLine;

/// Entry of a class in `ci/upstream.toml` or `ci/upstream-spark.toml`.
#[derive(Deserialize, Default, Clone)]
#[serde(deny_unknown_fields)]
pub(super) struct TestClass {
    /// True if a pull request must keep the class passing.
    #[serde(default)]
    pub required: bool,
    /// True if its cluster has a KDC: a pull request skips the class where the packages of one are missing.
    #[serde(default)]
    pub kerberos: bool,
    /// Tests that may fail, each with the reason.
    #[serde(default)]
    pub known: BTreeMap<String, String>,
    /// Feature that the whole class waits for, if it cannot pass.
    #[serde(default)]
    pub waits_for: String,
}

/// Outcome of one test.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct TestOutcome {
    pub test: String,
    pub verdict: TestVerdict,
    pub milliseconds: u64,
    pub message: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum TestVerdict {
    Pass,
    /// Failed, then passed when retried; the message is that of the failure.
    Flaky,
    Fail,
    Ignored,
}

/// Servers that the tests' harness starts.
pub(super) struct Harness {
    /// Name of the folder of its logs and results.
    pub name: &'static str,
    /// Folder with the executable `kudu` that the harness runs.
    pub bin_dir: PathBuf,
}

/// Run of one class.
pub(super) struct ClassRun {
    pub outcomes: Vec<TestOutcome>,
    /// True if the class was stopped after [`CLASS_TIMEOUT`].
    pub timed_out: bool,
}

/// Classes of the Java client and of the Spark connector, in `ci`.
pub(super) const JAVA_CLASSES: &str = "upstream.toml";
pub(super) const SPARK_CLASSES: &str = "upstream-spark.toml";

/// The program that runs one class.
const RUNNER: &str = "ci/java/RunClass.java";

const CLASS_TIMEOUT: Duration = Duration::from_secs(600);
/// Packages that the published jars carry under `org.apache.kudu.shaded`.
const SHADED: [&str; 6] = [
    "com.google.common",
    "com.google.protobuf",
    "com.google.gson",
    "io.netty",
    "io.micrometer",
    "com.sangupta",
];

/// Reads the classes of a file in `ci` and their expectations.
pub(super) fn classes(root: &Path, file: &str) -> Result<BTreeMap<String, TestClass>> {
    let text =
        fs::read_to_string(root.join("ci").join(file)).with_context(|| format!("reading ci/{file}"))?;
    toml::from_str(&text).with_context(|| format!("ci/{file}"))
}

/// Tests ready to run.
pub(super) struct Suite {
    /// Folder of logs and results.
    dir: PathBuf,
    class_path: OsString,
    /// Arguments of the JVM.
    jvm: Vec<String>,
    /// Full name of each class.
    names: BTreeMap<String, String>,
}

impl Suite {
    /// Returns the tests of the Java client, unpacked and compiled.
    pub(super) fn of_java(root: &Path, target: &Path, packages: &Packages) -> Result<Suite> {
        let dir = target.join("upstream");
        let (sources, classes) = (dir.join("src"), dir.join("classes"));
        let runner = root.join(RUNNER);
        let stamp = fs::read(&runner)?;
        if fs::read(dir.join("complete")).unwrap_or_default() != stamp {
            if dir.exists() {
                fs::remove_dir_all(&dir)?;
            }
            compile_sources(packages, runner, &sources, &classes)?;
            fs::write(dir.join("complete"), stamp)?;
        }
        let class_path = packages.class_path(&classes);
        Ok(Suite { dir, class_path, jvm: JVM.map(str::to_owned).to_vec(), names: names(&sources)? })
    }

    /// Returns the tests of the Spark connector. Their jar is among the packages of its client job.
    pub(super) fn of_spark(root: &Path, target: &Path) -> Result<Suite> {
        let dir = target.join("clients/spark-upstream");
        let packages = JavaPackages { pom: "spark-upstream", properties: &[], alone: None };
        let class_path = packages.prepare(root, &dir, &[root.join(RUNNER)])?;
        let names = classes(root, SPARK_CLASSES)?.into_keys();
        let names =
            names.map(|class| (class.clone(), format!("org.apache.kudu.spark.kudu.{class}"))).collect();
        let mut jvm = clients::jvm();
        jvm.push("-Dspark.ui.enabled=false".to_owned());
        Ok(Suite { dir, class_path, jvm, names })
    }

    /// Runs one class and retries its unexpected failures once; failing tests are outcomes, not errors.
    pub(super) fn run(
        &self,
        harness: &Harness,
        class: &str,
        known: &BTreeMap<String, String>,
    ) -> Result<ClassRun> {
        let logs = self.dir.join(harness.name);
        fs::create_dir_all(&logs)?;
        let mut run = self.attempt(harness, class, &[], "")?;
        ensure!(
            run.timed_out || !run.outcomes.is_empty(),
            "{class} reported no test; see {}",
            logs.display()
        );
        let again: Vec<String> = run.failures().map(|failure| failure.test.clone()).collect();
        let again: Vec<String> = again.into_iter().filter(|test| !known.contains_key(test)).collect();
        if !again.is_empty() && !run.timed_out {
            println!("run again: {}", again.join(", "));
            run.mark_flaky(&self.attempt(harness, class, &again, ".again")?);
        }
        fs::write(logs.join(format!("{class}.results")), run.to_lines())?;
        Ok(run)
    }

    /// Runs the named tests of a class, or all of them.
    fn attempt(&self, harness: &Harness, class: &str, tests: &[String], suffix: &str) -> Result<ClassRun> {
        let logs = self.dir.join(harness.name);
        let results = logs.join(format!("{class}{suffix}.results"));
        fs::write(&results, "")?;
        let log = fs::File::create(logs.join(format!("{class}{suffix}.log")))?;
        let mut command = Command::new("java");
        command
            .env("SPARK_LOCAL_IP", "127.0.0.1")
            .args(&self.jvm)
            .arg(format!("-DkuduBinDir={}", harness.bin_dir.display()))
            .arg("-cp")
            .arg(&self.class_path)
            .args([
                "RunClass",
                self.names.get(class).with_context(|| format!("upstream has no test class {class}"))?,
            ])
            .arg(&results)
            .args(tests)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        let timed_out = run_with_timeout(command)?;
        Ok(ClassRun { outcomes: parse(&fs::read_to_string(&results)?)?, timed_out })
    }

    /// Reads the results of the class's last run.
    pub(super) fn last(&self, harness: &Harness, class: &str) -> Result<ClassRun> {
        let results = self.dir.join(harness.name).join(format!("{class}.results"));
        let text = fs::read_to_string(results).context("not run")?;
        let outcomes = parse(&text)?;
        ensure!(!outcomes.is_empty(), "its last run reported no test");
        Ok(ClassRun { outcomes, timed_out: false })
    }
}

/// Unpacks and compiles the published tests with the runner of a class.
fn compile_sources(packages: &Packages, runner: PathBuf, sources: &Path, classes: &Path) -> Result<()> {
    fs::create_dir_all(sources)?;
    CommandLine::new("jar").args(["xf"]).args([packages.test_sources()]).dir(sources).run()?;
    let mut files = vec![runner];
    let mut resources = Vec::new();
    sort_files(sources, &mut files, &mut resources)?;
    files[1..].iter().try_for_each(|file| rewrite(file))?;
    compile(packages, classes, &files)?;
    for resource in resources {
        let name = resource.file_name().context("a file without a name")?;
        let copy = classes.join(name);
        fs::copy(&resource, &copy)?;
        // Tests run scripts among them; a jar keeps no permissions.
        fs::set_permissions(copy, fs::Permissions::from_mode(0o755))?;
    }
    Ok(())
}

/// Returns the full name of each class by its name, found by its source.
fn names(sources: &Path) -> Result<BTreeMap<String, String>> {
    let (mut files, mut others) = (Vec::new(), Vec::new());
    sort_files(sources, &mut files, &mut others)?;
    let name = |file: &PathBuf| {
        let class = file.file_stem().context("a file without a name")?.to_string_lossy().into_owned();
        let full = file.strip_prefix(sources)?.with_extension("");
        Ok((class, full.to_string_lossy().replace('/', ".")))
    };
    files.iter().map(name).collect()
}

/// Returns true if the process had to be killed.
fn run_with_timeout(mut command: Command) -> Result<bool> {
    let start = Instant::now();
    let mut child = command.spawn().context("starting java")?;
    while child.try_wait()?.is_none() {
        if start.elapsed() > CLASS_TIMEOUT {
            child.kill()?;
            child.wait()?;
            return Ok(true);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(false)
}

fn sort_files(dir: &Path, java: &mut Vec<PathBuf>, others: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(dir).with_context(|| format!("reading {}", dir.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            sort_files(&path, java, others)?;
        } else if path.extension().is_some_and(|ext| ext == "java") {
            java.push(path);
        } else {
            others.push(path);
        }
    }
    Ok(())
}

/// Rewrites imports: the tests use unshaded packages, the published jars hold the shaded ones.
fn rewrite(file: &Path) -> Result<()> {
    let mut text = fs::read_to_string(file)?;
    for package in SHADED {
        text = text.replace(&format!("{package}."), &format!("org.apache.kudu.shaded.{package}."));
    }
    Ok(fs::write(file, text)?)
}

fn parse(results: &str) -> Result<Vec<TestOutcome>> {
    results.lines().map(parse_line).collect()
}

fn parse_line(line: &str) -> Result<TestOutcome> {
    let fields: Vec<&str> = line.splitn(4, '\t').collect();
    let [test, verdict, milliseconds, message] = fields[..] else {
        bail!("a result of another shape: {line:?}")
    };
    let verdict = match verdict {
        "pass" => TestVerdict::Pass,
        "flaky" => TestVerdict::Flaky,
        "fail" => TestVerdict::Fail,
        "ignored" => TestVerdict::Ignored,
        other => bail!("an unknown verdict {other:?}"),
    };
    let milliseconds = milliseconds.parse().with_context(|| format!("milliseconds of {test}"))?;
    Ok(TestOutcome { test: test.to_owned(), verdict, milliseconds, message: message.to_owned() })
}

impl ClassRun {
    /// Marks tests that passed in the second run as flaky.
    fn mark_flaky(&mut self, again: &ClassRun) {
        for outcome in &mut self.outcomes {
            let passed =
                |other: &&TestOutcome| other.test == outcome.test && other.verdict == TestVerdict::Pass;
            if outcome.verdict == TestVerdict::Fail && again.outcomes.iter().find(passed).is_some() {
                outcome.verdict = TestVerdict::Flaky;
            }
        }
    }

    /// Returns the lines that [`parse`] reads.
    fn to_lines(&self) -> String {
        let line = |outcome: &TestOutcome| {
            let verdict = match outcome.verdict {
                TestVerdict::Pass => "pass",
                TestVerdict::Flaky => "flaky",
                TestVerdict::Fail => "fail",
                TestVerdict::Ignored => "ignored",
            };
            format!("{}\t{verdict}\t{}\t{}\n", outcome.test, outcome.milliseconds, outcome.message)
        };
        self.outcomes.iter().map(line).collect()
    }

    /// Returns the time of its tests, their clusters included.
    pub(super) fn seconds(&self) -> f64 {
        self.outcomes.iter().map(|outcome| outcome.milliseconds as f64 / 1e3).sum()
    }

    pub(super) fn count(&self, verdict: TestVerdict) -> usize {
        self.outcomes.iter().filter(|outcome| outcome.verdict == verdict).count()
    }

    /// Returns the number of passed tests, the flaky ones included.
    pub(super) fn passed(&self) -> usize {
        self.count(TestVerdict::Pass) + self.count(TestVerdict::Flaky)
    }

    pub(super) fn failures(&self) -> impl Iterator<Item = &TestOutcome> {
        self.outcomes.iter().filter(|outcome| outcome.verdict == TestVerdict::Fail)
    }

    /// Fails if a test failed that `expected` does not allow to.
    pub(super) fn check(&self, expected: &TestClass) -> Result<()> {
        println!("{} of {} tests passed", self.passed(), self.outcomes.len());
        for flaky in self.outcomes.iter().filter(|outcome| outcome.verdict == TestVerdict::Flaky) {
            println!("flaky: {} failed, and passed when it was run again: {}", flaky.test, flaky.message);
        }
        let mut unknown = Vec::new();
        for failure in self.failures() {
            match expected.known.get(&failure.test) {
                Some(reason) => println!("known to fail: {} ({reason})", failure.test),
                None => unknown.push(format!("{}: {}", failure.test, failure.message)),
            }
        }
        ensure!(!self.timed_out, "it did not end within {} s", CLASS_TIMEOUT.as_secs());
        ensure!(unknown.is_empty(), "{}", unknown.join("\n"));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(results: &str) -> ClassRun {
        ClassRun { outcomes: parse(results).unwrap(), timed_out: false }
    }

    #[test]
    fn results_are_compared_with_known_failures() {
        let run = run("testA\tpass\t12\t\ntestB\tfail\t7\tjava.lang.AssertionError: 1\nt\tignored\t0\t\n");
        let counts =
            [TestVerdict::Pass, TestVerdict::Fail, TestVerdict::Ignored].map(|verdict| run.count(verdict));
        assert_eq!(counts, [1, 1, 1]);
        let error = run.check(&TestClass::default()).unwrap_err().to_string();
        assert_eq!(error, "testB: java.lang.AssertionError: 1");
        let known = BTreeMap::from([("testB".to_owned(), "one replica only".to_owned())]);
        run.check(&TestClass { known, ..TestClass::default() }).unwrap();
    }

    #[test]
    fn a_pass_in_the_second_run_is_flaky_and_counts_as_passed() {
        let mut first = run("testA\tpass\t1\t\ntestB\tfail\t7\tslow\ntestC\tfail\t7\twrong\n");
        first.mark_flaky(&run("testB\tpass\t5\t\ntestC\tfail\t5\twrong\n"));
        assert_eq!(first.to_lines(), "testA\tpass\t1\t\ntestB\tflaky\t7\tslow\ntestC\tfail\t7\twrong\n");
        assert_eq!(run(&first.to_lines()).passed(), 2);
        assert_eq!(first.check(&TestClass::default()).unwrap_err().to_string(), "testC: wrong");
    }

    #[test]
    fn a_cut_line_is_an_error() {
        assert!(parse("testA\tpass\n").is_err());
        assert!(parse("testA\tmaybe\t1\t\n").is_err());
    }
}
