//! Profiler of the process's CPU time: samples by a timer, and their stacks in pprof's format.
//!
//! ```text
//!   SIGPROF, 99 a second of CPU time ──▶ stack of the running thread ──time is over──▶ names ──▶ protobuf, gzip
//! ```
//!
//! The library's own writer of the format needs a second version of prost, and loses inlined functions and lines.
//!
//! Invariant: without a running profile there is no timer and no signal, so the profiler costs nothing.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use pprof::{Frames, ProfilerGuard, ProfilerGuardBuilder, Symbol};
use prost::Message;

/// Samples a second of CPU time; not a round number, so that periodic work does not hide between samples.
const FREQUENCY: i32 = 99;
/// Libraries whose code is not interrupted for a stack: unwinding there may take a lock that the code holds.
const NOT_INTERRUPTED: [&str; 4] = ["libc", "libgcc", "pthread", "vdso"];

/// A running profile.
pub(super) struct RunningProfile {
    guard: ProfilerGuard<'static>,
    /// Time since 1970.
    began: Duration,
}

impl RunningProfile {
    /// Starts to sample at `began`, a time since 1970. Fails if a profile is being made.
    pub(super) fn start(began: Duration) -> io::Result<RunningProfile> {
        let guard = ProfilerGuardBuilder::default()
            .frequency(FREQUENCY)
            .blocklist(&NOT_INTERRUPTED)
            .build()
            .map_err(|error| match error {
                pprof::Error::Running => {
                    io::Error::new(io::ErrorKind::ResourceBusy, "another profile is being made")
                }
                other => io::Error::other(other),
            })?;
        Ok(RunningProfile { guard, began })
    }

    /// Ends the profile and returns its bytes. Looking names up takes a second of CPU time in a large program.
    pub(super) fn finish(self, time: Duration) -> io::Result<Vec<u8>> {
        let report = self.guard.report().build().map_err(io::Error::other)?;
        drop(self.guard);
        let mut builder = ProfileBuilder::default();
        for (frames, count) in &report.data {
            builder.add(frames, i64::try_from(*count).unwrap_or(i64::MAX));
        }
        let profile = builder.finish(self.began, time);
        let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
        gzip.write_all(&profile.encode_to_vec())?;
        gzip.finish()
    }
}

/// Builder of a profile, whose texts, functions and locations are numbered in the order of their first use.
#[derive(Default)]
struct ProfileBuilder {
    profile: Profile,
    texts: BTreeMap<String, i64>,
    functions: BTreeMap<(i64, i64), u64>,
    locations: BTreeMap<Vec<(u64, i64)>, u64>,
}

impl ProfileBuilder {
    fn add(&mut self, frames: &Frames, count: i64) {
        let stack = frames.frames.iter().filter(|frame| !frame.is_empty());
        let location_id = stack.map(|symbols| self.location(symbols)).collect();
        let label = Label { key: self.text("thread"), str: self.text(&frames.thread_name) };
        let nanos = count.saturating_mul(1_000_000_000 / i64::from(FREQUENCY));
        self.profile.sample.push(Sample { location_id, value: vec![count, nanos], label: vec![label] });
    }

    /// Returns the number of a place, with the functions that are inlined there.
    fn location(&mut self, symbols: &[Symbol]) -> u64 {
        let lines: Vec<(u64, i64)> =
            symbols.iter().map(|symbol| (self.function(symbol), i64::from(symbol.lineno()))).collect();
        let next = self.locations.len() as u64 + 1;
        let id = *self.locations.entry(lines.clone()).or_insert(next);
        if id == next {
            let line = lines.into_iter().map(|(function_id, line)| Line { function_id, line }).collect();
            self.profile.location.push(Location { id, line });
        }
        id
    }

    fn function(&mut self, symbol: &Symbol) -> u64 {
        let (name, filename) = (self.text(&symbol.name()), self.text(&symbol.filename()));
        let next = self.functions.len() as u64 + 1;
        let id = *self.functions.entry((name, filename)).or_insert(next);
        if id == next {
            self.profile.function.push(Function { id, name, system_name: name, filename });
        }
        id
    }

    fn text(&mut self, text: &str) -> i64 {
        if self.texts.is_empty() {
            // By the format, the first text is empty.
            self.texts.insert(String::new(), 0);
            self.profile.string_table.push(String::new());
        }
        let next = self.texts.len() as i64;
        let id = *self.texts.entry(text.to_owned()).or_insert(next);
        if id == next {
            self.profile.string_table.push(text.to_owned());
        }
        id
    }

