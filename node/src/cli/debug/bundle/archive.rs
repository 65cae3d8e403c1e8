//! The archive: files in memory, then one compressed file.

use std::io::Write;

use engine::error::{Error, Result};
use engine::time::WallTime;
use flate2::Compression;
use flate2::write::GzEncoder;
use nyala_backup::files::OutputFile;

/// Files of a bundle, and the parts that could not be collected.
pub(super) struct Bundle {
    at: WallTime,
    files: Vec<(String, Vec<u8>)>,
    failures: Vec<String>,
}

impl Bundle {
    pub(super) fn new(at: WallTime) -> Bundle {
        Bundle { at, files: Vec::new(), failures: Vec::new() }
    }

    /// Adds a file. Paths have letters, digits, `-`, `_`, `.` and `/` only.
    pub(super) fn add(&mut self, path: &str, bytes: Vec<u8>) {
        self.files.push((path.to_string(), bytes));
    }

    /// Notes a part that could not be collected.
    pub(super) fn failed(&mut self, part: &str, why: &str) {
        self.failures.push(format!("{part}: {}", why.replace('\n', " ")));
    }

    /// Returns the number of files.
    pub(super) fn files(&self) -> usize {
        self.files.len()
    }

    /// Returns the parts that could not be collected, each with the reason.
    pub(super) fn failures(&self) -> &[String] {
        &self.failures
    }

    fn index(&self, version: &str) -> String {
        let mut index = format!("{version}, {} seconds since 1970\n", self.at.micros / 1_000_000);
        for (path, bytes) in &self.files {
            index.push_str(&format!("{path}: {} bytes\n", bytes.len()));
        }
        for failure in &self.failures {
            index.push_str(&format!("NOT COLLECTED {failure}\n"));
        }
        index
    }

    /// Returns the compressed archive.
    fn encode(&self, version: &str) -> std::io::Result<Vec<u8>> {
        let mut tar = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::default()));
        let index = ("index.txt".to_string(), self.index(version).into_bytes());
        for (path, bytes) in [&index].into_iter().chain(&self.files) {
            let mut header = tar::Header::new_gnu();
            header.set_size(bytes.len() as u64);
            header.set_mode(0o644);
            header.set_mtime(self.at.micros / 1_000_000);
            tar.append_data(&mut header, format!("nyala-bundle/{path}"), &bytes[..])?;
        }
        tar.into_inner()?.finish()
    }

    /// Writes the bundle; returns its size in bytes.
    pub(super) fn write(&self, mut file: OutputFile, version: &str) -> Result<u64> {
        let path = file.shown_path().to_string();
        let failed = |error: std::io::Error| Error::io(format_args!("write {path}"), &error);
        file.write_all(&self.encode(version).map_err(failed)?).map_err(failed)?;
        file.finish()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn an_archive_has_its_files_and_an_index_of_them() {
        let mut bundle = Bundle::new(WallTime { micros: 7_000_000, error_micros: 0 });
        bundle.add("cluster/check.txt", b"well\n".to_vec());
        bundle.failed("servers at b:1", "no\nreply");
        let bytes = bundle.encode("nyala 1").expect("encoded in memory");
        let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(&bytes[..]));
        let mut found = String::new();
        for entry in archive.entries().expect("an archive") {
            let mut entry = entry.expect("an entry");
            found.push_str(&format!("-- {}\n", entry.path().expect("a path").display()));
            entry.read_to_string(&mut found).expect("text");
        }
        expect_test::expect![[r#"
            -- nyala-bundle/index.txt
            nyala 1, 7 seconds since 1970
            cluster/check.txt: 5 bytes
            NOT COLLECTED servers at b:1: no reply
            -- nyala-bundle/cluster/check.txt
            well
        "#]]
        .assert_eq(&found);
    }
}
