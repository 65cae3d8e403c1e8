//! Spans of one write: from the client's call to the followers' logs.

use super::*;
use crate::server::flags::Flags;
use nyala_common::spans::{SpanOrigin, SpanRecorder};
use serde_json::Value;

/// A span of any program: its server, `None` for the client.
#[derive(Debug, Clone)]
struct Found {
    server: Option<usize>,
    trace: String,
    id: String,
    parent: Option<String>,
    name: String,
    nanos: (u64, u64),
}

fn found(server: Option<usize>, span: &Value) -> Found {
    let text = |field: &str| span[field].as_str().expect("a text").to_owned();
    let number = |field: &str| text(field).parse().expect("a number");
    Found {
        server,
        trace: text("traceId"),
        id: text("spanId"),
        parent: span["parentSpanId"].as_str().map(str::to_owned),
        name: text("name"),
        nanos: (number("startTimeUnixNano"), number("endTimeUnixNano")),
    }
}

/// Returns the spans in the lines of a file.
fn spans_of(server: Option<usize>, lines: &[u8]) -> Vec<Found> {
    let lines = std::str::from_utf8(lines).expect("text").lines();
    let objects = lines.map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let spans = objects.flat_map(|line| {
        line["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().expect("spans").clone()
    });
    spans.map(|span| found(server, &span)).collect()
}

fn with_spans(config: &mut TserverConfig) {
    let flags = Flags::new();
    flags.set("trace_dir", "spans").expect("a flag");
    // Servers follow the client, and sample nothing themselves.
    flags.set("trace_sampled_per_million", "0").expect("a flag");
    config.flags = Arc::new(flags);
}

/// Writes a row with a client that records its span, and returns the spans of all.
async fn spans_of_a_write(group: &mut Group, leader: usize) -> Vec<Found> {
    let spans = SpanRecorder::new(1, 1.0);
    let env = Env { spans: spans.clone(), ..group.env.clone() };
    let client = Proxy::new(env, addr_of(leader), "ann");
    let options = CallOptions { span: SpanOrigin::Root, ..CallOptions::default() };
    let until = group.env.now().mono.after(Duration::from_secs(5));
    let request = write_request(&schema(), &[insert(1, "a")]);
    let called = client.call::<_, WriteResponsePb>(CLIENT_SERVICE, "Write", &request, until, options).await;
    assert_eq!(called.expect("the write succeeds").message.error, None);
    for number in others(&ALL, leader) {
        group.caught_up(number, leader).await;
    }
    let resource = nyala_common::spans::otlp::SpanResource {
        service: "client".to_owned(),
        instance: "1".to_owned(),
        version: "0",
    };
    let mut all = spans_of(None, nyala_common::spans::otlp::line(&resource, &spans.take(9)).as_bytes());
    for number in ALL {
        group.stop(number).await;
        let disk = group.envs[number].disks.open("spans").expect("its disk");
        for name in disk.list("").expect("files") {
            all.extend(spans_of(Some(number), &engine::disk::read_file(&*disk, &name).expect("a file")));
        }
    }
    all
}

/// Returns the spans below one, by name.
fn below<'a>(all: &'a [Found], parent: &Found) -> Vec<&'a Found> {
    let mut spans: Vec<_> = all.iter().filter(|span| span.parent.as_ref() == Some(&parent.id)).collect();
    spans.sort_by_key(|span| (span.name.clone(), span.server));
    spans
}

fn names(spans: &[&Found]) -> Vec<String> {
    spans.iter().map(|span| span.name.clone()).collect()
}

#[tokio::test(start_paused = true)]
async fn a_write_is_followed_from_the_client_to_the_followers() {
    let mut group = Group::with(3, with_spans).await;
    group.create(&ALL).await;
    let leader = group.leader(&ALL).await;
    let all = spans_of_a_write(&mut group, leader).await;
    let roots: Vec<&Found> = all.iter().filter(|span| span.parent.is_none()).collect();
    let [root] = roots[..] else { panic!("{roots:#?}") };
    assert!(all.iter().all(|span| span.trace == root.trace), "{all:#?}");
    assert_eq!((root.server, root.name.as_str()), (None, "kudu.tserver.TabletServerService/Write"));
    let calls = below(&all, root);
    let [call] = calls[..] else { panic!("{calls:#?}") };
    assert_eq!((call.server, call.name.as_str()), (Some(leader), "kudu.tserver.TabletServerService/Write"));
    let update = "kudu.consensus.ConsensusService/UpdateConsensus";
    let parts = below(&all, call);
    let expected = ["apply", update, update, "log append", "log sync", "prepare", "queue", "replicate"];
    let mut shown = names(&parts);
    shown.sort();
    let mut expected: Vec<String> = expected.map(str::to_owned).into();
    expected.sort();
    assert_eq!(shown, expected);
    let mut followers = Vec::new();
    for sent in parts.iter().filter(|span| span.name == update) {
        let received = below(&all, sent);
        let [received] = received[..] else { panic!("{received:#?}") };
        assert_eq!(received.name, update);
        assert_eq!(names(&below(&all, received)), ["log append", "log sync", "prepare", "queue"]);
        followers.extend(received.server);
    }
    followers.sort_unstable();
    assert_eq!(followers, others(&ALL, leader));
    for span in &all {
        assert!(span.nanos.0 <= span.nanos.1, "{span:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn calls_of_other_clients_are_not_followed_unless_sampled() {
    let mut group = Group::with(3, with_spans).await;
    group.create(&ALL).await;
    let leader = group.leader(&ALL).await;
    assert_eq!(group.write(leader, &[insert(1, "a")]).await.error, None);
    for number in ALL {
        group.stop(number).await;
        let disk = group.envs[number].disks.open("spans").expect("its disk");
        let lines: Vec<u8> = disk
            .list("")
            .expect("files")
            .iter()
            .flat_map(|name| engine::disk::read_file(&*disk, name).expect("a file"))
            .collect();
        assert!(lines.is_empty(), "{}", String::from_utf8_lossy(&lines));
    }
}
