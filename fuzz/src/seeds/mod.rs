//! Initial inputs, made by the encoders: `cargo run -p fuzz -- seeds` writes them into the corpora.

mod backups;
mod credentials;
mod files;
mod messages;
mod network_services;
mod seed;
mod text_files;

pub use messages::table_with_hash_and_range;
pub use seed::Seed;

use std::fs;
use std::io;
use std::path::Path;

/// Prefix of the names of generated files.
const PREFIX: &str = "seed-";

pub fn all() -> Vec<Seed> {
    [
        messages::seeds(),
        credentials::seeds(),
        files::seeds(),
        text_files::seeds(),
        backups::seeds(),
        network_services::seeds(),
    ]
    .concat()
}

fn path(corpora: &Path, (target, name, _): &Seed) -> std::path::PathBuf {
    corpora.join(target).join(format!("{PREFIX}{name}"))
}

/// Writes all seeds, and removes files of former ones.
pub fn write(corpora: &Path) -> io::Result<()> {
    let seeds = all();
    for dir in fs::read_dir(corpora)? {
        for file in fs::read_dir(dir?.path())? {
            let file = file?;
            if file.file_name().to_string_lossy().starts_with(PREFIX) {
                fs::remove_file(file.path())?;
            }
        }
    }
    for seed in &seeds {
        let path = path(corpora, seed);
        fs::create_dir_all(path.parent().expect("a file has a folder"))?;
        fs::write(path, &seed.2)?;
    }
    Ok(())
}

/// Returns the seeds whose file is missing or differs.
pub fn stale(corpora: &Path) -> Vec<String> {
    let stale = |seed: &Seed| fs::read(path(corpora, seed)).is_ok_and(|bytes| bytes == seed.2);
    let seeds = all();
    let names = seeds.iter().filter(|seed| !stale(seed));
    names.map(|(target, name, _)| format!("{target}/{PREFIX}{name}")).collect()
}
