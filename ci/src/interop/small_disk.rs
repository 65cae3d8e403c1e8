//! A disk small enough to fill: a file system in memory, mounted under the test's folder.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::command::CommandLine;

/// Size of the disk: enough for the logs and data of one tablet server of the test.
const MEGABYTES: usize = 384;

/// A mounted disk; dropping it unmounts it, also while it is in use.
pub(crate) struct SmallDisk {
    pub dir: PathBuf,
}

impl SmallDisk {
    /// Mounts a disk at `dir`. Returns `None`, with the reason printed, where mounting is not allowed: it needs root.
    pub(crate) fn mount(dir: &Path) -> Result<Option<SmallDisk>> {
        fs::create_dir_all(dir)?;
        let size = format!("size={MEGABYTES}m");
        let mounted =
            CommandLine::new("mount").args(["-t", "tmpfs", "-o", &size, "nyala"]).args([dir]).output();
        let why = match mounted {
            Ok(output) if output.success => return Ok(Some(SmallDisk { dir: dir.to_path_buf() })),
            Ok(output) => output.stderr,
            Err(error) => format!("{error:#}"),
        };
        println!("    NO DISK IS FILLED, as none can be mounted here (run it as root): {}", why.trim());
        Ok(None)
    }

    /// Fills the disk; returns the number of bytes written.
    pub(crate) fn fill(&self) -> Result<usize> {
        let mut file = File::create(self.filler())?;
        let chunk = vec![0; 64 << 10];
        let mut bytes = 0;
        // In ever smaller pieces, so that no byte is left.
        for size in [chunk.len(), 4096, 1] {
            while file.write_all(&chunk[..size]).is_ok() {
                bytes += size;
            }
        }
        Ok(bytes)
    }

    /// Frees the space again.
    pub(crate) fn free(&self) -> Result<()> {
        Ok(fs::remove_file(self.filler())?)
    }

    fn filler(&self) -> PathBuf {
        self.dir.join("filler")
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // It fails only if another program unmounted it.
        let _ = CommandLine::new("umount").args(["-l"]).args([&self.dir]).output();
    }
}
