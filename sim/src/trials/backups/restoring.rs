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
/// An outage that rows do not outlive: a restore tries for a minute to write those of a part. One in a trial at most,
/// within a resumed restore: its table is there, so that nothing but rows waits. Percentage of these restores with an
/// outage that have it, and most polls until it begins.
const LONG_SPAN: (Duration, Duration) = (Duration::from_secs(63), Duration::from_secs(66));
const LONG_PERCENT: u64 = 60;
const LONG_POLLS: [u64; 3] = [2, 10, 30];
/// Time in which a table whose creation was given up comes up.
pub(super) const SETTLING: Duration = Duration::from_secs(1);
/// Looks at a restored table, [`SETTLING`] apart, until its last alteration must have ended.
const ALTERATION_LOOKS: u32 = 20;
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
    /// The span of the outage that it met.
    outage: Option<Duration>,
}

impl Attempt {
    /// Returns true if the attempt may end with `error`.
    pub(super) fn may_fail_with(&self, error: &Error) -> bool {
        self.outage.is_some() || (self.hasty && error.kind == ErrorKind::TimedOut)
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
        if let Some(what) = self.difference(to_ms, &name).await? {
            return Err(Error::corrupt(format!("the restore of the backup at {to_ms} has {what}")));
        }
        let found = self.read(&name).await?;
        let saved = &self.backups[&to_ms];
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

    /// Returns what of a restored table is not as it was at the time of the backup. Its last alteration may still
    /// run, if the client that waited for it gave up.
    async fn difference(&self, to_ms: u64, name: &str) -> Result<Option<String>> {
        let mut looks = 0;
        loop {
            let facts = TableFacts::of(&self.client.open_table(name).await?);
            let difference = self.backups[&to_ms].facts.difference(&facts);
            looks += 1;
            if difference.is_none() || looks == ALTERATION_LOOKS {
                return Ok(difference);
            }
            self.env.sleep(SETTLING).await;
        }
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
            let in_outage = match attempt.outage {
                None => "",
                Some(span) if span < LONG_SPAN.0 => ", in an outage",
                Some(_) => ", in a long outage",
            };
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
        let (polls, span) = self.draw_long_outage(request.target, disturbance).unwrap_or((polls, span));
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
            return Ok(Attempt { outcome, hasty, outage: None });
        }
        self.outage.order(&self.env, Host::Tserver(0), span).await;
        let outcome = restoring.await;
        self.outage.wait_until_over(&self.env).await;
        Ok(Attempt { outcome: Some(outcome), hasty, outage: Some(span) })
    }

    /// Returns the polls until an outage that rows do not outlive, and its span, if this attempt is to have it.
    fn draw_long_outage(
        &mut self,
        target: RestoreTarget,
        disturbance: Disturbance,
    ) -> Option<(u64, Duration)> {
        // A stream of their own, so that other draws stay.
        let mut random = self.random.fork("long outages");
        let may_be = disturbance == Disturbance::Outage && target == RestoreTarget::Resumed;
        if self.had_long_outage || !may_be || !random.percent(LONG_PERCENT) {
            return None;
        }
        self.had_long_outage = true;
        let polls = 1 + below_some(&mut random, LONG_POLLS);
        Some((polls, random.span(LONG_SPAN.0, LONG_SPAN.1)))
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
