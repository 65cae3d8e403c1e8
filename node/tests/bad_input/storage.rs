//! Full disks, and files of a newer format version.

use engine::schema::row_ops::ClientCell;
use std::collections::BTreeMap;

use bytes::Bytes;
use engine::codec;
use engine::disk::Disk;
use engine::disk::mem::MemDisk;
use engine::sync::Mutex;
use expect_test::expect;
use nyala_common::env::Disks;

use super::*;

/// Directories that are in-memory disks.
#[derive(Clone, Default)]
struct MemDisks(Arc<Mutex<BTreeMap<String, MemDisk>>>);

impl MemDisks {
    fn env(&self) -> Env {
        let mut env = OsEnv::new(&OsOptions::default()).unwrap();
        env.disks = Arc::new(self.clone());
        env
    }

    /// Returns the disk whose directory ends with `end`.
    fn disk(&self, end: &str) -> MemDisk {
        let disks = self.0.lock();
        let found = disks.iter().find(|(dir, _)| dir.ends_with(end));
        found.unwrap_or_else(|| panic!("{end} in {:?}", disks.keys())).1.clone()
    }
}

impl Disks for MemDisks {
    fn open(&self, dir: &str) -> std::io::Result<Arc<dyn Disk>> {
        let mut disks = self.0.lock();
        let seed = disks.len() as u64;
        Ok(Arc::new(disks.entry(dir.to_string()).or_insert_with(|| MemDisk::new(seed)).clone()))
    }

    fn read_file(&self, _: &str) -> std::io::Result<Vec<u8>> {
        Err(std::io::ErrorKind::NotFound.into())
    }
}

const PLENTY: u64 = 1 << 40;
/// Flags with which a log uses as many bytes as its rows.
const UNSQUEEZED: [(&str, &str); 2] =
    [("log_preallocate_segments", "false"), ("log_compression_codec", "NO_COMPRESSION")];

fn a_row(world: &World, key: i32) -> WriteRequestPb {
    let (k, n) = (key.to_le_bytes(), 1i64.to_le_bytes());
    insert(
        &world.tablet,
        &schema(),
        &[&[ClientCell::Value(&k), ClientCell::Value(&[b'x'; 5000]), ClientCell::Value(&n)]],
    )
}

