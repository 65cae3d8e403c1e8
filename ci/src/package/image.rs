//! The OCI image: built from the package by buildah on a fresh Debian, tried in a container, kept as an archive.
//!
//! No registry is asked: mmdebstrap makes the base, and containers are chroots.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::command::CommandLine;
use crate::tools;

const CONTAINERFILE: &str = "node/package/oci/Containerfile";

/// Script that runs in a container.
const TRIAL: &str = include_str!("image.sh");

const BASE: &str = "localhost/nyala-base:latest";
const IMAGE: &str = "localhost/nyala:latest";

/// Lines that the image's configuration must have, as `buildah inspect` prints them.
const CONFIGURATION: &str = "10001:10001 [/usr/bin/nyala] SIGTERM map[/var/lib/nyala:{}]";
const CONFIGURATION_FORMAT: &str =
    "{{with .OCIv1.Config}}{{.User}} {{.Entrypoint}} {{.StopSignal}} {{.Volumes}}{{end}}";

/// Images and containers of one trial.
struct Store {
    dir: tempfile::TempDir,
}

impl Store {
    fn buildah(&self, words: &[&str]) -> CommandLine {
        let dir = self.dir.path();
        CommandLine::new("buildah")
            .args(["--storage-driver", "vfs", "--root"])
            .args([dir.join("store")])
            .args([Path::new("--runroot"), &dir.join("run")])
            .args(words)
            .env("BUILDAH_ISOLATION", "chroot")
    }

    fn output(&self, words: &[&str]) -> Result<String> {
        let output = self.buildah(words).output()?;
        ensure!(output.success, "buildah {}: {}", words.join(" "), output.stderr);
        Ok(output.stdout.trim().to_string())
    }

    /// Makes the base from a fresh Debian.
    fn make_base(&self) -> Result<()> {
        let tree = self.dir.path().join("base.tar");
        let words = ["--quiet", "--variant=minbase", "bookworm"];
        CommandLine::new("mmdebstrap").args(words).args([&tree]).run()?;
        let container = self.output(&["from", "scratch"])?;
        self.output(&["add", &container, utf8(&tree)?, "/"])?;
        self.output(&["commit", "--rm", &container, BASE])?;
        Ok(())
    }
}

/// Builds the image beside the package, tries it, and returns the path of its archive.
pub(super) fn build_and_try(root: &Path, package: &Path) -> Result<PathBuf> {
    tools::require(&["buildah", "mmdebstrap"], &["buildah", "mmdebstrap"])?;
    let store = Store { dir: tempfile::tempdir_in(crate::command::target_dir()?)? };
    store.make_base()?;
    let folder = package.parent().context("the package is in a folder")?;
    let recipe = root.join(CONTAINERFILE);
    let base = format!("BASE={BASE}");
    let recipe = ["build", "--pull-never", "--build-arg", &base, "--tag", IMAGE, "--file", utf8(&recipe)?];
    store.output(&[&recipe[..], &[utf8(folder)?]].concat())?;
    let configuration =
        store.output(&["inspect", "--type", "image", "--format", CONFIGURATION_FORMAT, IMAGE])?;
    ensure!(configuration == CONFIGURATION, "the image's configuration is {configuration:?}");
    let container = store.output(&["from", "--pull-never", IMAGE])?;
    let trial = store.buildah(&["run", &container, "--", "sh", "-eux", "-c", TRIAL]).output()?;
    let passed = trial.success && trial.stdout.contains("image: passed");
    ensure!(passed, "the trial of the image did not end:\n{}\n{}", trial.stdout, trial.stderr);
    let archive = folder.join("nyala-image.tar");
    let destination = format!("oci-archive:{}:nyala:latest", utf8(&archive)?);
    store.output(&["push", IMAGE, &destination])?;
    Ok(archive)
}

fn utf8(path: &Path) -> Result<&str> {
    path.to_str().with_context(|| format!("{} is not UTF-8", path.display()))
}
