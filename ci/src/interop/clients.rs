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
/// Folder of the programs and of the files of packages.
const SOURCES: &str = "ci/java/clients";
/// Name of the folder with the jars of a client.
const PACKAGES: &str = "packages";
/// Maven's goal that fetches one package into a folder. Later versions of the plug-in have no destination.
const GET: &str = "org.apache.maven.plugins:maven-dependency-plugin:2.8:get";

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
    /// A package that is fetched without what it needs, as Maven cannot read that.
    pub alone: Option<&'static str>,
    /// Plug-ins to keep of a server that is among the packages as an archive; the program gets its folder.
    pub plugins: &'static [&'static str],
}

pub(super) const SPARK: &[ClientJob] = &[job("spark", "SparkJob")];
pub(super) const FLINK: &[ClientJob] = &[job("flink", "FlinkJob")];
pub(super) const BEAM: &[ClientJob] = &[job("beam", "BeamJob")];
pub(super) const CAMEL: &[ClientJob] = &[job("camel", "CamelJob")];
/// Empty classes beside the program take the place of what its processor needs of Kerberos, which is not published.
pub(super) const NIFI: &[ClientJob] =
    &[ClientJob { alone: Some("org.apache.nifi:nifi-kudu-processors:1.21.0"), ..job("nifi", "NifiJob") }];
pub(super) const TRINO: &[ClientJob] =
    &[ClientJob { plugins: &["kudu", "tpch"], ..job("trino", "TrinoJob") }];
/// Older releases of the Java client.
pub(super) const OLD_CLIENTS: &[ClientJob] = &[
    old_client("old-client-1.9.0", &[("client.version", "1.9.0")]),
    old_client("old-client-1.10.0", &[("client.version", "1.10.0")]),
    old_client("old-client-1.15.0", &[("client.version", "1.15.0")]),
];

const fn job(name: &'static str, program: &'static str) -> ClientJob {
    ClientJob { name, pom: name, properties: &[], program, alone: None, plugins: &[] }
}

const fn old_client(name: &'static str, properties: &'static [(&'static str, &'static str)]) -> ClientJob {
    ClientJob { pom: "old-client", properties, ..job(name, "OldClient") }
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
        let sources = root.join(SOURCES);
        let mut files = ["Checks", job.program].map(|class| sources.join(format!("{class}.java"))).to_vec();
        files.extend(files_below(&sources.join(job.name))?);
        let packages = JavaPackages { pom: job.pom, properties: job.properties, alone: job.alone };
        let class_path = packages.prepare(root, &dir, &files)?;
        let server_dir = match job.plugins {
            [] => None,
            plugins => Some(unpack_server(&dir.join(PACKAGES), plugins)?),
        };
        Ok(Program { class: job.program, class_path, server_dir })
    }

    /// Runs the program against a fresh cluster.
    fn run(&self, target: &Path, server: &ServerKind) -> Result<()> {
        let dir = tempfile::tempdir_in(target)?;
        let plan = ClusterPlan { masters: 1, tablet_servers: TABLET_SERVERS, ..ClusterPlan::default() };
        let mut cluster = Cluster::started(server.clone(), dir.path(), &plan)?;
        let web: Vec<String> = cluster.tservers.iter().map(|tserver| tserver.spec.web.to_string()).collect();
        let run = CommandLine::new("java")
            .env("SPARK_LOCAL_IP", "127.0.0.1")
            .args(jvm())
            .args([format!("-Djava.io.tmpdir={}", dir.path().display())])
            .args(["-cp".into(), self.class_path.clone()])
            .args([self.class, &cluster.master_addresses(), &web.join(",")])
            .args(&self.server_dir)
            .dir(dir.path())
            .run();
        cluster.kill_all();
        run
    }
}

/// Packages of a program.
pub(super) struct JavaPackages<'a> {
    /// See [`ClientJob`].
    pub pom: &'a str,
    pub properties: &'a [(&'a str, &'a str)],
    pub alone: Option<&'a str>,
}

impl JavaPackages<'_> {
    /// Fetches the packages into a folder of `dir` and compiles `sources` with them. Returns the class path of all.
    pub(super) fn prepare(&self, root: &Path, dir: &Path, sources: &[PathBuf]) -> Result<OsString> {
        let jars = dir.join(PACKAGES);
        self.fetch(&root.join(SOURCES).join(format!("{}.xml", self.pom)), &jars)?;
        let classes = dir.join("classes");
        fresh_dir(&classes)?;
        fs::copy(root.join("ci/java/log4j2.properties"), classes.join("log4j2.properties"))?;
        let class_path = class_path(&classes, &jars);
        CommandLine::new("javac")
            .args(["-nowarn", "-proc:none", "-d"])
            .args([&classes])
            .args(["-cp".into(), class_path.clone()])
            .args(sources)
            .run()?;
        Ok(class_path)
    }

    /// Fetches the jars into `dir`, unless the same were fetched before.
    fn fetch(&self, pom: &Path, dir: &Path) -> Result<()> {
        let text = fs::read_to_string(pom).with_context(|| format!("reading {}", pom.display()))?;
        let stamp = format!("{text}{:?}{:?}", self.properties, self.alone);
        let complete = dir.join("complete");
        if fs::read_to_string(&complete).unwrap_or_default() == stamp {
            return Ok(());
        }
        fresh_dir(dir)?;
        println!("fetching the packages of {}", pom.display());
        packages::maven(pom)
            .args(self.properties.iter().map(|(name, value)| format!("-D{name}={value}")))
            .args([format!("-Dpackages={}", dir.display())])
            .args(["dependency:copy-dependencies"])
            .run()?;
        if let Some(package) = self.alone {
            packages::maven(pom)
                .args([GET, "-Dtransitive=false", &format!("-Dartifact={package}")])
                .args([format!("-Ddest={}/", dir.display())])
                .run()?;
        }
        Ok(fs::write(complete, stamp)?)
    }
}

/// Returns the arguments of a JVM for clients of any kind.
pub(super) fn jvm() -> Vec<String> {
    let opens = OPENED.map(|package| format!("--add-opens=java.base/{package}=ALL-UNNAMED"));
    let limits = ["-Xmx1500m", "-XX:+UseSerialGC", "-Djava.net.preferIPv4Stack=true"].map(str::to_owned);
    limits.into_iter().chain(opens).collect()
}

/// Returns all files below a folder, if there is one.
fn files_below(dir: &Path) -> Result<Vec<PathBuf>> {
    if !dir.is_dir() {
        return Ok(Vec::new());
    }
    let mut files = Vec::new();
    for path in entries(dir)? {
        if path.is_dir() {
            files.extend(files_below(&path)?);
        } else {
            files.push(path);
        }
    }
    Ok(files)
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
