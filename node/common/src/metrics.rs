//! Metrics of a server, in Prometheus' text format.
//!
//! The owner of a value stores it (an atomic, a [`Histogram`]) and registers a [`MetricSource`] that reads it; nothing
//! is global. Names end in a unit, as Prometheus requires: `_bytes`, `_seconds`, `_total`.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

/// A producer of samples.
pub trait MetricSource: Send + Sync {
    fn collect(&self, out: &mut MetricSamples);
}

impl<F: Fn(&mut MetricSamples) + Send + Sync> MetricSource for F {
    fn collect(&self, out: &mut MetricSamples) {
        self(out);
    }
}

/// All metric sources of one server.
#[derive(Default)]
pub struct MetricRegistry {
    sources: Mutex<Vec<Weak<dyn MetricSource>>>,
    /// Sources that live as long as the server.
    owned: Mutex<Vec<Arc<dyn MetricSource>>>,
}

impl MetricRegistry {
    pub fn new() -> Arc<MetricRegistry> {
        Arc::default()
    }

    /// Collects from `source` while another owner holds it.
    pub fn register_weak(&self, source: &Arc<dyn MetricSource>) {
        let mut sources = self.sources.lock().expect("no thread panics while it holds this lock");
        sources.retain(|source| source.strong_count() > 0);
        sources.push(Arc::downgrade(source));
    }

    /// Collects from `source` as long as the registry lives.
    pub fn register(&self, source: impl MetricSource + 'static) {
        self.lock_sources().push(Arc::new(source));
    }

    fn lock_sources(&self) -> MutexGuard<'_, Vec<Arc<dyn MetricSource>>> {
        self.owned.lock().expect("no thread panics while it holds this lock")
    }

    /// Returns all samples in Prometheus' text format, families and samples sorted.
    pub fn render(&self) -> String {
        let mut samples = MetricSamples::default();
        let sources: Vec<_> = {
            let weak = self.sources.lock().expect("no thread panics while it holds this lock");
            weak.iter().filter_map(Weak::upgrade).chain(self.lock_sources().iter().cloned()).collect()
        };
        for source in sources {
            source.collect(&mut samples);
        }
        samples.render()
    }
}

/// Samples collected from the sources.
#[derive(Default)]
pub struct MetricSamples {
    families: BTreeMap<&'static str, MetricFamily>,
}

struct MetricFamily {
    help: &'static str,
    kind: &'static str,
    /// By rendered labels: suffix of the name, bucket bound and value of each line.
    samples: BTreeMap<String, Vec<(&'static str, String, f64)>>,
}

impl MetricSamples {
    /// Adds a value that only rises. Its name ends in `_total`.
    pub fn counter(&mut self, name: &'static str, help: &'static str, labels: &[(&str, &str)], value: u64) {
        self.add(name, help, "counter", labels, vec![("", String::new(), value as f64)]);
    }

    /// Adds a value that rises and falls.
    pub fn gauge(&mut self, name: &'static str, help: &'static str, labels: &[(&str, &str)], value: f64) {
        self.add(name, help, "gauge", labels, vec![("", String::new(), value)]);
    }

    /// Adds a distribution of durations. Its name ends in `_seconds`.
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
        let family =
            self.families.entry(name).or_insert(MetricFamily { help, kind, samples: BTreeMap::new() });
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

/// Number of buckets: upper bounds double from 16 µs to about 134 s, and the last bucket is unbounded.
const BUCKETS: usize = 25;

fn bound_nanos(bucket: usize) -> u64 {
    16_000 << bucket
}

/// Distribution of durations.
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
        let metrics = MetricRegistry::new();
        metrics.register(|out: &mut MetricSamples| {
            out.counter("rows_total", "Rows seen.", &[("table", "a\"b")], 3);
            out.counter("rows_total", "Rows seen.", &[("table", "a")], 2);
            out.gauge("memory_bytes", "Memory.", &[], 1.5);
        });
        let gone: Arc<dyn MetricSource> =
            Arc::new(|out: &mut MetricSamples| out.gauge("gone", "Gone.", &[], 1.0));
        metrics.register_weak(&gone);
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
        let mut samples = MetricSamples::default();
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
