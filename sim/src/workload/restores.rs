//! Restores after the run: backups of each store are restored under other names in the quiet cluster, and their rows
//! join the histories as reads of the backed-up table at the backup's time. The oracles of snapshot reads check them.
//!
//! A backup that a run has reported must be in the store, and every complete backup must be readable: only
//! the disk of the backup client's host may fail, and it never changes bytes.

use std::time::Duration;

use engine::error::{Error, ErrorKind, Result};
use engine::time::Instant;
use nyala_backup::create::hybrid_timestamp;
use nyala_backup::plan::missing_base;
use nyala_backup::prune::expired;
use nyala_backup::restore::{RestoreRequest, RestoreTarget, restore};
use nyala_backup::store::{BackupStore, StoreListing, StoredBackup};
use nyala_client::{Client, ReadMode, ScanSpec};
use nyala_common::env::Env;
use sim_plan::RandomStream;

use super::backups::STORE;
use super::model_client::{BackedUp, check_restored};
use super::recovery_checks::RECOVERY_CLIENT;
use super::scans::spec;
use super::{PAUSE, Workload, nanos, row_encoding, tables, until};
use crate::given_up::given_up_after;
use crate::history::{CallOutcome, ClientNo, ClientRequest, ScanMode, ScanRequest, TableNo};
use crate::oracle::Violation;
use crate::projection::WHOLE;

/// Name of this oracle.
const NAME: &str = "backups";
/// Most backups of a store that are restored.
const RESTORES_MAX: usize = 3;
/// Percentage of restores that are given up and resumed, and most steps after which they are.
const GIVEN_UP_PERCENT: u64 = 70;
const GIVEN_UP_WITHIN: u64 = 40;

impl Workload {
    /// Checks the store of a client; the disks of `env` are those of its host.
    pub async fn check_backups(&self, env: &Env, number: ClientNo) {
        let listing = BackupStore::create(env, STORE).and_then(|store| Ok((store.list()?, store)));
        let (listing, store) = match listing {
            Ok(listed) => listed,
            Err(error) => return self.report_backup(format!("the store cannot be read: {error}")),
        };
        self.check_listing(number, &listing);
        self.check_expired(number, &store, &listing);
        let mut config = self.client_config();
        config.operation_timeout = self.plan().quiet / 2;
        let connect = async || Client::connect(env.clone(), config.clone()).await;
        let Ok(client) = until(env, self.plan().quiet, connect).await else {
            return self.report_backup("no client can connect in a quiet cluster".to_string());
        };
        for backup in self.chosen(number, &listing) {
            let deadline = env.now().mono.after(self.plan().quiet);
            let check = RestoreCheck { workload: self, env, client: &client, number, deadline };
            if let Err(error) = check.run(&store, &listing, backup).await {
                self.report_backup(format!("{}: {error}", backup.dir));
            }
        }
    }

    fn report_backup(&self, what: String) {
        self.report_violation(Violation::new(NAME, what));
    }

    /// Reports backups that are lost or cannot be read.
    fn check_listing(&self, number: ClientNo, listing: &StoreListing) {
        for found in &listing.unreadable {
            self.report_backup(format!("{} cannot be read: {}", found.dir, found.error));
        }
        for orphan in listing.orphans() {
            self.report_backup(missing_base(orphan).message);
        }
        let runs = self.state().backups.runs.clone();
        for (id, to_ms) in
            runs.iter().filter(|run| run.client == number).filter_map(|run| run.reported.as_ref())
        {
            let is_listed = listing.of_table(id).iter().any(|backup| backup.manifest.to_ms == *to_ms);
            if !is_listed {
                self.report_backup(format!(
                    "the backup of table {id} at {to_ms} was reported and is not there"
                ));
            }
        }
    }

    /// Reports backups that would be pruned although a restore to the time of some backup, or later, reads them.
    fn check_expired(&self, number: ClientNo, store: &BackupStore, listing: &StoreListing) {
        let random = &mut RandomStream::new(self.plan().seed, &format!("expired backups of {number}"));
        for id in listing.table_ids() {
            let all = listing.of_table(id);
            let cutoff = all[random.below(all.len() as u64) as usize].manifest.to_ms + random.below(2);
            let expired = expired(store, listing, cutoff, 0);
            let newest = all.iter().filter(|backup| backup.manifest.to_ms <= cutoff);
            let newest = newest.map(|backup| backup.manifest.to_ms).max().unwrap_or_default();
            let needed = all.iter().filter(|backup| backup.manifest.to_ms >= newest);
            for backup in needed.flat_map(|backup| chain_of(&all, backup)) {
                if expired.contains(&backup.dir) {
                    let dir = &backup.dir;
                    self.report_backup(format!(
                        "{dir} would be pruned, and a restore after {cutoff} reads it"
                    ));
                }
            }
        }
    }

    /// Returns the newest backup of each table, and some earlier ones.
    fn chosen<'a>(&self, number: ClientNo, listing: &'a StoreListing) -> Vec<&'a StoredBackup> {
        let random = &mut RandomStream::new(self.plan().seed, &format!("restores of {number}"));
        let (mut newest, mut others) = (Vec::new(), Vec::new());
        for id in listing.table_ids() {
            let mut all = listing.of_table(id);
            all.sort_by_key(|backup| backup.manifest.to_ms);
            newest.extend(all.pop());
            others.extend(all);
        }
        while newest.len() < RESTORES_MAX && !others.is_empty() {
            newest.push(others.swap_remove(random.below(others.len() as u64) as usize));
        }
        newest.truncate(RESTORES_MAX);
        newest
    }
}

