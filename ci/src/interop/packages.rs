//! Upstream's packages, named in `ci/java/pom.xml`: fetched by Maven once and kept under `target`.
//!
//! ```text
//!   target/interop/packages/class-path/*.jar        client, test harness and their dependencies
//!                           kudu-client-testSources.jar
//!                           kudu/{bin,lib,www}      the real server and tool, unpacked
//!                           complete                the pom of these packages, written last
//! ```

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::command::CommandLine;
use crate::tools;

const POM: &str = "ci/java/pom.xml";

/// The fetched packages.
#[derive(Clone)]
pub(crate) struct Packages {
    dir: PathBuf,
    /// Variables by which clients find their tickets, where servers require some.
    tickets: Vec<(&'static str, PathBuf)>,
}

impl Packages {
    /// Fetches missing packages; needs no network if none is missing.
    pub(crate) fn fetch(root: &Path, target: &Path) -> Result<Packages> {
        let packages = Packages { dir: target.join("packages"), tickets: Vec::new() };
        let pom = fs::read(root.join(POM)).context("reading ci/java/pom.xml")?;
        let complete = packages.dir.join("complete");
        if fs::read(&complete).unwrap_or_default() == pom {
            return Ok(packages);
        }
        // A JDK of 11 or newer.
        tools::require(&["javac", "jar", "mvn"], &["default-jdk-headless", "maven"])?;
        if packages.dir.exists() {
            fs::remove_dir_all(&packages.dir)?;
        }
        fs::create_dir_all(&packages.dir)?;
        println!("fetching the packages of {POM}");
        maven(&root.join(POM))
            .args([format!("-Dpackages={}", packages.dir.display())])
            .args(["dependency:copy-dependencies@class-path", "dependency:copy@apart"])
            .run()?;
        packages.unpack_kudu()?;
        fs::write(complete, pom)?;
        Ok(packages)
    }

    /// The jar's one top folder becomes `kudu`. Jars keep no permissions, so the programs get theirs here.
    fn unpack_kudu(&self) -> Result<()> {
        let fresh = tempfile::tempdir_in(&self.dir)?;
        let jar = self.dir.join("kudu-binary-linux-x86_64.jar");
        CommandLine::new("jar").args(["xf"]).args([&jar]).dir(fresh.path()).run()?;
        for entry in fs::read_dir(fresh.path())? {
            let path = entry?.path();
            if path.join("bin").is_dir() {
                fs::rename(path, self.kudu())?;
            }
        }
        for program in fs::read_dir(self.kudu().join("bin")).context("the kudu-binary package has no bin")? {
            fs::set_permissions(program?.path(), fs::Permissions::from_mode(0o755))?;
        }
        Ok(fs::remove_file(jar)?)
    }

    /// Returns the packages for clients that find their tickets by these variables.
    pub(crate) fn with_tickets(&self, variables: &[(&'static str, PathBuf)]) -> Packages {
        Packages { dir: self.dir.clone(), tickets: variables.to_vec() }
    }

    /// Returns the variables by which clients find their tickets.
    pub(crate) fn tickets(&self) -> &[(&'static str, PathBuf)] {
        &self.tickets
    }

    /// Returns the folder of the real server and tool.
    pub(crate) fn kudu(&self) -> PathBuf {
        self.dir.join("kudu")
    }

    /// Returns the real tool's command line, without arguments.
    pub(crate) fn kudu_tool(&self) -> CommandLine {
        self.tickets.iter().fold(kudu_tool(&self.kudu()), |run, (name, value)| run.env(name, value))
    }

    /// Returns the class path of everything fetched, after `classes`.
    pub(crate) fn class_path(&self, classes: &Path) -> OsString {
        let mut path = classes.as_os_str().to_owned();
        path.push(":");
        path.push(self.dir.join("class-path").join("*"));
        path
    }

    /// Returns upstream's own tests, as sources.
    pub(crate) fn test_sources(&self) -> PathBuf {
        self.dir.join("kudu-client-testSources.jar")
    }
}

/// Returns Maven's command line on a file of packages, without goals.
pub(crate) fn maven(pom: &Path) -> CommandLine {
    CommandLine::new("mvn").args(["--batch-mode", "--quiet", "--file"]).args([pom])
}

/// Returns the real `kudu` program: tool, master and tablet server in one. `kudu` is the unpacked package.
pub(crate) fn kudu_program(kudu: &Path) -> PathBuf {
    kudu.join("bin/kudu")
}

/// Returns the variables with which the real program finds its libraries and its SASL plug-in.
pub(crate) fn kudu_env(kudu: &Path) -> [(&'static str, PathBuf); 2] {
    [("LD_LIBRARY_PATH", kudu.join("lib")), ("SASL_PATH", kudu.join("lib/sasl2"))]
}

/// Returns the real tool's command line, without arguments.
pub(crate) fn kudu_tool(kudu: &Path) -> CommandLine {
    kudu_env(kudu)
        .iter()
        .fold(CommandLine::new(kudu_program(kudu)), |run, (name, value)| run.env(name, value))
}