    fn value_type(&mut self, name: &str, unit: &str) -> ValueType {
        ValueType { r#type: self.text(name), unit: self.text(unit) }
    }

    fn finish(mut self, began: Duration, time: Duration) -> Profile {
        let nanos = |time: Duration| i64::try_from(time.as_nanos()).unwrap_or(i64::MAX);
        let types = [("samples", "count"), ("cpu", "nanoseconds")];
        let sample_type = types.map(|(name, unit)| self.value_type(name, unit)).to_vec();
        let period_type = Some(self.value_type("cpu", "nanoseconds"));
        Profile {
            sample_type,
            period_type,
            period: 1_000_000_000 / i64::from(FREQUENCY),
            time_nanos: nanos(began),
            duration_nanos: nanos(time),
            ..self.profile
        }
    }
}

/// The messages of pprof's format that are used here; the other fields are at their default.
#[derive(Clone, PartialEq, Message)]
struct Profile {
    #[prost(message, repeated, tag = "1")]
    sample_type: Vec<ValueType>,
    #[prost(message, repeated, tag = "2")]
    sample: Vec<Sample>,
    #[prost(message, repeated, tag = "4")]
    location: Vec<Location>,
    #[prost(message, repeated, tag = "5")]
    function: Vec<Function>,
    #[prost(string, repeated, tag = "6")]
    string_table: Vec<String>,
    #[prost(int64, tag = "9")]
    time_nanos: i64,
    #[prost(int64, tag = "10")]
    duration_nanos: i64,
    #[prost(message, optional, tag = "11")]
    period_type: Option<ValueType>,
    #[prost(int64, tag = "12")]
    period: i64,
}

/// Kind and unit of a value, by the numbers of their texts.
#[derive(Clone, Copy, PartialEq, Message)]
struct ValueType {
    #[prost(int64, tag = "1")]
    r#type: i64,
    #[prost(int64, tag = "2")]
    unit: i64,
}

/// A stack, the innermost place first, and how often it was seen.
#[derive(Clone, PartialEq, Message)]
struct Sample {
    #[prost(uint64, repeated, tag = "1")]
    location_id: Vec<u64>,
    #[prost(int64, repeated, tag = "2")]
    value: Vec<i64>,
    #[prost(message, repeated, tag = "3")]
    label: Vec<Label>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Label {
    #[prost(int64, tag = "1")]
    key: i64,
    #[prost(int64, tag = "2")]
    str: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Location {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(message, repeated, tag = "4")]
    line: Vec<Line>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Line {
    #[prost(uint64, tag = "1")]
    function_id: u64,
    #[prost(int64, tag = "2")]
    line: i64,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Function {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(int64, tag = "2")]
    name: i64,
    #[prost(int64, tag = "3")]
    system_name: i64,
    #[prost(int64, tag = "4")]
    filename: i64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn symbol(name: &str, line: u32) -> Symbol {
        let name = Some(name.as_bytes().to_vec());
        Symbol { name, addr: None, lineno: Some(line), filename: Some("a.rs".into()) }
    }

    fn frames(stack: &[&[(&str, u32)]]) -> Frames {
        let place =
            |symbols: &&[(&str, u32)]| symbols.iter().map(|(name, line)| symbol(name, *line)).collect();
        Frames {
            frames: stack.iter().map(place).collect(),
            thread_name: "worker".to_owned(),
            thread_id: 7,
            sample_timestamp: std::time::UNIX_EPOCH,
        }
    }

    #[test]
    fn places_and_functions_are_stored_once() {
        let mut builder = ProfileBuilder::default();
        builder.add(&frames(&[&[("inlined", 1), ("leaf", 2)], &[("main", 9)]]), 3);
        builder.add(&frames(&[&[("leaf", 5)], &[("main", 9)]]), 1);
        let profile = builder.finish(Duration::from_secs(5), Duration::from_secs(2));
        let text = |at: i64| profile.string_table[usize::try_from(at).expect("a number")].as_str();
        let names: Vec<&str> = profile.function.iter().map(|function| text(function.name)).collect();
        assert_eq!(names, ["inlined", "leaf", "main"]);
        assert_eq!(profile.location.len(), 3);
        let stacks: Vec<_> = profile.sample.iter().map(|sample| sample.location_id.clone()).collect();
        assert_eq!(stacks, [[1, 2], [3, 2]]);
        assert_eq!(profile.sample[0].value, [3, 3 * profile.period]);
        assert_eq!(text(profile.sample[0].label[0].str), "worker");
        assert_eq!((text(0), text(profile.sample_type[1].unit)), ("", "nanoseconds"));
        assert_eq!((profile.time_nanos, profile.duration_nanos), (5_000_000_000, 2_000_000_000));
    }
}