/// Returns the RPC error of a write, if it has one.
async fn rpc_error(world: &World, request: &WriteRequestPb) -> Option<String> {
    let options = CallOptions::default();
    let written =
        world.bystander.call::<_, WriteResponsePb>(TABLETS, "Write", request, soon(&world.env), &options);
    match written.await {
        Ok(response) => {
            assert_eq!(
                response.message.error, None,
                "only busy is retried by clients without a look at the tablet"
            );
            None
        }
        Err(error) => Some(error.to_string()),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_below_its_reserve_refuses_writes_until_there_is_space() {
    for (flag, dir) in [("fs_wal_dir_reserved_bytes", "wal"), ("fs_data_dirs_reserved_bytes", "data")] {
        let disks = MemDisks::default();
        let settings = [UNSQUEEZED[0], UNSQUEEZED[1], (flag, "60000000")];
        let world = World::in_env(disks.env(), &settings).await;
        let disk = disks.disk(&format!("tserver-1/{dir}"));
        disk.set_free(50_000_000);
        let mut acknowledged = 0;
        let refused = loop {
            match rpc_error(&world, &a_row(&world, acknowledged)).await {
                None => acknowledged += 1,
                Some(refused) => break refused,
            }
        };
        assert!(
            refused.contains("has too little space (") && refused.contains(" 60000000 reserved)"),
            "{refused}"
        );
        assert_eq!(world.count().await, acknowledged, "reads go on");
        disk.set_free(PLENTY);
        while rpc_error(&world, &a_row(&world, acknowledged)).await.is_some() {
            world.env.sleep(Duration::from_millis(5)).await;
        }
        acknowledged += 1;
        world.rows.store(acknowledged, Ordering::Relaxed);
        world.still_served().await;
        world.stop().await;
    }
}

/// Space may end faster than it is looked at, or the reserve may be 0.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_log_disk_delays_writes_and_fails_no_replica() {
    for log_sync in ["true", "false"] {
        let disks = MemDisks::default();
        let settings =
            [UNSQUEEZED[0], UNSQUEEZED[1], ("fs_wal_dir_reserved_bytes", "0"), ("log_sync", log_sync)];
        let mut world = World::in_env(disks.env(), &settings).await;
        let wal = disks.disk("tserver-1/wal");
        wal.set_free(12_000);
        let writes = async {
            for key in 0..5 {
                assert_eq!(world.write(&a_row(&world, key)).await.error, None);
            }
        };
        let space = async {
            // Too little for another row.
            while wal.space().unwrap().free >= 5_000 {
                world.env.sleep(Duration::from_millis(1)).await;
            }
            world.env.sleep(Duration::from_millis(50)).await;
            wal.set_free(PLENTY);
        };
        tokio::join!(writes, space);
        assert_eq!(world.count().await, 5);
        world.restart().await;
        assert_eq!(world.count().await, 5, "what was acknowledged is in the log");
        world.rows.store(5, Ordering::Relaxed);
        world.still_served().await;
        world.stop().await;
    }
}

/// A full device is emptied by stopping servers and dropping tables, also with writes in flight.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_with_a_full_log_disk_stops() {
    for log_sync in ["true", "false"] {
        let disks = MemDisks::default();
        let settings =
            [UNSQUEEZED[0], UNSQUEEZED[1], ("fs_wal_dir_reserved_bytes", "0"), ("log_sync", log_sync)];
        let mut world = World::in_env(disks.env(), &settings).await;
        let wal = disks.disk("tserver-1/wal");
        assert_eq!(world.write(&a_row(&world, 0)).await.error, None);
        wal.set_free(100);
        let (env, bystander, request) = (world.env.clone(), world.bystander.clone(), a_row(&world, 1));
        let options = CallOptions::default();
        let write = bystander.call::<_, WriteResponsePb>(TABLETS, "Write", &request, soon(&env), &options);
        let stopped = async {
            // The write waits for space by then.
            env.sleep(Duration::from_millis(50)).await;
            world.cluster.shutdown().await;
        };
        let (written, ()) = tokio::join!(write, stopped);
        let refused = written.map_or(true, |response| response.message.error.is_some());
        assert!(refused, "the row is not in the log");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_data_disk_stops_flushes_only() {
    let disks = MemDisks::default();
    let settings = [
        ("flush_threshold_secs", "0"),
        ("maintenance_manager_polling_interval_ms", "1"),
        ("fs_data_dirs_reserved_bytes", "0"),
    ];
    let world = World::in_env(disks.env(), &settings).await;
    let data = disks.disk("tserver-1/data");
    data.set_free(0);
    for key in 0..20 {
        let written = world.write(&a_row(&world, key)).await;
        assert_eq!(written.error, None, "the log has space");
    }
    assert_eq!(world.count().await, 20);
    data.set_free(PLENTY);
    assert_eq!(world.count().await, 20);
    world.rows.store(20, Ordering::Relaxed);
    world.still_served().await;
    world.stop().await;
}

/// The only voter of a group opens a term at each start, for which it needs space.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_with_a_full_data_disk_starts_and_leads_when_there_is_space() {
    let disks = MemDisks::default();
    let mut world = World::in_env(disks.env(), &[("fs_data_dirs_reserved_bytes", "0")]).await;
    world.still_served().await;
    world.cluster.shutdown().await;
    let data = disks.disk("tserver-1/data");
    data.set_free(0);
    world.cluster = Cluster::start(&world.env, &world.config).await.unwrap();
    world.bystander = connect(&world.env, world.tserver()).await;
    let row = a_row(&world, 1);
    let refused = loop {
        let refused = describe_error(&world.write(&row).await.error);
        if !refused.contains("TABLET_NOT_RUNNING") {
            break refused;
        }
        world.env.sleep(Duration::from_millis(1)).await;
    };
    assert!(refused.contains("is not leader of this config"), "the replica runs: {refused}");
    data.set_free(PLENTY);
    while world.write(&row).await.error.is_some() {
        world.env.sleep(Duration::from_millis(5)).await;
    }
    world.rows.store(2, Ordering::Relaxed);
    world.still_served().await;
    world.stop().await;
}

/// Dropping a table is a way to get space.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_table_is_removed_from_a_full_data_disk() {
    let disks = MemDisks::default();
    let world = World::in_env(disks.env(), &[("fs_data_dirs_reserved_bytes", "0")]).await;
    world.still_served().await;
    let (wal, data) = (disks.disk("tserver-1/wal"), disks.disk("tserver-1/data"));
    data.set_free(0);
    world.client.delete_table("t").await.unwrap();
    let homes = [(&wal, "wals"), (&data, "data"), (&data, "tablet-meta"), (&data, "consensus-meta")];
    let left = || homes.map(|(disk, dir)| disk.list(dir).unwrap()).concat();
    while !left().is_empty() {
        world.env.sleep(Duration::from_millis(5)).await;
    }
    world.stop().await;
}

