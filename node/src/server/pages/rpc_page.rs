//! The page `/rpcz`: sampled calls by method and time. As Kudu's it is JSON; `?html` is for people.

use std::collections::BTreeMap;
use std::sync::Arc;

use nyala_common::env::Clock;
use nyala_common::rpc::call_samples::CallSample;
use nyala_common::rpc::server::RpcHandle;
use serde_json::{Value, json};

use super::options::PageOptions;
use super::page::{PageBlock, PageTable, WebPage, fact};
use super::registry::{PageBody, PageRegistry};

/// Registers the page of a server's calls.
pub fn register(pages: &PageRegistry, rpc: &RpcHandle, clock: Arc<dyn Clock>) {
    let latencies = rpc.latencies();
    let source = move |options: PageOptions| {
        let samples = latencies.samples.all();
        let body = match options.param("html") {
            None => PageBody::Json(kudus(&samples)),
            Some(_) => page(&samples, latencies.samples.slow(), clock.now().mono).into(),
        };
        Box::pin(async move { Ok(body) }) as nyala_common::env::BoxFuture<'static, _>
    };
    pages.register("/rpcz", None, Arc::new(source));
    // The menu leads to the form for people.
    pages.add_to_menu("/rpcz?html", "Calls");
}

/// Returns the object of Kudu's page.
fn kudus(samples: &[CallSample]) -> Value {
    let mut methods: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for sample in samples {
        let mut trace = format!("0 us: received from {}", sample.remote);
        for (step, at) in sample.steps.in_order() {
            trace.push_str(&format!("\n{} us: {}", at.as_micros(), step.name()));
        }
        let header = json!({
            "remote_method": { "service_name": sample.service, "method_name": sample.method },
            "timeout_millis": sample.timeout.map_or(0, |timeout| timeout.as_millis() as u64),
        });
        methods.entry(format!("{}.{}", sample.service, sample.method)).or_default().push(json!({
            "header": header,
            "trace": trace,
            "duration_ms": sample.took.as_millis() as u64,
            "metrics": [
                { "key": "queue_time_us", "value": sample.queued.as_micros() as u64 },
                { "key": "request_bytes", "value": sample.request_bytes },
            ],
        }));
    }
    let method = |(name, samples): (String, Vec<Value>)| json!({ "method_name": name, "samples": samples });
    let methods: Vec<Value> = methods.into_iter().map(method).collect();
    json!({ "sampled": { "methods": methods } })
}

/// Returns the steps on one line, in microseconds since the arrival.
fn steps(sample: &CallSample) -> String {
    let steps = sample.steps.in_order().into_iter();
    let texts: Vec<String> = steps.map(|(step, at)| format!("{} {}", step.name(), at.as_micros())).collect();
    texts.join(", ")
}

fn page(samples: &[CallSample], slow: u64, now: engine::time::Instant) -> WebPage {
    let columns = [
        ("method", "Method"),
        ("took", "Time"),
        ("queued", "Wait for a slot"),
        ("timeout", "Timeout"),
        ("since", "Arrived before"),
        ("user", "User"),
        ("remote", "Caller"),
        ("bytes", "Request"),
        ("steps", "Steps, in µs"),
    ];
    let mut table = PageTable::new(&columns);
    for sample in samples {
        table.row(vec![
            format!("{}.{}", sample.service, sample.method).into(),
            sample.took.into(),
            sample.queued.into(),
            sample.timeout.into(),
            now.since(sample.received).into(),
            sample.user.to_string().into(),
            sample.remote.to_string().into(),
            super::page::PageCell::Bytes(sample.request_bytes as u64),
            steps(sample).into(),
        ]);
    }
    let facts = vec![fact("slow", "slow calls since the start", slow)];
    WebPage::new("Calls").with(PageBlock::facts("counts", "", facts)).with(PageBlock::table(
        "samples",
        "Samples: one a second for each method and class of time",
        table,
    ))
}
