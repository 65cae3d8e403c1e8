//! Times of calls, by method.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use super::call_samples::CallSamples;
use crate::metrics::Histogram;

/// Times of all calls of a server.
#[derive(Debug, Default)]
pub struct RpcLatencies {
    /// From the arrival of a call to the start of its method.
    pub queue_time: Histogram,
    /// Calls of each method by their time.
    pub samples: CallSamples,
    /// From the arrival of a call to its reply, by method.
    methods: RwLock<BTreeMap<&'static str, Vec<MethodLatency>>>,
}

/// A method of a service, as in the name of its metric, and its times.
#[derive(Debug, Clone)]
struct MethodLatency {
    method: &'static str,
    metric: Arc<str>,
    times: Arc<Histogram>,
}

impl RpcLatencies {
    /// Returns the times of a method's calls.
    pub(super) fn of(&self, service: &'static str, method: &'static str) -> Arc<Histogram> {
        let find = |methods: &BTreeMap<&'static str, Vec<MethodLatency>>| {
            let of_service = methods.get(service)?;
            Some(of_service.iter().find(|latency| latency.method == method)?.times.clone())
        };
        // The map is valid after a panic: it only grows, by one push at a time.
        if let Some(times) = find(&self.methods.read().unwrap_or_else(PoisonError::into_inner)) {
            return times;
        }
        let mut methods = self.methods.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(times) = find(&methods) {
            return times;
        }
        let metric = format!("{}_{method}", service.replace('.', "_")).into();
        let latency = MethodLatency { method, metric, times: Arc::default() };
        let times = latency.times.clone();
        methods.entry(service).or_default().push(latency);
        times
    }

    /// Returns the called methods, as `kudu_tserver_TabletServerService_Write`, with their times.
    pub fn methods(&self) -> Vec<(Arc<str>, Arc<Histogram>)> {
        let methods = self.methods.read().unwrap_or_else(PoisonError::into_inner);
        let all = methods.values().flatten();
        all.map(|latency| (latency.metric.clone(), latency.times.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_have_kudus_names() {
        let latencies = RpcLatencies::default();
        latencies.of("kudu.tserver.TabletServerService", "Write").record(5);
        latencies.of("kudu.tserver.TabletServerService", "Write").record(7);
        let methods = latencies.methods();
        assert_eq!(methods.len(), 1);
        assert_eq!(&*methods[0].0, "kudu_tserver_TabletServerService_Write");
        assert_eq!(methods[0].1.snapshot().count(), 2);
    }
}
