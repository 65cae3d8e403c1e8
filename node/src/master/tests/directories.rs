//! Data directories in another order, and lost or old ones with a catalog.

use std::sync::Arc;

use engine::disk::{self, Disk};

use super::*;
use crate::master::system_tablet::TABLET_ID;
use nyala_common::env::testing::MemDisks;

/// Starts a master on disks in memory, with the table `kept`.
async fn with_table() -> (Fixture, MemDisks) {
    let mut env = OsEnv::new(&OsOptions::default()).expect("the real world");
    let disks = MemDisks::default();
    env.disks = Arc::new(disks.clone());
    let master = Fixture::in_env(env, |_| {}).await;
    master.heartbeat(SERVER, Vec::new()).await;
    master.create(&table("kept")).await;
    (master, disks)
}

/// Names another data directory before the first one.
fn with_other_first(config: &mut MasterConfig) {
    let other = format!("{}-2", config.data_dirs[0]);
    config.data_dirs.insert(0, other);
}

/// Returns the error of a start, without the path of the directories.
async fn refused(master: &Fixture, change: fn(&mut MasterConfig)) -> String {
    let error = try_run(&master.env, &master.dir, change).await.err().expect("refused");
    error.message.replace(&format!("{}/", master.dir.path().display()), "")
}

#[tokio::test(flavor = "multi_thread")]
async fn the_catalog_is_found_in_any_data_directory() {
    let (mut master, _disks) = with_table().await;
    master.change = with_other_first;
    for _ in 0..2 {
        master.restart().await;
        assert_eq!(master.names().await, ["kept"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_master_whose_catalog_is_lost_does_not_create_another() {
    let (mut master, _disks) = with_table().await;
    master.master.shutdown().await;
    let error = refused(&master, |config| {
        with_other_first(config);
        config.lost_data_dirs.extend(config.data_dirs.pop());
    })
    .await;
    expect_test::expect![[r#"
        the WAL directory wal has the log of this master's catalog, but no data directory (data-2) has the catalog; name the one that has it in --fs_data_dirs. If it is lost, remove this master from the others and start it with empty directories, or rebuild the catalog of the only master (nyala debug master rebuild)
    "#]].assert_eq(&(error + "\n"));
    master.start_again().await;
    assert_eq!(master.names().await, ["kept"], "neither the log nor the directory was given up");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_master_with_two_catalogs_does_not_choose() {
    let (mut master, disks) = with_table().await;
    master.change = with_other_first;
    master.restart().await;
    master.master.shutdown().await;
    let disk = |name: &str| disks.disk(master.dir.path().join(name).to_str().expect("UTF-8"));
    let superblock = format!("tablet-meta/{TABLET_ID}");
    let bytes = disk::read_file(&disk("data"), &superblock).expect("a file");
    disk::replace_file(&disk("data-2"), &superblock, &bytes).expect("written");
    let error = refused(&master, with_other_first).await;
    assert!(error.starts_with("the data directories data-2 and data both have a catalog"), "{error}");
    disk("data-2").remove(&superblock).expect("moved away");
    master.start_again().await;
    assert_eq!(master.names().await, ["kept"]);
}
