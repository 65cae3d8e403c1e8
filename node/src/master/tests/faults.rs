//! Disk failures and power cuts.

use std::sync::Arc;

use engine::disk::mem::MemDisk;

use super::*;
use nyala_common::env::testing::MemDisks;

const EIO: i32 = 5;

struct Faulty {
    master: Fixture,
    disks: MemDisks,
}

impl Faulty {
    async fn start() -> Faulty {
        let mut env = OsEnv::new(&OsOptions::default()).expect("the real world");
        let disks = MemDisks::default();
        env.disks = Arc::new(disks.clone());
        let master = Fixture::in_env(env, |_| {}).await;
        master.heartbeat(SERVER, Vec::new()).await;
        Faulty { master, disks }
    }

    fn disk(&self, name: &str) -> MemDisk {
        self.disks.disk(self.master.dir.path().join(name).to_str().expect("UTF-8"))
    }

    /// Cuts power and restarts.
    async fn crash(&mut self) {
        // Order: power is cut first, so that nothing of the old master reaches the disks of the next one.
        self.disk("wal").cut_power_at(1);
        self.disk("data").cut_power_at(1);
        self.master.master.shutdown().await;
        self.disk("wal").crash();
        self.disk("data").crash();
        self.master.start_again().await;
        self.master.heartbeat(SERVER, Vec::new()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_master_whose_log_fails_serves_no_catalog() {
    for errno in [EIO] {
        let mut faulty = Faulty::start().await;
        faulty.master.create(&table("kept")).await;
        faulty.disk("wal").fail_op(1, errno);
        let reported = faulty.master.create_error(&table("lost")).await;
        assert!(reported.starts_with("CATALOG_MANAGER_NOT_INITIALIZED + SERVICE_UNAVAILABLE"), "{reported}");
        faulty.master.master.catalog_ended().await;
        let connected: ConnectToMasterResponsePb =
            faulty.master.call("ConnectToMaster", &ConnectToMasterRequestPb {}).await;
        assert!(
            shown(&connected.error).starts_with("CATALOG_MANAGER_NOT_INITIALIZED"),
            "clients look elsewhere"
        );
        assert_eq!(connected.role, None);
        faulty.crash().await;
        assert!(faulty.master.names().await.contains(&"kept".to_string()));
        faulty.master.create(&table("next")).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_acknowledged_change_is_lost_in_a_power_cut() {
    let mut faulty = Faulty::start().await;
    let mut names = Vec::new();
    for i in 0..12 {
        let name = format!("t{i:02}");
        faulty.master.create(&table(&name)).await;
        names.push(name);
        if i % 3 == 2 {
            let gone = names.remove(i % names.len());
            let request = DeleteTableRequestPb { table: by_name(&gone), ..Default::default() };
            let deleted: DeleteTableResponsePb = faulty.master.call("DeleteTable", &request).await;
            assert_eq!(deleted.error, None);
        }
        faulty.crash().await;
        assert_eq!(faulty.master.names().await, names);
    }
}
