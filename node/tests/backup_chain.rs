//! A chain of backups of a replicated table: writes, changes of leaders, flushes and compactions between the backups,
//! and history that is dropped. A restore to the time of each backup equals the table as it was then.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the test observes the program from outside"
)]

#[path = "common/backup_world.rs"]
mod backup_world;
#[path = "common/embedded.rs"]
mod embedded;

use std::path::Path;

use backup_world::World;
use engine::schema::row_ops::{ClientCell, RowOpKind};
use engine::time::Timestamp;
use nyala_client::Table;

const ROUNDS: u64 = 6;
/// Round before which servers drop the history, so that its backup is a full one.
const FULL_AGAIN: u64 = 3;
const KEYS: u64 = 60;
const WRITES: u64 = 80;

/// Settings by which rows are flushed and compacted within the test.
const RESTLESS: [(&str, &str); 2] =
    [("flush_threshold_secs", "1"), ("maintenance_manager_polling_interval_ms", "20")];

/// Pseudo-random numbers, the same in each run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

async fn write(table: &Table, dice: &mut Dice, round: u64) {
    let mut writer = table.writer();
    for number in 0..WRITES {
        let key = (dice.below(KEYS) as i32).to_le_bytes();
        let value = format!("round {round} write {number}");
        let (kind, value) = match dice.below(4) {
            0 => (RowOpKind::DeleteIgnore, ClientCell::Unset),
            1 => (RowOpKind::Upsert, ClientCell::Null),
            _ => (RowOpKind::Upsert, ClientCell::Value(value.as_bytes())),
        };
        writer.apply_cells(kind, &[ClientCell::Value(&key), value]).await.expect("a legal row");
        if dice.below(10) == 0 {
            writer.flush().await.expect("accepted rows");
        }
    }
    writer.finish().await.expect("accepted rows");
}

/// Drops the history of all replicas of all tablets.
fn drop_history(world: &World) {
    for server in 0..3 {
        for entry in world.embedded.tablet_server(server).server.tablets.all() {
            if let Some(tablet) = entry.tablet() {
                tablet.raise_history_mark(Timestamp::MAX);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_backup_of_a_chain_restores_what_the_table_was() {
    let mut world = World::with(3, &RESTLESS).await;
    let backups = world.path("backups");
    let columns = ["--column", "k int32", "--column", "v string null", "--hash", "k:2", "--replicas", "3"];
    world.run(&[&["table", "create", "t"][..], &columns].concat()).await;
    let table = world.client.open_table("t").await.expect("a table");
    let tokens = table.scan_tokens(&Default::default()).await.expect("tablets");
    let tablets: Vec<String> = tokens.iter().map(|token| token.tablet().id.clone()).collect();
    let mut dice = Dice(1);
    let mut states = Vec::new();
    for round in 0..ROUNDS {
        write(&table, &mut dice, round).await;
        for tablet in tablets.iter().filter(|_| dice.below(2) == 0) {
            world.run(&["cluster", "step-down", tablet]).await;
        }
        write(&table, &mut dice, round).await;
        if round == FULL_AGAIN {
            drop_history(&world);
        }
        world.run(&["backup", "create", &backups, "t"]).await;
        states.push(world.rows("t").await);
    }
    world.run(&["backup", "verify", &backups, "--deep"]).await;
    let manifests = world.files(&backups, ".nyala-manifest.json");
    assert_eq!(manifests.len(), states.len());
    for (number, (manifest, state)) in manifests.iter().zip(&states).enumerate() {
        let bytes = std::fs::read(manifest).expect("a file");
        let read = nyala_backup::manifest::Manifest::decode(&bytes).expect("a manifest");
        let is_full = number == 0 || number as u64 == FULL_AGAIN;
        assert_eq!(read.is_full(), is_full, "backup {number}");
        let to_ms =
            manifest.parent().and_then(Path::file_name).expect("a directory").to_str().expect("UTF-8");
        let (until, name) = (format!("{to_ms}000"), format!("restored {number}"));
        world.run(&["restore", &backups, "t", "--as", &name, "--until", &until]).await;
        assert_eq!(world.rows(&name).await, *state, "backup {number}");
    }
    world.embedded.shutdown().await;
}
