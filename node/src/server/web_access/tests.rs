//! Networks of the web port, and a flood of wrong passwords. Time is paused.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures_util::future::join_all;
use hyper::header::HeaderValue;

use super::check_limit::{CHECKS_MAX, PLACES_MAX};
use super::*;
use nyala_common::env::{BoxFuture, TaskHandle, Tasks, mem_net};

/// A line of htdigest for ann, whose password is "secret".
const USERS: &str = "ann:kudu:96661852dc8fe8ea04fe748345abe2ff";

/// Tasks whose works take a second each, and are counted.
struct SlowWorks {
    env: Env,
    running: AtomicUsize,
    /// Largest number of works at the same time.
    most: AtomicUsize,
}

impl SlowWorks {
    fn install(env: &mut Env) -> Arc<SlowWorks> {
        let (running, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let works = Arc::new(SlowWorks { env: env.clone(), running, most });
        env.tasks = works.clone();
        works
    }
}

impl Tasks for SlowWorks {
    fn spawn(&self, name: &'static str, future: BoxFuture<'static, ()>) -> Box<dyn TaskHandle> {
        self.env.tasks.spawn(name, future)
    }

    fn run<'a>(&'a self, work: &'a mut (dyn FnMut() + Send)) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let running = self.running.fetch_add(1, Ordering::Relaxed) + 1;
            self.most.fetch_max(running, Ordering::Relaxed);
            self.env.sleep(Duration::from_secs(1)).await;
            work();
            self.running.fetch_sub(1, Ordering::Relaxed);
        })
    }
}

fn headers(credentials: &str) -> HeaderMap {
    let value = format!("Basic {}", STANDARD.encode(credentials));
    HeaderMap::from_iter([(AUTHORIZATION, HeaderValue::from_str(&value).expect("ASCII"))])
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_wrong_passwords_takes_few_processors() {
    let mut env = mem_net::env();
    let works = SlowWorks::install(&mut env);
    let passwords = WebPasswords::parse(USERS, "kudu", "users").expect("a file");
    let proof = Some(WebProof::Password { passwords, checks: CheckLimit::default() });
    let access = WebAccess { proof, ..WebAccess::default() };
    let known = headers("ann:secret");
    access.check(&env, "/varz", &known).await.expect("the right password");
    let flood: Vec<HeaderMap> = (0..200).map(|number| headers(&format!("ann:{number}"))).collect();
    let flood = join_all(flood.iter().map(|headers| access.check(&env, "/varz", headers)));
    let scrape = async {
        env.sleep(Duration::from_millis(500)).await;
        let before = env.now().mono;
        access.check(&env, "/metrics", &known).await.expect("a password that was right before");
        assert_eq!(env.now().mono, before, "its request does not wait");
    };
    let (refused, ()) = tokio::join!(flood, scrape);
    assert_eq!(works.most.load(Ordering::Relaxed), CHECKS_MAX);
    let count = |is_counted: fn(&Unproved) -> bool| {
        refused.iter().filter(|refused| refused.as_ref().is_err_and(is_counted)).count()
    };
    assert_eq!(count(|why| matches!(why, Unproved::Missing { .. })), PLACES_MAX);
    assert_eq!(count(|why| matches!(why, Unproved::Busy)), 200 - PLACES_MAX);
    access.check(&env, "/varz", &headers("ann:secret")).await.expect("the flood has ended");
}

#[test]
fn a_list_without_a_network_is_refused() {
    let subnets = |text: &str| {
        let flags = Flags::new();
        flags.set("webserver_trusted_subnets", text).expect("a text");
        subnets(&flags).map_err(|error| error.message)
    };
    assert_eq!(subnets(""), Ok(None));
    assert!(matches!(subnets("10.0.0.0/8, 127.0.0.0/8,"), Ok(Some(list)) if list.len() == 2));
    let refusals = [",", "  ", " , ,", "everywhere"].map(|text| subnets(text).expect_err(text));
    expect_test::expect![[r#"
        webserver_trusted_subnets: the list names no network (given ","); name one, such as 10.0.0.0/8, or leave it out
        webserver_trusted_subnets: the list names no network (given "  "); name one, such as 10.0.0.0/8, or leave it out
        webserver_trusted_subnets: the list names no network (given " , ,"); name one, such as 10.0.0.0/8, or leave it out
        webserver_trusted_subnets: "everywhere" is not a subnet; write it as 10.0.0.0/8"#]]
    .assert_eq(&refusals.join("\n"));
}