/// Returns the backups that a restore of one reads, itself included.
fn chain_of<'a>(all: &[&'a StoredBackup], backup: &'a StoredBackup) -> Vec<&'a StoredBackup> {
    let mut chain = vec![backup];
    while let Some(last) = chain.last().filter(|backup| !backup.manifest.is_full()) {
        let base = all.iter().find(|base| base.manifest.to_ms == last.manifest.from_ms);
        let Some(base) = base else { break };
        chain.push(base);
    }
    chain
}

/// Check of one backup.
struct RestoreCheck<'a> {
    workload: &'a Workload,
    env: &'a Env,
    client: &'a Client,
    number: ClientNo,
    deadline: Instant,
}

impl RestoreCheck<'_> {
    fn left(&self) -> Duration {
        self.deadline.since(self.env.now().mono)
    }

    async fn run(&self, store: &BackupStore, listing: &StoreListing, backup: &StoredBackup) -> Result<()> {
        let manifest = &backup.manifest;
        let name = format!("{}.at-{}", manifest.table_name, manifest.to_ms);
        self.restore(store, listing, backup, &name).await?;
        let plain = manifest.table_name.strip_prefix('t').and_then(|number| number.parse::<TableNo>().ok());
        match plain {
            Some(table) => self.read_plain(table, &name, manifest.to_ms).await?,
            None => {
                let seen = self.client.observed_timestamp().unwrap_or_default();
                let of =
                    BackedUp { client: self.number, manifest, name: &name, seen, span: self.span(backup) };
                check_restored(self.workload, self.env, of, self.deadline).await?;
            }
        }
        until(self.env, self.left(), async || match self.client.delete_table(&name).await {
            // An attempt whose reply was lost has dropped it.
            Err(error) if error.kind == ErrorKind::NotFound => Ok(()),
            dropped => dropped,
        })
        .await
    }

    /// Returns the time of the run that made a backup: from its call to its return, or to now.
    fn span(&self, backup: &StoredBackup) -> std::ops::RangeInclusive<u64> {
        let state = self.workload.state();
        let (id, to_ms) = (&backup.manifest.table_id, backup.manifest.to_ms);
        let is_it = |reported: &(String, u64)| reported.0 == *id && reported.1 == to_ms;
        let run = state.backups.runs.iter().find(|run| run.reported.as_ref().is_some_and(is_it));
        match run.and_then(|run| Some((run.invoked, run.returned?))) {
            Some((invoked, returned)) => invoked..=returned,
            None => 0..=nanos(self.env),
        }
    }

    /// Restores a backup under another name. One that had no time is resumed.
    async fn restore(
        &self,
        store: &BackupStore,
        listing: &StoreListing,
        backup: &StoredBackup,
        name: &str,
    ) -> Result<()> {
        let to_ms = backup.manifest.to_ms;
        let mut request = RestoreRequest {
            table: backup.manifest.table_name.clone(),
            until_ms: Some(to_ms),
            name: Some(name.to_string()),
            replicas: None,
            target: RestoreTarget::New,
        };
        let random = &mut RandomStream::new(self.workload.plan().seed, &format!("restore of {name}"));
        let gives_up = random.percent(GIVEN_UP_PERCENT);
        let mut patience = if gives_up { random.between(1, GIVEN_UP_WITHIN) } else { u64::MAX };
        loop {
            use ErrorKind::{NotLeader, NotReady, Throttled, TimedOut};
            let restored = given_up_after(patience, restore(self.client, store, listing, &request));
            match restored.await.unwrap_or_else(|| Err(Error::timed_out("the restore was given up"))) {
                Ok(done) if done.to_ms != to_ms => {
                    return Err(Error::corrupt(format!("the state of {} was restored", done.to_ms)));
                }
                Ok(_) => return Ok(()),
                // It was given up right after its end: there is no partial table any more.
                Err(error)
                    if gives_up
                        && request.target == RestoreTarget::New
                        && error.kind == ErrorKind::AlreadyPresent =>
                {
                    return Ok(());
                }
                Err(error) if self.left().is_zero() => return Err(error),
                Err(error) if [TimedOut, NotReady, NotLeader, Throttled].contains(&error.kind) => {}
                Err(error) => return Err(error),
            }
            self.env.sleep(PAUSE).await;
            patience = u64::MAX;
            let partial = format!("{name}.restoring-{to_ms}");
            request.target = match self.client.open_table(&partial).await {
                Ok(_) => RestoreTarget::Resumed,
                Err(_) => RestoreTarget::New,
            };
        }
    }

    /// Reads a restored table, as a read of the original one at the time of its backup.
    async fn read_plain(&self, number: TableNo, name: &str, to_ms: u64) -> Result<()> {
        let (keys, at) = ((0, tables::KEYS_END), hybrid_timestamp(to_ms));
        let (mode, view) = (ScanMode::Snapshot, WHOLE);
        let scan = ScanRequest { table: number, keys, mode, diff_from: None, ordered: false, view };
        until(self.env, self.left(), async || {
            let table = self.client.open_table(name).await?;
            let keys = row_encoding::keys_of(table.schema(), keys.0, keys.1);
            let spec = ScanSpec { keys, read_mode: ReadMode::YourWrites, ..spec() };
            let read = self.workload.read(&table, scan, spec, None).await?;
            let (history, now) = (self.workload.history(), nanos(self.env));
            let call = history.invoke(RECOVERY_CLIENT, now, 0, ClientRequest::Scan(scan));
            history.answer(call, now, CallOutcome::Rows { at: Some(at), rows: read.rows });
            *self.workload.state().model.steps.entry("restore of rows".to_string()).or_default() += 1;
            Ok(())
        })
        .await
    }
}
