//! `cargo ci chart`: the Helm chart, and the plain manifests that are made from it.
//!
//! ```text
//!   helm lint ─► helm template, by several values, of a command and of a file
//!                                                 ─► schemas of Kubernetes (kubernetes-validate)
//!                                                 └► nyala accepts the arguments of every container
//!   default values ─► node/package/kubernetes/nyala.yaml, which must be equal (--write makes it)
//! ```

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use serde_json::Value;

use crate::command::{CommandLine, cargo, target_dir};
use crate::python::environment;
use crate::steps::Steps;
use crate::tools;

/// Version of Kubernetes whose schemas are used.
const KUBERNETES: &str = "1.37.0";
/// Package with the schemas.
const SCHEMAS: &str = "kubernetes-validate==1.37.0";
/// Source of the program `helm`.
const HELM: &str = "helm.sh/helm/v3/cmd/helm@v3.22.0";

/// Values that a chart must take; the first are the defaults.
const VALUES: [&[&str]; 3] = [
    &[],
    &["antiAffinity=required", "master.replicas=1", "flags.rpc_encryption=required"],
    &[
        "tabletServer.storage.class=fast",
        "image.pullSecrets[0]=registry",
        "tabletServer.nodeSelector.disk=ssd",
        "tabletServer.tolerations[0].key=storage",
        "tabletServer.flags.memory_limit_hard_bytes=3000000000",
    ],
];

/// Values in a file, whose numbers Helm reads in another way than those of a command.
const FILE: &str = "
flags: {rpc_encryption: required, rpc_encrypt_loopback_connections: true, log_sync: true, scrub_interval_sec: 86400}
tabletServer: {flags: {memory_limit_hard_bytes: 3000000000, scrub-interval-sec: 0, log_sync: false}}
";
/// Arguments of a tablet server by these values: its own take precedence, also those that are false or zero.
const FILE_ARGUMENTS: [&str; 5] = [
    "--rpc-encryption=required",
    "--rpc-encrypt-loopback-connections=true",
    "--memory-limit-hard-bytes=3000000000",
    "--scrub-interval-sec=0",
    "--log-sync=false",
];
/// Arguments by the shared values that a tablet server's own replace.
const REPLACED_ARGUMENTS: [&str; 2] = ["--scrub-interval-sec=86400", "--log-sync=true"];

/// Values that the chart must refuse.
const REFUSED: [&str; 4] =
    ["master.replicas=2", "tabletServer.storage.wal=ten", "antiAffinity=none", "tabletServers.replicas=3"];

/// Flags of a server that ends at its directories, whatever the machine's clock is and the state of its ports.
const MISSING_DIRECTORY: [&str; 3] =
    ["--fs-wal-dir=/dev/null/wal", "--time-source=system_unsync", "--webserver-enabled=false"];

#[derive(Args)]
pub(crate) struct ChartOptions {
    /// Write the plain manifests instead of comparing them
    #[arg(long)]
    write: bool,
}

/// Checks the chart.
pub(crate) fn run(root: &Path, options: &ChartOptions, steps: &mut Steps) {
    let mut python = PathBuf::new();
    steps.run("chart: lint", || {
        tools::require_go("helm", HELM)?;
        python = environment(&target_dir()?.join("python/schemas"), &[SCHEMAS])?;
        CommandLine::new("helm").args(["lint", "--strict", "--quiet"]).args([chart(root)]).run()
    });
    if python.as_os_str().is_empty() {
        return;
    }
    steps.run("chart: schemas", || VALUES.iter().try_for_each(|values| check_schemas(root, &python, values)));
    steps.run("chart: refused values", || REFUSED.iter().try_for_each(|value| check_refused(root, value)));
    steps.run("chart: arguments", || {
        cargo(root, &["build", "--quiet", "--package", "node"])?;
        VALUES.iter().try_for_each(|values| check_arguments(&arguments(&python, &render(root, values)?)?))
    });
    steps.run("chart: values of a file", || check_file(root, &python));
    steps.run("chart: manifests", || check_manifests(root, options.write));
}

fn chart(root: &Path) -> PathBuf {
    root.join("node/package/helm")
}

/// Returns the manifests that the chart makes of these values.
fn render(root: &Path, values: &[&str]) -> Result<String> {
    let sets: Vec<&str> = values.iter().flat_map(|value| ["--set", *value]).collect();
    template(root, &sets)
}

