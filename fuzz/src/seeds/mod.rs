//! Inputs to begin with, made by the encoders themselves: `cargo run -p fuzz -- seeds` writes them into the corpora.

mod messages;
mod stored;
mod texts;

pub use messages::table_with_hash_and_range;

use std::fs;
use std::io;
use std::path::Path;

/// The target, the input's name and the input.
pub type Seed = (&'static str, String, Vec<u8>);

/// Names of files that are made here.
const PREFIX: &str = "seed-";

pub fn all() -> Vec<Seed> {
    [messages::seeds(), stored::seeds(), texts::seeds()].concat()
}

fn path(corpora: &Path, (target, name, _): &Seed) -> std::path::PathBuf {
    corpora.join(target).join(format!("{PREFIX}{name}"))
}

/// Writes all seeds, and removes those that are no longer made.
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

/// Seeds whose file is missing or says something else.
pub fn stale(corpora: &Path) -> Vec<String> {
    let stale = |seed: &Seed| fs::read(path(corpora, seed)).is_ok_and(|bytes| bytes == seed.2);
    let seeds = all();
    let names = seeds.iter().filter(|seed| !stale(seed));
    names.map(|(target, name, _)| format!("{target}/{PREFIX}{name}")).collect()
}
