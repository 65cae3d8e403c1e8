//! Numbers that tell how a server is doing, in Prometheus' text format.
//!
//! Whoever owns a number keeps it (an atomic, a [`Histogram`]) and registers a way to read it; nothing is global.
//! Units are in the names, as Prometheus wants them: `_bytes`, `_seconds`, `_total`.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

/// Something that can tell its numbers.
pub trait Collect: Send + Sync {
    fn collect(&self, out: &mut Samples);
}

impl<F: Fn(&mut Samples) + Send + Sync> Collect for F {
    fn collect(&self, out: &mut Samples) {
        self(out);
    }
}

/// All that can tell numbers on one server.
#[derive(Default)]
pub struct Metrics {
    sources: Mutex<Vec<Weak<dyn Collect>>>,
    /// Sources that live as long as the server.
    kept: Mutex<Vec<Arc<dyn Collect>>>,
}

impl Metrics {
    pub fn new() -> Arc<Metrics> {
        Arc::default()
    }

    /// Asks `source` from now on, for as long as someone else keeps it.
    pub fn watch(&self, source: &Arc<dyn Collect>) {
        let mut sources = self.sources.lock().expect("nothing panics while it holds the list");
        sources.retain(|source| source.strong_count() > 0);
        sources.push(Arc::downgrade(source));
    }

    /// Asks `source` from now on.
    pub fn keep(&self, source: impl Collect + 'static) {
        self.kept().push(Arc::new(source));
    }

    fn kept(&self) -> MutexGuard<'_, Vec<Arc<dyn Collect>>> {
        self.kept.lock().expect("nothing panics while it holds the list")
    }

    /// Everything, in Prometheus' text format, families and samples sorted.
    pub fn render(&self) -> String {
        let mut samples = Samples::default();
        let sources: Vec<_> = {
            let watched = self.sources.lock().expect("nothing panics while it holds the list");
            watched.iter().filter_map(Weak::upgrade).chain(self.kept().iter().cloned()).collect()
        };
        for source in sources {
            source.collect(&mut samples);
        }
        samples.render()
    }
}

/// Samples as they are collected.
#[derive(Default)]
pub struct Samples {
    families: BTreeMap<&'static str, Family>,
}

struct Family {
    help: &'static str,
    kind: &'static str,
    /// Labels (rendered) and the lines that follow the name.
    samples: BTreeMap<String, Vec<(&'static str, String, f64)>>,
}

impl Samples {
    /// A number that only rises. Its name should end in `_total`.
    pub fn counter(&mut self, name: &'static str, help: &'static str, labels: &[(&str, &str)], value: u64) {
        self.add(name, help, "counter", labels, vec![("", String::new(), value as f64)]);
    }

    /// A number that rises and falls.
    pub fn gauge(&mut self, name: &'static str, help: &'static str, labels: &[(&str, &str)], value: f64) {
        self.add(name, help, "gauge", labels, vec![("", String::new(), value)]);
    }

    /// A distribution of times. Its name should end in `_seconds`.
    pub fn histogram(
        &mut self,
        name: &'static str,
        help: &'static str,
        labels: &[(&str, &str)],
        histogram: &Histogram,
    ) {
        let mut lines = Vec::new();
        let mut count = 0;
        for (at, bucket) in histogram.buckets.iter().enumerate() {
            count += bucket.load(Ordering::Relaxed);
            let bound = match at {
                _ if at + 1 == BUCKETS => "+Inf".to_string(),
                _ => (bound_nanos(at) as f64 / 1e9).to_string(),
            };
            lines.push(("_bucket", format!("le=\"{bound}\""), count as f64));
        }
        lines.push(("_sum", String::new(), histogram.sum_nanos.load(Ordering::Relaxed) as f64 / 1e9));
        lines.push(("_count", String::new(), count as f64));
        self.add(name, help, "histogram", labels, lines);
    }

    fn add(
        &mut self,
        name: &'static str,
        help: &'static str,
        kind: &'static str,
        labels: &[(&str, &str)],
        lines: Vec<(&'static str, String, f64)>,
    ) {
        let family = self.families.entry(name).or_insert(Family { help, kind, samples: BTreeMap::new() });
        family.samples.insert(render_labels(labels), lines);
    }

    fn render(&self) -> String {
        let mut text = String::new();
        for (name, family) in &self.families {
            // Writing to a string does not fail.
            let _ = writeln!(text, "# HELP {name} {}", family.help);
            let _ = writeln!(text, "# TYPE {name} {}", family.kind);
            for (labels, lines) in &family.samples {
                for (suffix, bound, value) in lines {
                    let both = if labels.is_empty() || bound.is_empty() { "" } else { "," };
                    let all = format!("{labels}{both}{bound}");
                    let all = if all.is_empty() { all } else { format!("{{{all}}}") };
                    let _ = writeln!(text, "{name}{suffix}{all} {value}");
                }
            }
        }
        text
    }
}

fn render_labels(labels: &[(&str, &str)]) -> String {
    let escape = |value: &str| value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let parts: Vec<String> =
        labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escape(value))).collect();
    parts.join(",")
}

/// Buckets double from 16 µs to about 134 s, and one for what is longer.
const BUCKETS: usize = 25;

fn bound_nanos(bucket: usize) -> u64 {
    16_000 << bucket
}

/// How often something took how long.
#[derive(Debug, Default)]
pub struct Histogram {
    buckets: [AtomicU64; BUCKETS],
    sum_nanos: AtomicU64,
}

impl Histogram {
    pub fn record(&self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let bucket = (0..BUCKETS - 1).find(|at| nanos <= bound_nanos(*at)).unwrap_or(BUCKETS - 1);
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        self.sum_nanos.fetch_add(nanos, Ordering::Relaxed);
    }

    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_format() {
        let metrics = Metrics::new();
        metrics.keep(|out: &mut Samples| {
            out.counter("rows_total", "Rows seen.", &[("table", "a\"b")], 3);
            out.counter("rows_total", "Rows seen.", &[("table", "a")], 2);
            out.gauge("memory_bytes", "Memory.", &[], 1.5);
        });
        let gone: Arc<dyn Collect> = Arc::new(|out: &mut Samples| out.gauge("gone", "Gone.", &[], 1.0));
        metrics.watch(&gone);
        drop(gone);
        expect_test::expect![[r#"
            # HELP memory_bytes Memory.
            # TYPE memory_bytes gauge
            memory_bytes 1.5
            # HELP rows_total Rows seen.
            # TYPE rows_total counter
            rows_total{table="a"} 2
            rows_total{table="a\"b"} 3
        "#]]
        .assert_eq(&metrics.render());
    }

    #[test]
    fn histograms_count_up_to_their_bounds() {
        let histogram = Histogram::default();
        histogram.record(Duration::from_micros(16));
        histogram.record(Duration::from_micros(17));
        histogram.record(Duration::from_secs(1000));
        let mut samples = Samples::default();
        samples.histogram("call_seconds", "Calls.", &[("method", "Scan")], &histogram);
        let text = samples.render();
        let line = |start: &str| text.lines().find(|line| line.starts_with(start)).unwrap().to_string();
        assert!(line("call_seconds_bucket{method=\"Scan\",le=\"0.000016\"}").ends_with(" 1"));
        assert!(line("call_seconds_bucket{method=\"Scan\",le=\"0.000032\"}").ends_with(" 2"));
        assert!(line("call_seconds_bucket{method=\"Scan\",le=\"+Inf\"}").ends_with(" 3"));
        assert!(line("call_seconds_sum").ends_with(" 1000.000033"));
        assert_eq!(histogram.count(), 3);
    }
}
