//! Measurements and what is made of them: medians, ratios, geometric means.

use super::systems::{Cost, ORDER};

/// One measurement of a query.
pub(super) struct QuerySample {
    pub phase: Phase,
    pub query: String,
    pub system: &'static str,
    pub cost: Cost,
}

/// State of the tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Loaded,
    /// After a tenth of `lineitem` and `orders` was updated.
    Updated,
    /// The queries of the comparison with Phoenix, on loaded tables.
    Phoenix,
}

/// All measurements of queries.
#[derive(Default)]
pub(super) struct Samples(pub Vec<QuerySample>);

impl Samples {
    /// Returns the systems that a phase measured, in order.
    pub(super) fn systems(&self, phase: Phase) -> Vec<&'static str> {
        let mut systems = Vec::new();
        for sample in self.0.iter().filter(|sample| sample.phase == phase) {
            if !systems.contains(&sample.system) {
                systems.push(sample.system);
            }
        }
        systems.sort_by_key(|system| ORDER.iter().position(|known| known == system));
        systems
    }

    /// Returns the queries of a phase, in order.
    pub(super) fn queries(&self, phase: Phase) -> Vec<&str> {
        let mut queries: Vec<&str> = Vec::new();
        for sample in self.0.iter().filter(|sample| sample.phase == phase) {
            if !queries.contains(&sample.query.as_str()) {
                queries.push(&sample.query);
            }
        }
        queries
    }

    /// Returns the median of a measure of a query.
    pub(super) fn median(
        &self,
        phase: Phase,
        query: &str,
        system: &str,
        measure: impl Fn(&Cost) -> f64,
    ) -> Option<f64> {
        let of =
            |sample: &&QuerySample| sample.phase == phase && sample.query == query && sample.system == system;
        let mut values: Vec<f64> = self.0.iter().filter(of).map(|sample| measure(&sample.cost)).collect();
        values.sort_by(f64::total_cmp);
        let middle = values.len() / 2;
        match values.len() {
            0 => None,
            odd if odd % 2 == 1 => Some(values[middle]),
            _ => Some((values[middle - 1] + values[middle]) / 2.0),
        }
    }

    /// Returns the sum of a measure's means over all queries of a phase: the cost of one round. Server CPU is counted
    /// in ticks of 10 ms, so that only sums mean something.
    pub(super) fn per_round(&self, phase: Phase, system: &str, measure: impl Fn(&Cost) -> f64) -> f64 {
        let of = |sample: &&QuerySample| sample.phase == phase && sample.system == system;
        let values: Vec<f64> = self.0.iter().filter(of).map(|sample| measure(&sample.cost)).collect();
        let rounds = values.len() as f64 / self.queries(phase).len().max(1) as f64;
        if rounds > 0.0 { values.iter().sum::<f64>() / rounds } else { 0.0 }
    }

    /// Returns the greatest value of a measure in a phase.
    pub(super) fn peak(&self, phase: Phase, system: &str, measure: impl Fn(&Cost) -> f64) -> f64 {
        let of = |sample: &&QuerySample| sample.phase == phase && sample.system == system;
        self.0.iter().filter(of).map(|sample| measure(&sample.cost)).fold(0.0, f64::max)
    }

    /// Returns the ratio of the median times of two systems.
    pub(super) fn ratio(&self, phase: Phase, query: &str, system: &str, to: &str) -> Option<f64> {
        let median = |system| self.median(phase, query, system, |cost| cost.seconds);
        Some(median(system)? / median(to)?)
    }

    /// Returns the geometric mean of the ratios of all queries.
    pub(super) fn geometric_mean(&self, phase: Phase, system: &str, to: &str) -> Option<f64> {
        let queries = self.queries(phase);
        let ratios = queries.iter().map(|query| self.ratio(phase, query, system, to));
        let logs = ratios.map(|ratio| ratio.map(f64::ln)).collect::<Option<Vec<f64>>>()?;
        (!logs.is_empty()).then(|| (logs.iter().sum::<f64>() / logs.len() as f64).exp())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(query: &str, system: &'static str, seconds: f64) -> QuerySample {
        let cost = Cost { seconds, client_cpu: 2.0 * seconds, server_cpu: 0.5, client_rss: seconds };
        QuerySample { phase: Phase::Loaded, query: query.to_string(), system, cost }
    }

    #[test]
    fn ratios_are_of_medians_and_their_mean_is_geometric() {
        let samples = Samples(vec![
            sample("Q1", "a", 1.0),
            sample("Q1", "b", 4.0),
            sample("Q2", "a", 8.0),
            sample("Q2", "b", 2.0),
            sample("Q1", "a", 3.0),
            sample("Q1", "a", 2.0),
        ]);
        assert_eq!(samples.ratio(Phase::Loaded, "Q1", "a", "b"), Some(0.5));
        let mean = samples.geometric_mean(Phase::Loaded, "a", "b").unwrap();
        assert!((mean - 2f64.sqrt()).abs() < 1e-9, "{mean}");
        assert_eq!(samples.geometric_mean(Phase::Loaded, "a", "c"), None);
        assert_eq!(samples.per_round(Phase::Loaded, "a", |cost| cost.client_cpu), 14.0);
        assert_eq!(samples.peak(Phase::Loaded, "a", |cost| cost.client_rss), 8.0);
    }
}
