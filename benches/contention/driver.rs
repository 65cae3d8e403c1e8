//! The share of CPU that tokio's I/O driver takes: one thread of a runtime at a time asks the kernel for events.

use pprof::{ProfilerGuard, ProfilerGuardBuilder, Report, Symbol};

use crate::Done;

/// Samples per second of CPU time; prime, to avoid beats with events of every millisecond.
const FREQUENCY: i32 = 499;
/// Functions whose callees are the driver's work, with the kernel's part of it: name, type, and file. An inlined
/// function has its name alone.
const DRIVER: [(&str, &str, &str); 2] = [
    ("turn", "io::driver::Driver", "runtime/io/driver.rs"),
    ("park_internal", "time::Driver", "runtime/time/mod.rs"),
];

pub(crate) fn begin() -> Done<ProfilerGuard<'static>> {
    // Unwinding from within these libraries may wait for a lock that the interrupted code holds.
    let guard =
        ProfilerGuardBuilder::default().frequency(FREQUENCY).blocklist(&["libgcc", "pthread", "vdso"]);
    Ok(guard.build()?)
}

/// Returns the driver's share of the samples.
pub(crate) fn share(guard: &ProfilerGuard<'_>) -> Done<f64> {
    let report: Report = guard.report().build()?;
    let (mut all, mut within) = (0, 0);
    for (stack, samples) in &report.data {
        all += samples;
        within += if stack.frames.iter().flatten().any(is_driver) { *samples } else { 0 };
    }
    Ok(within as f64 / all.max(1) as f64)
}

fn is_driver(symbol: &Symbol) -> bool {
    let (name, path) = (symbol.name(), symbol.filename());
    let is = |(function, of, file): &(&str, &str, &str)| {
        name.contains(function) && (name.contains(of) || path.contains(file))
    };
    DRIVER.iter().any(is)
}
