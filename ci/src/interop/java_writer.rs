//! A Java program on the real Java client that writes while servers fail, and knows which writes were acknowledged.
//!
//! It prints "writing" once it has made its table, writes until its standard input ends, and then reads its rows back.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result, bail, ensure};

use super::java::{self, JVM};
use super::packages::Packages;

/// A program in `ci/java` and its arguments.
pub(super) struct WriterProgram<'a> {
    pub class: &'a str,
    pub args: &'a [&'a str],
}

/// The running program; killed when dropped.
pub(super) struct JavaWriter {
    child: Child,
    output: Option<JoinHandle<String>>,
}

impl JavaWriter {
    /// Starts the program. Its log, with every lost connection, goes to `dir`.
    pub(super) fn start(
        root: &Path,
        target: &Path,
        packages: &Packages,
        program: &WriterProgram<'_>,
        dir: &Path,
    ) -> Result<JavaWriter> {
        let sources =
            [program.class, "WritingProgram"].map(|class| root.join(format!("ci/java/{class}.java")));
        let classes = target.join(format!("{}-classes", program.class.to_lowercase()));
        let classes = java::compile(packages, &classes, &sources)?;
        std::fs::copy(root.join("ci/java/log4j2.properties"), classes.join("log4j2.properties"))?;
        // Java reads the realm's configuration by a property of its own.
        let realm = packages.tickets().iter().find(|(name, _)| *name == "KRB5_CONFIG");
        let mut child = Command::new("java")
            .args(JVM)
            .args(realm.map(|(_, path)| format!("-Djava.security.krb5.conf={}", path.display())))
            .envs(packages.tickets().iter().map(|(name, value)| (name, value)))
            .arg("-cp")
            .arg(packages.class_path(&classes))
            .arg(program.class)
            .args(program.args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(File::create(dir.join("java.log"))?)
            .spawn()
            .context("starting java")?;
        let mut lines = BufReader::new(child.stdout.take().expect("it was asked for"));
        let mut first = String::new();
        lines.read_line(&mut first)?;
        ensure!(first.trim() == "writing", "the Java program began with {first:?}");
        let output = thread::spawn(move || {
            let mut rest = String::new();
            // A killed program prints no more.
            let _ = lines.read_to_string(&mut rest);
            rest
        });
        Ok(JavaWriter { child, output: Some(output) })
    }

    /// Fails, with its output, if the program has ended by itself.
    pub(super) fn check_runs(&mut self) -> Result<()> {
        let Some(status) = self.child.try_wait()? else { return Ok(()) };
        bail!("the Java program ended with {status}:\n{}", self.said());
    }

    /// Lets the program read back its rows and returns its output; fails if they are not the acknowledged ones.
    pub(super) fn stop(mut self) -> Result<String> {
        drop(self.child.stdin.take());
        let status = self.child.wait()?;
        let said = self.said();
        ensure!(status.success(), "the Java program ended with {status}:\n{said}");
        Ok(said)
    }

    fn said(&mut self) -> String {
        self.output.take().and_then(|output| output.join().ok()).unwrap_or_default()
    }
}

impl Drop for JavaWriter {
    fn drop(&mut self) {
        // Both fail only for an ended program.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
