//! CPU profile of a workload as a flame graph, server and client in one process.
//!
//! Run with `cargo ci profile WORKLOAD`. Stacks are sampled by CPU time on every thread. `cpu.svg` shows all of them,
//! `cpu.txt` the most frequent running functions. Kernel time is counted where the kernel was called.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the process is looked at from outside"
)]

mod workload;

use std::collections::HashMap;
use std::fmt::Write;
use std::fs::{self, File};

use pprof::{ProfilerGuardBuilder, Report};

/// The allocator of the program, with its defaults.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Samples per second of CPU time; prime, to avoid beats with events of every millisecond.
const FREQUENCY: i32 = 499;
const LINES: usize = 60;

fn main() {
    let Some(asked) = workload::asked() else {
        println!("it is run by `cargo ci profile`");
        return;
    };
    nyala_common::env::os::decline_huge_pages();
    let begin = || {
        // Unwinding from within these libraries may wait for a lock that the interrupted code holds.
        let guard =
            ProfilerGuardBuilder::default().frequency(FREQUENCY).blocklist(&["libgcc", "pthread", "vdso"]);
        guard.build().expect("the timer can be set")
    };
    let guard = workload::run(&asked, begin);
    let report = guard.report().build().expect("there are samples");
    fs::create_dir_all(&asked.out).expect("a folder for the report");
    let file = File::create(asked.out.join("cpu.svg")).expect("a file for the graph");
    report.flamegraph(file).expect("the graph can be drawn");
    fs::write(asked.out.join("cpu.txt"), summary(&report)).expect("a file for the summary");
}

/// Returns the functions that were most often running, and those that were most often on the stack.
fn summary(report: &Report) -> String {
    let (mut own, mut within) = (HashMap::new(), HashMap::new());
    let mut all = 0;
    for (stack, samples) in &report.data {
        all += samples;
        let mut names: Vec<String> = stack.frames.iter().flatten().map(|symbol| symbol.name()).collect();
        if let Some(leaf) = names.first() {
            *own.entry(leaf.clone()).or_insert(0) += samples;
        }
        // A recursive function counts once.
        names.sort_unstable();
        names.dedup();
        names.into_iter().for_each(|name| *within.entry(name).or_insert(0) += samples);
    }
    let seconds = all as f64 / f64::from(FREQUENCY);
    let mut text = format!("{all} samples, {seconds:.2} s of CPU time\n");
    for (title, counts) in [("running", own), ("on the stack", within)] {
        writeln!(text, "\n{title}").expect("writing to a string");
        let mut counts: Vec<(String, isize)> = counts.into_iter().collect();
        counts.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(&b.0)));
        for (name, samples) in counts.iter().take(LINES) {
            let share = *samples as f64 / all.max(1) as f64 * 100.0;
            writeln!(text, "{share:6.2} %  {name}").expect("writing to a string");
        }
    }
    text
}