/// Returns the manifests that the chart makes with these options of `helm template`.
fn template(root: &Path, options: &[&str]) -> Result<String> {
    let output = CommandLine::new("helm")
        .args(["template", "nyala"])
        .args([chart(root)])
        .args(["--kube-version", KUBERNETES])
        .args(options)
        .output()?;
    ensure!(output.success, "helm template {}: {}", options.join(" "), output.stderr);
    Ok(output.stdout)
}

/// Checks the arguments by values of a file.
fn check_file(root: &Path, python: &Path) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("values.yaml");
    fs::write(&file, FILE)?;
    let file = file.to_str().context("a temporary path is UTF-8")?;
    let containers = arguments(python, &template(root, &["--values", file])?)?;
    let has = |args: &[String], text: &str| args.iter().any(|arg| arg == text);
    let is_right = |args: &Vec<String>| {
        FILE_ARGUMENTS.iter().all(|text| has(args, text))
            && !REPLACED_ARGUMENTS.iter().any(|text| has(args, text))
    };
    ensure!(containers.iter().any(is_right), "no container has just {FILE_ARGUMENTS:?}: {containers:?}");
    check_arguments(&containers)
}

fn check_schemas(root: &Path, python: &Path, values: &[&str]) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("manifests.yaml");
    fs::write(&file, render(root, values)?)?;
    let words = ["-m", "kubernetes_validate", "--strict", "--quiet", "-k", KUBERNETES];
    CommandLine::new(python).args(words).args([&file]).run()
}

fn check_refused(root: &Path, value: &str) -> Result<()> {
    match render(root, &[value]) {
        Ok(_) => bail!("the chart takes {value}"),
        Err(error) if error.to_string().contains("schema") => Ok(()),
        Err(error) => Err(error),
    }
}

/// Checks that the program takes the arguments of every container: it must go on to the directories, which are not
/// there.
fn check_arguments(containers: &[Vec<String>]) -> Result<()> {
    for args in containers {
        let args: Vec<String> = args.iter().map(|arg| arg.replace("$(POD_NAME)", "localhost")).collect();
        let is_server = args.iter().any(|arg| arg.starts_with("--fs-wal-dir"));
        let more: &[&str] = if is_server { &MISSING_DIRECTORY } else { &["--help"] };
        let output = CommandLine::new(target_dir()?.join("debug/nyala")).args(&args).args(more).output()?;
        let passed = match is_server {
            true => output.stderr.contains("/dev/null/wal"),
            false => output.success,
        };
        ensure!(passed, "nyala {}: {}", args.join(" "), output.stderr);
    }
    ensure!(containers.len() == 3, "{} containers", containers.len());
    Ok(())
}

/// Returns the arguments of all containers of these manifests.
fn arguments(python: &Path, manifests: &str) -> Result<Vec<Vec<String>>> {
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("manifests.yaml");
    fs::write(&file, manifests)?;
    let program = "import json, sys, yaml; print(json.dumps(list(yaml.safe_load_all(open(sys.argv[1])))))";
    let output = CommandLine::new(python).args(["-c", program]).args([&file]).output()?;
    ensure!(output.success, "{}", output.stderr);
    let manifests: Vec<Value> = serde_json::from_str(&output.stdout)?;
    let pods = manifests.iter().filter_map(|manifest| match manifest["kind"].as_str()? {
        "StatefulSet" => Some(&manifest["spec"]["template"]["spec"]),
        "Pod" => Some(&manifest["spec"]),
        _ => None,
    });
    let containers = pods.flat_map(|pod| pod["containers"].as_array().into_iter().flatten());
    containers
        .map(|container| {
            serde_json::from_value(container["args"].clone()).context("a container has arguments")
        })
        .collect()
}

fn check_manifests(root: &Path, write: bool) -> Result<()> {
    let file = root.join("node/package/kubernetes/nyala.yaml");
    // The test of the chart is none of the cluster's parts.
    let rendered = render(root, &[])?;
    let servers = rendered.split("---\n").filter(|part| !part.contains("helm.sh/hook")).collect::<Vec<_>>();
    let head = "# Three masters and three tablet servers, made from node/package/helm by `cargo ci chart --write`.\n\
                # kubectl apply -f nyala.yaml\n";
    let text = format!("{head}{}", servers.join("---\n"));
    if write {
        fs::create_dir_all(root.join("node/package/kubernetes"))?;
        return fs::write(&file, text).with_context(|| format!("writing {}", file.display()));
    }
    let has = fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
    ensure!(has == text, "{} is not what the chart makes; run cargo ci chart --write", file.display());
    Ok(())
}
