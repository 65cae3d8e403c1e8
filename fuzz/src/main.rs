//! `fuzz TARGET FILE…` runs a target on inputs, for example a crash input; `fuzz seeds` writes the seeds of all
//! corpora; `fuzz list` prints the targets.

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let done = match words[..] {
        ["list"] => {
            fuzz::TARGETS.iter().for_each(|target| println!("{}", target.name));
            Ok(())
        }
        ["seeds"] => {
            let corpora = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
            fuzz::seeds::write(&corpora).map_err(|error| format!("{}: {error}", corpora.display()))
        }
        [target, ref files @ ..] if !files.is_empty() => replay(target, files),
        _ => Err("say `list`, `seeds`, or a target and files to run it on".to_string()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn replay(name: &str, files: &[&str]) -> Result<(), String> {
    let target = fuzz::target(name).ok_or_else(|| format!("{name} is no target; `list` names them"))?;
    for file in files {
        let input = std::fs::read(file).map_err(|error| format!("{file}: {error}"))?;
        fuzz::replay(target, &input);
        println!("{file}: nothing found");
    }
    Ok(())
}
