//! The scrubber against real files: injected damage is found, named and handled, and nothing else is reported.

use std::pin::pin;

use super::faults::Faulty;
use super::*;
use crate::hosting::maintenance::run_job;
use crate::scrub::{Finding, FindingOutcome, ScrubConfig, Scrubber};
use crate::server::flags::Flags;
use engine::config::TabletConfig;
use engine::disk::Disk;
use engine::replica::JobKind;
use nyala_common::env::testing::{HeldTasks, becomes};

/// Returns a scrubber without a rate, whose passes the test runs itself.
pub(super) fn scrubber(env: &Env) -> Arc<Scrubber> {
    let config = ScrubConfig { interval: Duration::from_secs(3600), bytes_per_second: 1 << 40 };
    Scrubber::new(env, config, &Flags::new()).expect("valid settings").expect("it is on")
}

/// Runs a pass, and returns what it found.
pub(super) async fn pass(scrubber: &Scrubber, server: &RunningTserver) -> Vec<Finding> {
    scrubber.pass(&*server.server).await;
    scrubber.progress().last.expect("a pass has ended").findings
}

/// Creates a server with a tablet that has a file of each kind.
async fn with_files() -> Faulty {
    let faulty = Faulty::start(|config| config.maintenance_interval_ms = 1 << 40).await;
    let fixture = &faulty.fixture;
    fixture.create_tablet().await;
    fixture.write(&[insert(1, "a"), insert(2, "b")]).await;
    let replica =
        fixture.running.server.tablets.get(TABLET).expect("it is there").running().expect("it runs");
    assert!(run_job(&fixture.env, &replica, JobKind::FlushRows).await.expect("the job succeeds"));
    faulty
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damage_of_each_kind_of_file_is_found_and_named() {
    let faulty = with_files().await;
    let fixture = &faulty.fixture;
    let root = fixture.dir.path().to_str().expect("UTF-8").to_string();
    let scrubber = scrubber(&fixture.env);
    assert_eq!(pass(&scrubber, &fixture.running).await, [], "all files are whole");
    let checked = scrubber.progress().last.expect("it has ended");
    assert_eq!(checked.files, 5, "consensus metadata, rowset, superblock, segment, truncations");
    let rowset = faulty.disk("data").list(&format!("data/{TABLET}")).expect("a directory").remove(0);
    let files = [
        ("data", format!("consensus-meta/{TABLET}"), 30, FindingOutcome::Reported),
        ("data", format!("data/{TABLET}/{rowset}"), 100, FindingOutcome::Reported),
        ("data", format!("tablet-meta/{TABLET}"), 40, FindingOutcome::Reported),
        ("wal", format!("wals/{TABLET}/0000000001.wal"), 90, FindingOutcome::Reported),
        ("data", "instance".to_string(), 20, FindingOutcome::Repaired),
        ("wal", "instance".to_string(), 20, FindingOutcome::Repaired),
    ];
    for (dir, path, offset, outcome) in &files {
        faulty.disk(dir).flip_bit(path, *offset).expect("it is there");
        let found = pass(&scrubber, &fixture.running).await;
        let expected = [(format!("{root}/{dir}/{path}"), *outcome)];
        let seen: Vec<_> = found.iter().map(|finding| (finding.file.clone(), finding.outcome)).collect();
        assert_eq!(seen, expected, "{found:?}");
        if *outcome == FindingOutcome::Reported {
            assert!(found[0].error.contains(path), "it names the file: {found:?}");
            faulty.disk(dir).flip_bit(path, *offset).expect("it is there");
        }
        assert_eq!(pass(&scrubber, &fixture.running).await, [], "{path} is whole again");
    }
    assert_eq!(fixture.keys(new_scan(&["key"])).await, [1, 2], "the only replica still serves");
}

/// A pass before that would leave the tablets out, and yet count as finished for two weeks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pass_waits_until_the_tablets_of_the_start_are_open() {
    let mut faulty = with_files().await;
    let fixture = &mut faulty.fixture;
    fixture.running.shutdown().await;
    let held = HeldTasks::install(&mut fixture.env, "bootstrap");
    let running = run(&fixture.env, &fixture.dir, fixture.change).await;
    fixture.connect(running);
    let scrubber = scrubber(&fixture.env);
    let mut found = pin!(pass(&scrubber, &fixture.running));
    assert!(futures_util::poll!(&mut found).is_pending(), "the tablet is not open");
    assert_eq!(scrubber.progress().began, None, "the pass waits for it");
    held.release_one();
    assert_eq!(found.await, []);
    let files = scrubber.progress().last.expect("it has ended").files;
    assert!(files >= 5, "{files} files were checked");
}

/// Compactions and log GC remove files under the scrubber.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_that_are_removed_meanwhile_are_no_damage() {
    let faulty = Faulty::start(|config| {
        config.tablet = TabletConfig::tiny();
        config.maintenance_interval_ms = 1;
    })
    .await;
    let fixture = &faulty.fixture;
    fixture.create_tablet().await;
    let (scrubber, done) = (scrubber(&fixture.env), std::sync::atomic::AtomicBool::new(false));
    let writer = async {
        for batch in 0..60 {
            let rows: Vec<_> = (batch * 10..batch * 10 + 10).map(|key| insert(key, "some words")).collect();
            assert_eq!(fixture.write(&rows).await.error, None);
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
    };
    let scrubbing = async {
        let (mut found, mut passes) = (Vec::new(), 0);
        while !done.load(std::sync::atomic::Ordering::Relaxed) || passes < 3 {
            found.extend(pass(&scrubber, &fixture.running).await);
            passes += 1;
        }
        found
    };
    let ((), found) = futures_util::future::join(writer, scrubbing).await;
    assert_eq!(found, []);
    assert_eq!(fixture.keys(new_scan(&["key"])).await.len(), 600);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_scrubs_by_itself_and_shows_it() {
    let mut faulty = Faulty::start(|config| {
        config.scrub = ScrubConfig { interval: Duration::from_secs(3600), bytes_per_second: 1 << 40 };
        config.maintenance_interval_ms = 1 << 40;
    })
    .await;
    let last =
        |fixture: &Fixture| fixture.running.server.scrubber.as_ref().expect("it is on").progress().last;
    assert!(
        becomes(&faulty.fixture.env, || last(&faulty.fixture).is_some()).await,
        "the first pass is due at once"
    );
    faulty.fixture.create_tablet().await;
    let before = last(&faulty.fixture);
    faulty.fixture.restart().await;
    assert!(becomes(&faulty.fixture.env, || last(&faulty.fixture).is_some()).await);
    assert_eq!(last(&faulty.fixture), before, "the next pass is due in an hour, in spite of the restart");
    let pages = &faulty.fixture.running.server.common.pages;
    let page = pages.source("/scrub").expect("it is registered");
    let shown = page(Default::default()).await.expect("a page");
    assert!(format!("{shown:?}").contains("no damage found"), "{shown:?}");
}
