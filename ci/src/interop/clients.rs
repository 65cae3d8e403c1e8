//! Clients that others wrote on top of the Java client: one program per client, run against a cluster of its own.
//!
//! ```text
//!   ci/java/clients/NAME.xml ─ Maven ─▶ target/interop/clients/NAME/packages/*.jar
//!                   Checks.java, PROGRAM.java ─ javac ─▶ target/interop/clients/NAME/classes
//!   java PROGRAM masters web-addresses-of-tablet-servers ─▶ a line per check, exit code 1 if one failed
//! ```
//!
//! Each program compares the client's answers with rows of its own making. What a client pushes down is read from the
//! tablet servers' metrics.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::cluster::{Cluster, ClusterPlan};
use super::daemon::ServerKind;
use super::packages;
use crate::command::CommandLine;
use crate::steps::Steps;

const TABLET_SERVERS: usize = 3;

/// Packages that clients reach by reflection, all in `java.base`.
const OPENED: [&str; 13] = [
    "java.io",
    "java.lang",
    "java.lang.invoke",
    "java.lang.reflect",
    "java.net",
    "java.nio",
    "java.util",
    "java.util.concurrent",
    "java.util.concurrent.atomic",
    "sun.nio.ch",
    "sun.nio.cs",
    "sun.security.action",
    "sun.util.calendar",
];

/// A client: its packages and the program that uses it.
pub(super) struct ClientJob {
    /// Name of the job and of its folder.
    pub name: &'static str,
    /// The file of its packages in `ci/java/clients`, without the extension.
    pub pom: &'static str,
    /// Properties of that file, where it serves several versions.
    pub properties: &'static [(&'static str, &'static str)],
    /// The program's class.
    pub program: &'static str,
    /// Plug-ins to keep of a server that is among the packages as an archive; the program gets its folder.
    pub plugins: &'static [&'static str],
}

pub(super) const SPARK: &[ClientJob] = &[job("spark", "SparkJob")];
pub(super) const FLINK: &[ClientJob] = &[job("flink", "FlinkJob")];
pub(super) const BEAM: &[ClientJob] = &[job("beam", "BeamJob")];
pub(super) const CAMEL: &[ClientJob] = &[job("camel", "CamelJob")];
pub(super) const TRINO: &[ClientJob] =
    &[ClientJob { plugins: &["kudu", "tpch"], ..job("trino", "TrinoJob") }];
/// Older releases of the Java client.
pub(super) const OLD_CLIENTS: &[ClientJob] = &[
    old_client("old-client-1.9.0", &[("client.version", "1.9.0")]),
    old_client("old-client-1.10.0", &[("client.version", "1.10.0")]),
    old_client("old-client-1.15.0", &[("client.version", "1.15.0")]),
];

const fn job(name: &'static str, program: &'static str) -> ClientJob {
    ClientJob { name, pom: name, properties: &[], program, plugins: &[] }
}

const fn old_client(name: &'static str, properties: &'static [(&'static str, &'static str)]) -> ClientJob {
    ClientJob { name, pom: "old-client", properties, program: "OldClient", plugins: &[] }
}

/// Runs the jobs one after another, each as steps. `root` is the source tree, `target` the folder of what is built.
pub(super) fn run(root: &Path, target: &Path, server: &ServerKind, jobs: &[ClientJob], steps: &mut Steps) {
    for job in jobs {
        let mut prepared = None;
        steps.run(&format!("{}: packages", job.name), || {
            prepared = Some(Program::prepare(root, target, job)?);
            Ok(())
        });
        if let Some(program) = prepared {
            steps.run(&format!("{} on {}", job.name, server.name()), || program.run(target, server));
        }
    }
}

/// A compiled program with the jars that it needs.
struct Program {
    class: &'static str,
    class_path: OsString,
    /// The folder of the unpacked server, if the client is one.
    server_dir: Option<PathBuf>,
}