/// Increments the version in the header of a sealed file.
fn make_newer(disk: &MemDisk, path: &str) {
    let old = content(disk, path);
    let magic = old[..4].try_into().unwrap();
    let version = u16::from_le_bytes([old[4], old[5]]);
    let (_, payload, used) = codec::unseal_prefix(magic, version, &old).unwrap();
    let new = [&codec::seal(magic, version + 1, payload)[..], &old[used..]].concat();
    disk.remove(path).unwrap();
    disk.create(path).unwrap().append(&new).unwrap();
}

/// Returns the error of a write to the tablet, after the tablet's bootstrap has ended.
async fn write_error(world: &World, tablet: &Bytes) -> String {
    loop {
        let refused = describe_error(&world.write(&insert(tablet, &schema(), &[])).await.error);
        if !refused.contains("TABLET_NOT_RUNNING") {
            return refused.replace(std::str::from_utf8(tablet).unwrap(), "TABLET");
        }
        world.env.sleep(Duration::from_millis(1)).await;
    }
}

fn superblock(tablet: &[u8]) -> String {
    format!("tablet-meta/{}", std::str::from_utf8(tablet).unwrap())
}

fn content(disk: &MemDisk, path: &str) -> Vec<u8> {
    let file = disk.open(path).unwrap();
    let mut bytes = vec![0; file.len().unwrap() as usize];
    file.read_at(0, &mut bytes).unwrap();
    bytes
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tablet_of_a_newer_format_is_not_modified() {
    let disks = MemDisks::default();
    let mut world = World::in_env(disks.env(), &[]).await;
    let other = create(&world.client, "other", schema()).await;
    let other = only_tablet(&world.env, &world.cluster, &other).await;
    world.still_served().await;
    world.cluster.shutdown().await;
    let (data, path) = (disks.disk("tserver-1/data"), superblock(&other));
    make_newer(&data, &path);
    let before = content(&data, &path);
    world.restart().await;
    let refused = write_error(&world, &other).await;
    expect![[r#"TABLET_FAILED + ILLEGAL_STATE: Tablet not RUNNING: FAILED: tablet-meta/TABLET: "NYTM" record has format 4, newer than the newest this build reads (3); use the build that wrote it or a later one"#]].assert_eq(&refused);
    world.still_served().await;
    world.stop().await;
    assert_eq!(content(&data, &path), before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_of_a_newer_format_fails_its_tablet_alone() {
    let disks = MemDisks::default();
    let mut world = World::in_env(disks.env(), &[]).await;
    let other = create(&world.client, "other", schema()).await;
    let other = only_tablet(&world.env, &world.cluster, &other).await;
    world.still_served().await;
    world.cluster.shutdown().await;
    let (wal, dir) = (disks.disk("tserver-1/wal"), format!("wals/{}", std::str::from_utf8(&other).unwrap()));
    for segment in wal.list(&dir).unwrap() {
        make_newer(&wal, &format!("{dir}/{segment}"));
    }
    world.restart().await;
    let refused = write_error(&world, &other).await;
    expect![[r#"TABLET_FAILED + ILLEGAL_STATE: Tablet not RUNNING: FAILED: wals/TABLET/0000000001.wal: "NYWS" record has format 3, newer than the newest this build reads (2); use the build that wrote it or a later one"#]].assert_eq(&refused);
    world.still_served().await;
    world.stop().await;
}
