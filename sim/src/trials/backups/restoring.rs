//! Restores of a trial of backups: they are given up, or meet an outage of the tablet server, and are resumed.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::pin;
use std::time::Duration;

use arrow_array::Array;
use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use engine::error::{Error, ErrorKind, Result};
use nyala_backup::restore::{RestoreOutcome, RestoreRequest, RestoreTarget, restore};
use nyala_backup::store::BackupStore;
use nyala_client::{ReadMode, ScanSpec};
use sim_plan::Host;

use super::columns::ReadRows;
use super::facts::TableFacts;
use super::keeper::{Keeper, POLLS, STORE, TABLE, below_some};
use crate::given_up::given_up_after;

/// Disturbance of an attempt to restore, which may end before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Disturbance {
    None,
    /// It is given up after some polls.
    GivenUp,
    /// The tablet server is killed after some polls.
    Outage,
}

const DISTURBANCES: [(Disturbance, u32); 3] =
    [(Disturbance::None, 25), (Disturbance::GivenUp, 45), (Disturbance::Outage, 30)];
/// Shortest and longest outage.
const SPAN: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(2));
/// Time in which a table whose creation was given up comes up.
pub(super) const SETTLING: Duration = Duration::from_secs(1);
/// Percentage of disturbances that may come at any time of a restore, by the polls of the last whole one. Many
/// others come at its beginning, or after its end.
const EVENLY_PERCENT: u64 = 60;
/// Percentage of restored tables over which the same backup is restored.
const OVER_PERCENT: u64 = 30;

/// The end of an attempt to restore.
pub(super) struct Attempt {
    /// `None` if it was given up.
    pub outcome: Option<Result<RestoreOutcome>>,
    /// The client soon gives up, which may be before the outage.
    hasty: bool,
    met_outage: bool,
}

impl Attempt {
    /// Returns true if the attempt may end with `error`.
    pub(super) fn may_fail_with(&self, error: &Error) -> bool {
        self.met_outage || (self.hasty && error.kind == ErrorKind::TimedOut)
    }
}

impl Keeper {
    /// Restores one of the backups, in several attempts, and compares columns, settings and rows.
    pub(super) async fn restore_one(&mut self) -> Result<()> {
        let times: Vec<u64> = self.backups.keys().copied().collect();
        if times.is_empty() {
            return Ok(());
        }
        let to_ms = self.random.pick(&times);
        self.restored += 1;
        let name = format!("restored{}", self.restored);
        self.restore(to_ms, &name).await?;
        let facts = TableFacts::of(&self.client.open_table(&name).await?);
        let found = self.read(&name).await?;
        let saved = &self.backups[&to_ms];
        if let Some(what) = saved.facts.difference(&facts) {
            return Err(Error::corrupt(format!("the restore of the backup at {to_ms} has {what}")));
        }
        let wanted = &saved.rows;
        if found != *wanted {
            let odd = found.iter().find(|(key, value)| wanted.get(key) != Some(value));
            let lost = wanted.iter().find(|(key, value)| found.get(key) != Some(value));
            let text = format!("the backup at {to_ms} had the row {lost:?}, and its restore {odd:?}");
            return Err(Error::corrupt(text));
        }
        if self.random.percent(OVER_PERCENT) {
            self.restore_over(to_ms, &name).await?;
        }
        self.client.delete_table(&name).await
    }

    async fn restore(&mut self, to_ms: u64, name: &str) -> Result<()> {
        let mut request = RestoreRequest {
            table: TABLE.to_string(),
            until_ms: Some(to_ms),
            name: Some(name.to_string()),
            replicas: None,
            target: RestoreTarget::New,
        };
        loop {
            let attempt = self.attempt(&request).await?;
            let told = attempt.outcome.as_ref().map(|done| done.is_ok());
            let in_outage = if attempt.met_outage { ", in an outage" } else { "" };
            self.note(format!("restore of {to_ms} to {name}{in_outage}: {told:?}"));
            match &attempt.outcome {
                Some(Ok(_)) => return Ok(()),
                // It was given up right after its end.
                Some(Err(error)) if error.kind == ErrorKind::AlreadyPresent => return Ok(()),
                Some(Err(error)) if !attempt.may_fail_with(error) => return Err(error.clone()),
                Some(Err(_)) | None => {}
            }
            self.env.sleep(SETTLING).await;
            if self.client.open_table(name).await.is_ok() {
                return Ok(());
            }
            request.target = match self.client.open_table(&format!("{name}.restoring-{to_ms}")).await {
                Ok(_) => RestoreTarget::Resumed,
                Err(_) => RestoreTarget::New,
            };
        }
    }

    /// Restores with a disturbance that is drawn. After an outage the tablet server is up again.
    pub(super) async fn attempt(&mut self, request: &RestoreRequest) -> Result<Attempt> {
        let store = BackupStore::create(&self.env, STORE)?;
        let listing = store.list()?;
        let disturbance = self.random.weighted(&DISTURBANCES);
        let evenly = self.random.percent(EVENLY_PERCENT);
        let polls = 1 + if evenly {
            self.random.below(self.restore_polls)
        } else {
            below_some(&mut self.random, POLLS)
        };
        let span = self.random.span(SPAN.0, SPAN.1);
        let (client, polls) = match disturbance {
            Disturbance::None => (&self.client, u64::MAX),
            Disturbance::GivenUp => (&self.client, polls),
            Disturbance::Outage => (&self.hasty, polls),
        };
        let made = Cell::new(0);
        let mut restoring = pin!(counted(&made, restore(client, &store, &listing, request)));
        let outcome = given_up_after(polls, restoring.as_mut()).await;
        let hasty = disturbance == Disturbance::Outage;
        if outcome.is_some() || !hasty {
            if matches!(outcome, Some(Ok(_))) {
                self.restore_polls = made.get();
            }
            return Ok(Attempt { outcome, hasty, met_outage: false });
        }
        self.outage.order(&self.env, Host::Tserver(0), span).await;
        let outcome = restoring.await;
        self.outage.wait_until_over(&self.env).await;
        Ok(Attempt { outcome: Some(outcome), hasty, met_outage: true })
    }

    /// Returns all rows of a table.
    pub(super) async fn read(&self, name: &str) -> Result<ReadRows> {
        let table = self.client.open_table(name).await?;
        let mut scanner = table.scan(ScanSpec { read_mode: ReadMode::Latest, ..ScanSpec::default() })?;
        let mut rows = ReadRows::new();
        while let Some(batch) = scanner.next_batch().await? {
            let keys = batch.column(0).as_primitive::<Int64Type>();
            let values = batch.columns()[1..].iter().map(|column| column.as_primitive::<Int64Type>());
            let values: Vec<_> = values.collect();
            for at in 0..batch.num_rows() {
                let cells = values.iter().map(|cells| cells.is_valid(at).then(|| cells.value(at)));
                if rows.insert(keys.value(at), cells.collect()).is_some() {
                    return Err(Error::corrupt(format!("{name} has two rows of {}", keys.value(at))));
                }
            }
        }
        Ok(rows)
    }
}

/// Counts the polls of a future.
async fn counted<T>(polls: &Cell<u64>, future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    poll_fn(|context| {
        polls.set(polls.get() + 1);
        future.as_mut().poll(context)
    })
    .await
}
