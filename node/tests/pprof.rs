//! A profile of this very process, by its web port.
#![allow(clippy::disallowed_methods, reason = "the test needs a thread that uses its processor")]

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use engine::format_level::LevelRange;
use engine::ids::Uuid;
use node::dirs::ServerKind;
use node::server::flags::Flags;
use node::server::{ServerContext, web};
use nyala_common::env::Env;
use nyala_common::env::os::{OsEnv, OsOptions};
use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// The parts of pprof's format that the test reads.
#[derive(Clone, PartialEq, Message)]
struct Profile {
    #[prost(message, repeated, tag = "2")]
    sample: Vec<Sample>,
    #[prost(message, repeated, tag = "4")]
    location: Vec<Location>,
    #[prost(message, repeated, tag = "5")]
    function: Vec<Function>,
    #[prost(string, repeated, tag = "6")]
    texts: Vec<String>,
    #[prost(int64, tag = "10")]
    duration_nanos: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Sample {
    #[prost(uint64, repeated, tag = "1")]
    location: Vec<u64>,
    #[prost(int64, repeated, tag = "2")]
    value: Vec<i64>,
}

#[derive(Clone, PartialEq, Message)]
struct Location {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(message, repeated, tag = "4")]
    line: Vec<Line>,
}

#[derive(Clone, PartialEq, Message)]
struct Line {
    #[prost(uint64, tag = "1")]
    function: u64,
}

#[derive(Clone, PartialEq, Message)]
struct Function {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(int64, tag = "2")]
    name: i64,
}

impl Profile {
    /// Returns the CPU time of the samples in a function, whose name contains this.
    fn nanos_in(&self, name: &str) -> i64 {
        let text = |at: i64| self.texts[usize::try_from(at).expect("a number")].as_str();
        let named = |id: &u64| {
            let of_id = self.function.iter().find(|function| function.id == *id);
            text(of_id.expect("every function is there").name).contains(name)
        };
        let is_in = |id: &u64| {
            let location = self.location.iter().find(|location| location.id == *id);
            location.expect("every place is there").line.iter().any(|line| named(&line.function))
        };
        let inside = self.sample.iter().filter(|sample| sample.location.iter().any(is_in));
        inside.map(|sample| sample.value[1]).sum()
    }
}

/// Uses the processor until it is told to stop.
#[inline(never)]
fn spin_for_the_profile(stop: &AtomicBool) -> u64 {
    let mut sum = 1u64;
    while !stop.load(Ordering::Relaxed) {
        sum = std::hint::black_box(sum.wrapping_mul(31).wrapping_add(7));
    }
    sum
}

async fn get(env: &Env, web: &web::WebHandle, path: &str) -> (String, Vec<u8>) {
    let deadline = env.now().mono.after(Duration::from_secs(10));
    let mut stream = env.net.connect(web.local_addr(), deadline).await.expect("it listens");
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("it reads");
    let mut response = Vec::new();
    stream.read_to_end(&mut response).await.expect("it answers");
    let head = response.windows(4).position(|end| end == b"\r\n\r\n").expect("a head");
    let body = response.split_off(head + 4);
    (String::from_utf8_lossy(&response).into_owned(), body)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_profile_names_the_functions_that_use_the_processor() {
    let env = OsEnv::new(&OsOptions::default()).expect("this machine");
    let flags = Arc::new(Flags::new());
    let levels = LevelRange::PROGRAM;
    let common = ServerContext::new(&env, ServerKind::Master, Uuid([7; 16]), levels, flags.clone());
    let address = "127.0.0.1:0".parse().expect("an address");
    let web = web::serve(&env, address, common).await.expect("a free port");
    let (head, _) = get(&env, &web, "/pprof/profile?seconds=1").await;
    assert!(head.starts_with("HTTP/1.1 403"), "{head}");

    flags.change("enable_pprof", "true", false).expect("at run time");
    let stop = Arc::new(AtomicBool::new(false));
    let seen = stop.clone();
    let spinning = std::thread::spawn(move || spin_for_the_profile(&seen));
    let (first, second) = tokio::join!(
        get(&env, &web, "/pprof/profile?seconds=2"),
        get(&env, &web, "/pprof/profile?seconds=2")
    );
    stop.store(true, Ordering::Relaxed);
    spinning.join().expect("it ends");

    // One of the two comes too late.
    let (made, refused) = if first.0.contains(" 200 ") { (first, second) } else { (second, first) };
    assert!(made.0.starts_with("HTTP/1.1 200") && refused.0.starts_with("HTTP/1.1 503"), "{}", refused.0);
    assert!(String::from_utf8_lossy(&refused.1).contains("another profile"), "{:?}", refused.1);
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(&*made.1).read_to_end(&mut bytes).expect("gzip");
    let profile = Profile::decode(&*bytes).expect("a profile");
    assert_eq!((profile.duration_nanos, profile.texts[0].as_str()), (2_000_000_000, ""));
    let nanos = profile.nanos_in("spin_for_the_profile");
    assert!(nanos > 0, "{} samples", profile.sample.len());

    let (_, words) = get(&env, &web, "/pprof/cmdline").await;
    let program = std::env::args().next().expect("a program");
    assert_eq!(String::from_utf8_lossy(&words).lines().next(), Some(program.as_str()));
}

/// The page lists the tasks of this process: the port's own among them, which wait for the network. One thread runs them
/// all, so that every other task waits while the page is written.
#[tokio::test(flavor = "current_thread")]
async fn tasks_are_listed_with_what_they_wait_for() {
    let env = OsEnv::new(&OsOptions::default()).expect("this machine");
    let common = ServerContext::new(
        &env,
        ServerKind::TabletServer,
        Uuid([7; 16]),
        LevelRange::PROGRAM,
        Arc::new(Flags::new()),
    );
    let address = "127.0.0.1:0".parse().expect("an address");
    let web = web::serve(&env, address, common).await.expect("a free port");
    let (sender, receiver) = tokio::sync::oneshot::channel::<()>();
    let (ready, started) = tokio::sync::oneshot::channel::<()>();
    let waiting = env.spawn("waits for a message", async move {
        ready.send(()).expect("the test waits");
        drop(receiver.await);
    });
    started.await.expect("it runs");
    let (_, body) = get(&env, &web, "/stacks?format=json").await;
    let page: serde_json::Value = serde_json::from_slice(&body).expect("JSON");
    let tasks = page["tasks"].as_array().expect("a table");
    let waits = |name: &str| {
        let task = tasks.iter().find(|task| task["name"] == name);
        task.unwrap_or_else(|| panic!("{name}: {tasks:?}"))["waits"].clone()
    };
    assert_eq!(waits("web accept"), "network, or another task");
    assert_eq!(waits("signs of life"), "timer, or another task");
    assert_eq!(waits("waits for a message"), "another task");
    assert_eq!(waits("web connection"), "runs");
    assert!(page["threads"].as_array().expect("a table").len() >= 2);
    drop(sender);
    env.end(&[waiting]).await;
    let (_, body) = get(&env, &web, "/stacks?format=json&q=waits%20for%20a").await;
    let page: serde_json::Value = serde_json::from_slice(&body).expect("JSON");
    assert_eq!(page["tasks"], serde_json::json!([]), "it has ended");
}
