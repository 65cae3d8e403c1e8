//! Times of calls, by method.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use engine::sync::RwLock;

use super::call_samples::CallSamples;
use crate::metrics::Histogram;

/// Times of all calls of a server.
#[derive(Debug, Default)]
pub struct RpcLatencies {
    /// From the arrival of a call to the start of its method.
    pub queue_time: Histogram,
    /// Calls of each method by their time.
    pub samples: CallSamples,
    /// From the arrival of a call to its reply, and calls without success, by method.
    methods: RwLock<BTreeMap<&'static str, Vec<MethodLatency>>>,
}

/// A method of a service, as in the name of its metric, and its times.
#[derive(Debug, Clone)]
struct MethodLatency {
    method: &'static str,
    metric: Arc<str>,
    calls: Arc<MethodCalls>,
}

/// Calls of a method.
#[derive(Debug, Default)]
pub struct MethodCalls {
    pub times: Histogram,
    /// Calls that a full queue rejected.
    pub rejected: AtomicU64,
    /// Calls that were answered after their deadline.
    pub late: AtomicU64,
}

impl RpcLatencies {
    /// Returns the calls of a method.
    pub(super) fn of(&self, service: &'static str, method: &'static str) -> Arc<MethodCalls> {
        let find = |methods: &BTreeMap<&'static str, Vec<MethodLatency>>| {
            let of_service = methods.get(service)?;
            Some(of_service.iter().find(|latency| latency.method == method)?.calls.clone())
        };
        if let Some(calls) = find(&self.methods.read()) {
            return calls;
        }
        let mut methods = self.methods.write();
        if let Some(calls) = find(&methods) {
            return calls;
        }
        let metric = format!("{}_{method}", service.replace('.', "_")).into();
        let latency = MethodLatency { method, metric, calls: Arc::default() };
        let calls = latency.calls.clone();
        methods.entry(service).or_default().push(latency);
        calls
    }

    /// Returns the called methods, as `kudu_tserver_TabletServerService_Write`, with their calls.
    pub fn methods(&self) -> Vec<(Arc<str>, Arc<MethodCalls>)> {
        let methods = self.methods.read();
        let all = methods.values().flatten();
        all.map(|latency| (latency.metric.clone(), latency.calls.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_have_kudus_names() {
        let latencies = RpcLatencies::default();
        latencies.of("kudu.tserver.TabletServerService", "Write").times.record(5);
        latencies.of("kudu.tserver.TabletServerService", "Write").times.record(7);
        let methods = latencies.methods();
        assert_eq!(methods.len(), 1);
        assert_eq!(&*methods[0].0, "kudu_tserver_TabletServerService_Write");
        assert_eq!(methods[0].1.times.snapshot().count(), 2);
    }
}
