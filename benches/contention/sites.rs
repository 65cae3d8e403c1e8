//! Results of sites and sections from the counts of `engine::sync::contention`.

use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::time::Instant;

use cores_model::{Section, SectionWait, SiteResult};
use engine::sync::contention::{SectionKind, Site, SiteCounts};

/// Least time of a section, and visits of a site, for each operation: less is left out.
const HELD_MIN_US: f64 = 0.005;
const VISITS_MIN: f64 = 0.02;
/// Pairs of readings of the clock, the fastest of which is its cost.
const READINGS: usize = 100_000;

/// Returns nanoseconds since the first call.
pub(crate) fn clock() -> u64 {
    static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);
    BEGAN.elapsed().as_nanos() as u64
}

/// Returns the time that a hold without work seems to take.
pub(crate) fn clock_cost_ns() -> f64 {
    let pairs = (0..READINGS).map(|_| {
        let first = clock();
        clock() - first
    });
    pairs.min().unwrap_or(0) as f64
}

/// Counts of some operations.
pub(crate) struct OperationSites {
    pub(crate) operations: f64,
    pub(crate) clock_cost_ns: f64,
    pub(crate) counts: BTreeMap<Site, SiteCounts>,
}

impl OperationSites {
    /// Returns the sections of an operation, those of the model: readers do not exclude each other.
    pub(crate) fn sections(&self) -> Vec<Section> {
        let mut by_value: BTreeMap<(&str, SectionKind), Vec<SiteCounts>> = BTreeMap::new();
        for (site, counts) in self.counts.iter().filter(|(site, _)| site.kind != SectionKind::Shared) {
            by_value.entry((site.guarded, site.kind)).or_default().push(*counts);
        }
        let sections =
            by_value.into_iter().map(|((guarded, kind), counts)| self.section(guarded, kind, &counts));
        let mut sections: Vec<Section> = sections.filter(|section| section.held_us >= HELD_MIN_US).collect();
        sections.sort_by(|one, two| two.held_us.total_cmp(&one.held_us));
        sections
    }

    fn section(&self, guarded: &str, kind: SectionKind, counts: &[SiteCounts]) -> Section {
        let held_ns: u64 = counts.iter().map(|counts| counts.hold_ns).sum();
        let busiest_ns = counts.iter().map(|counts| counts.busiest_ns).max().unwrap_or(0);
        let taken: u64 = counts.iter().map(taken).sum();
        let wait = if kind == SectionKind::Turn { SectionWait::InQueue } else { SectionWait::OnCore };
        Section {
            name: section_name(guarded, kind),
            wait,
            visits: taken as f64 / self.operations,
            held_us: counts.iter().map(|counts| self.held_us(counts)).sum(),
            busiest_share: if held_ns == 0 { 1.0 } else { busiest_ns as f64 / held_ns as f64 },
        }
    }

    /// Returns the time that an operation holds a site: a long hold counts as one of the others.
    fn held_us(&self, counts: &SiteCounts) -> f64 {
        let taken = taken(counts);
        let short = taken.saturating_sub(counts.long_holds).max(1) as f64;
        let mean_ns = (counts.hold_ns as f64 / short - self.clock_cost_ns).max(0.0);
        mean_ns * taken as f64 / self.operations / 1e3
    }

    /// Returns the sites, those with the longest waits first.
    pub(crate) fn sites(&self) -> Vec<SiteResult> {
        let all = self.counts.iter().map(|(site, counts)| self.site(site, counts));
        let mut sites: Vec<SiteResult> = all.filter(|site| site.visits >= VISITS_MIN).collect();
        sites.sort_by(|one, two| {
            two.wait_us.total_cmp(&one.wait_us).then(two.held_us.total_cmp(&one.held_us))
        });
        sites
    }

    fn site(&self, site: &Site, counts: &SiteCounts) -> SiteResult {
        SiteResult {
            section: section_name(site.guarded, site.kind),
            place: format!("{}:{}", site.file, site.line),
            visits: counts.acquisitions as f64 / self.operations,
            contended_percent: counts.contended as f64 / counts.acquisitions.max(1) as f64 * 100.0,
            wait_us: counts.wait_ns as f64 / self.operations / 1e3,
            held_us: self.held_us(counts),
            long_us: counts.long_hold_ns as f64 / self.operations / 1e3,
        }
    }
}

/// Returns how often a site was held: a turn that found another one running was not.
fn taken(counts: &SiteCounts) -> u64 {
    match counts.wait_ns {
        0 => counts.acquisitions - counts.contended,
        _ => counts.acquisitions,
    }
}

fn section_name(guarded: &str, kind: SectionKind) -> String {
    match kind {
        SectionKind::Exclusive => short_name(guarded),
        SectionKind::Shared => format!("readers of {}", short_name(guarded)),
        SectionKind::Turn => format!("turn of {}", short_name(guarded)),
    }
}

/// Returns the name of a type with the last two parts of each path.
fn short_name(name: &str) -> String {
    let mut short = String::new();
    let mut path = String::new();
    for letter in name.chars().chain(['\0']) {
        if letter.is_alphanumeric() || letter == '_' || letter == ':' {
            path.push(letter);
            continue;
        }
        let parts: Vec<&str> = path.split("::").collect();
        short += &parts[parts.len().saturating_sub(2)..].join("::");
        path.clear();
        short.push(letter);
    }
    short.pop();
    short
}
