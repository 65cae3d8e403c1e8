//! Tablets with superblocks in two data directories, or in none.

use super::admin::delete_request;
use super::faults::Faulty;
use super::*;
use crate::hosting::tablet_entry::{EntryState, TabletEntry};
use engine::disk::{self, Disk};
use nyala_proto::kudu::tablet::TabletDataState;
use nyala_proto::kudu::tserver::DeleteTabletResponsePb;

/// Directories of superblocks and of votes.
const METADATA: [&str; 2] = ["tablet-meta", "consensus-meta"];

/// Starts a server with two data directories and a tablet in the first one, and stops it.
async fn stopped() -> Faulty {
    let faulty = Faulty::start(|config| {
        config.maintenance_interval_ms = 1 << 40;
        config.data_dirs.push(format!("{}2", config.data_dirs[0]));
    })
    .await;
    faulty.fixture.create_tablet().await;
    assert_eq!(faulty.fixture.write(&[insert(1, "a")]).await.error, None);
    faulty.fixture.running.shutdown().await;
    faulty
}

fn entry(fixture: &Fixture) -> Arc<TabletEntry> {
    fixture.running.server.tablets.get(TABLET).expect("it is listed")
}

async fn delete(fixture: &Fixture, how: TabletDataState) -> Option<TabletServerErrorPb> {
    let deleted: DeleteTabletResponsePb = fixture.admin("DeleteTablet", &delete_request(how)).await;
    deleted.error
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tablet_with_two_superblocks_fails_and_keeps_both() {
    let mut faulty = stopped().await;
    let (data, other) = (faulty.disk("data"), faulty.disk("data2"));
    for dir in METADATA {
        let path = format!("{dir}/{TABLET}");
        other.create_dir(dir).expect("made");
        let bytes = disk::read_file(&data, &path).expect("a file");
        disk::replace_file(&other, &path, &bytes).expect("written");
    }
    faulty.fixture.start_again().await;
    let fixture = &faulty.fixture;
    let root = format!("{}/", fixture.dir.path().display());
    let states = fixture.running.server.tablets.all().len();
    let failure = entry(fixture).failure().expect("it has failed").message.replace(&root, "");
    expect_test::expect![[r#"
        1: several data directories have a superblock of this tablet (data, data2), and only one of them is new; stop the server, and move tablet-meta/abababababababababababababababab, consensus-meta/abababababababababababababababab and data/abababababababababababababababab out of the others
    "#]]
    .assert_eq(&format!("{states}: {failure}\n"));
    let refused = error_text(&delete(fixture, TabletDataState::TabletDataTombstoned).await);
    assert!(refused.contains("several data directories"), "{refused}");
    assert!(fixture.running.server.tablets.reserve_slot(TABLET).await.is_err(), "no copy replaces it");
    let superblocks = || [&data, &other].map(|disk| disk.list("tablet-meta").expect("a directory").len());
    assert_eq!(superblocks(), [1, 1]);
    // Of a dropped table nothing is needed.
    assert_eq!(delete(fixture, TabletDataState::TabletDataDeleted).await, None);
    assert_eq!(superblocks(), [0, 0]);
    assert!(fixture.running.server.tablets.get(TABLET).is_none());
}

/// The first one is what an interrupted creation leaves, the other one belongs to a superblock that was lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_vote_without_a_superblock_is_removed_unless_the_log_has_operations() {
    let mut faulty = stopped().await;
    let (data, other) = (faulty.disk("data"), faulty.disk("data2"));
    data.remove(&format!("tablet-meta/{TABLET}")).expect("lost");
    other.create_dir("consensus-meta").expect("made");
    let uncreated = Uuid([0xcd; 16]);
    for end in ["", ".tmp"] {
        disk::replace_file(&other, &format!("consensus-meta/{uncreated}{end}"), b"a vote").expect("written");
    }
    faulty.fixture.start_again().await;
    let votes = [&data, &other].map(|disk| disk.list("consensus-meta").expect("a directory"));
    assert_eq!(votes, [vec![TABLET.to_string()], Vec::new()]);
    assert!(matches!(entry(&faulty.fixture).state(), EntryState::Failed(_)));
}
