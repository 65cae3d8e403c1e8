//! Allocation profile of a workload: bytes and blocks by the place that allocated them.
//!
//! Run with `cargo ci profile WORKLOAD`. `allocations.json` is for dhat's viewer. `allocations.txt` has the places
//! with most allocated bytes, and their bytes at the peak.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the process is looked at from outside"
)]

mod workload;

use std::fmt::Write;
use std::fs;

use serde::Deserialize;

#[global_allocator]
static ALLOCATOR: dhat::Alloc = dhat::Alloc;

const PLACES: usize = 40;
const FRAMES: usize = 6;

/// The part of dhat's file that is used: places, each with total bytes and blocks, bytes at the peak, and frames.
#[derive(Deserialize)]
struct Profile {
    pps: Vec<Place>,
    ftbl: Vec<String>,
}

#[derive(Deserialize)]
struct Place {
    tb: u64,
    tbk: u64,
    gb: u64,
    fs: Vec<usize>,
}

fn main() {
    let Some(asked) = workload::asked() else {
        println!("it is run by `cargo ci profile`");
        return;
    };
    fs::create_dir_all(&asked.out).expect("a folder for the report");
    let path = asked.out.join("allocations.json");
    let profiler = workload::run(&asked, || {
        dhat::Profiler::builder().file_name(&path).trim_backtraces(Some(24)).build()
    });
    drop(profiler);
    let profile = fs::read_to_string(&path).expect("dhat has written it");
    let profile = serde_json::from_str(&profile).expect("dhat writes JSON");
    fs::write(asked.out.join("allocations.txt"), summary(profile)).expect("a file for the summary");
}

fn summary(mut profile: Profile) -> String {
    let (bytes, blocks) = profile.pps.iter().fold((0, 0), |sum, place| (sum.0 + place.tb, sum.1 + place.tbk));
    let mut text = format!("{bytes} bytes in {blocks} blocks\n");
    profile.pps.sort_by_key(|place| std::cmp::Reverse(place.tb));
    for place in profile.pps.iter().take(PLACES) {
        let share = place.tb as f64 / bytes.max(1) as f64 * 100.0;
        let (tb, tbk, gb) = (place.tb, place.tbk, place.gb);
        writeln!(text, "\n{share:5.1} %  {tb} bytes in {tbk} blocks, {gb} of them at the peak")
            .expect("writing to a string");
        let names = place.fs.iter().filter_map(|frame| profile.ftbl.get(*frame)).filter(|name| ours(name));
        for name in names.take(FRAMES) {
            writeln!(text, "         {name}").expect("writing to a string");
        }
    }
    text
}

/// Returns true if a frame is neither the allocator's nor the standard library's.
fn ours(frame: &str) -> bool {
    ["engine::", "node::", "workload::", "prost::", "parquet::", "bytes::"]
        .iter()
        .any(|name| frame.contains(name))
}
