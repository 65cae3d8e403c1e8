//! Files of backups that a restore trusts.

use nyala_backup::manifest::Manifest;

/// Puts the text of a manifest under its checksum, as files have it.
fn sealed(text: &str) -> Vec<u8> {
    format!("{{\"crc32c\":{},\"manifest\":{text}}}", crc32c::crc32c(text.as_bytes())).into_bytes()
}

/// Checks the manifest of a backup: the bytes as a file, and as the text under a correct checksum.
pub(super) fn backup_manifest(data: &[u8]) {
    check(data);
    if let Ok(text) = std::str::from_utf8(data) {
        check(&sealed(text.trim()));
    }
}

fn check(file: &[u8]) {
    let Ok(manifest) = Manifest::decode(file) else { return };
    let again = manifest.encode().expect("what was just decoded");
    assert_eq!(Manifest::decode(&again).expect("what was just encoded"), manifest);
    let (rows, bytes) = (manifest.rows(), manifest.bytes());
    assert!(manifest.parts.iter().all(|part| part.rows <= rows && part.bytes <= bytes), "sums of parts");
    assert_eq!(manifest.span().is_full(), manifest.is_full());
    if let Ok(schema) = manifest.schema() {
        let _ = manifest.partition_schema(&schema);
    }
    let _ = manifest.ranges();
    let _ = nyala_backup::manifest::time_text(manifest.to_ms);
}