impl Program {
    fn prepare(root: &Path, target: &Path, job: &ClientJob) -> Result<Program> {
        let dir = target.join("clients").join(job.name);
        let sources = root.join("ci/java/clients");
        let jars = fetch(&sources.join(format!("{}.xml", job.pom)), job.properties, &dir.join("packages"))?;
        let classes = dir.join("classes");
        fresh_dir(&classes)?;
        fs::copy(root.join("ci/java/log4j2.properties"), classes.join("log4j2.properties"))?;
        let class_path = class_path(&classes, &jars);
        let files = ["Checks", job.program].map(|class| sources.join(format!("{class}.java")));
        CommandLine::new("javac")
            .args(["-nowarn", "-proc:none", "-d"])
            .args([&classes])
            .args(["-cp".into(), class_path.clone()])
            .args(files)
            .run()?;
        let server_dir = match job.plugins {
            [] => None,
            plugins => Some(unpack_server(&jars, plugins)?),
        };
        Ok(Program { class: job.program, class_path, server_dir })
    }

    /// Runs the program against a fresh cluster.
    fn run(&self, target: &Path, server: &ServerKind) -> Result<()> {
        let dir = tempfile::tempdir_in(target)?;
        let plan = ClusterPlan { masters: 1, tablet_servers: TABLET_SERVERS, ..ClusterPlan::default() };
        let mut cluster = Cluster::started(server.clone(), dir.path(), &plan)?;
        let web: Vec<String> = cluster.tservers.iter().map(|tserver| tserver.spec.web.to_string()).collect();
        let opens = OPENED.map(|package| format!("--add-opens=java.base/{package}=ALL-UNNAMED"));
        let run = CommandLine::new("java")
            .env("SPARK_LOCAL_IP", "127.0.0.1")
            .args(["-Xmx1500m", "-XX:+UseSerialGC", "-Djava.net.preferIPv4Stack=true"])
            .args([format!("-Djava.io.tmpdir={}", dir.path().display())])
            .args(opens)
            .args(["-cp".into(), self.class_path.clone()])
            .args([self.class, &cluster.master_addresses(), &web.join(",")])
            .args(&self.server_dir)
            .dir(dir.path())
            .run();
        cluster.kill_all();
        run
    }
}

/// Fetches the jars that a file of packages names into `dir`, unless the same file was fetched before.
fn fetch(pom: &Path, properties: &[(&str, &str)], dir: &Path) -> Result<PathBuf> {
    let text = fs::read_to_string(pom).with_context(|| format!("reading {}", pom.display()))?;
    let stamp = format!("{text}{properties:?}");
    let complete = dir.join("complete");
    if fs::read_to_string(&complete).unwrap_or_default() != stamp {
        fresh_dir(dir)?;
        println!("fetching the packages of {}", pom.display());
        packages::maven(pom)
            .args(properties.iter().map(|(name, value)| format!("-D{name}={value}")))
            .args([format!("-Dpackages={}", dir.display())])
            .args(["dependency:copy-dependencies"])
            .run()?;
        fs::write(complete, stamp)?;
    }
    Ok(dir.to_path_buf())
}

/// Unpacks the one archive among the packages, keeps the named plug-ins only, and returns its top folder.
fn unpack_server(jars: &Path, plugins: &[&str]) -> Result<PathBuf> {
    let dir = jars.join("server");
    if let Some(archive) =
        entries(jars)?.into_iter().find(|path| path.extension().is_some_and(|ext| ext == "gz"))
    {
        fresh_dir(&dir)?;
        CommandLine::new("tar").args(["xzf".as_ref(), archive.as_os_str()]).dir(&dir).run()?;
        fs::remove_file(archive)?;
    }
    let server = entries(&dir)?.pop().with_context(|| format!("{} is empty", dir.display()))?;
    for plugin in entries(&server.join("plugin"))? {
        if !plugins.iter().any(|kept| plugin.ends_with(kept)) {
            fs::remove_dir_all(plugin)?;
        }
    }
    Ok(server)
}

fn entries(dir: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(dir).with_context(|| format!("reading {}", dir.display()))?;
    entries.map(|entry| Ok(entry?.path())).collect()
}

fn fresh_dir(dir: &Path) -> Result<()> {
    if dir.exists() {
        fs::remove_dir_all(dir)?;
    }
    Ok(fs::create_dir_all(dir)?)
}

fn class_path(classes: &Path, jars: &Path) -> OsString {
    let mut path = classes.as_os_str().to_owned();
    path.push(":");
    path.push(jars.join("*"));
    path
}
