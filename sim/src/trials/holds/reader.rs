//! A reader of a trial of holds: it holds a snapshot for as long as it reads.

use engine::ids::TableId;
use engine::time::Timestamp;
use sim_plan::RandomStream;

use super::master::Master;
use super::settings::{AGE, LEASE, MAX_AGE, SKEW, TABLES, clock, table_of};

/// Percentage of seconds in which a reader begins, ends, and dies without a word.
const BEGIN: u64 = 10;
const RELEASE: u64 = 2;
const DIE: u64 = 1;
/// Percentage of attempts to hold that fail on their way.
const LOST: u64 = 20;

pub(super) struct Reader {
    name: String,
    reads: Option<Read>,
}

struct Read {
    table: TableId,
    snapshot: Timestamp,
    /// Second at which a leading master has accepted the hold last.
    accepted: Option<u64>,
}

impl Reader {
    pub(super) fn new(number: usize) -> Reader {
        Reader { name: format!("reader {number}"), reads: None }
    }

    /// Returns the table and the snapshot that it holds.
    pub(super) fn held(&self) -> Option<(TableId, Timestamp)> {
        let read = self.reads.as_ref().filter(|read| read.accepted.is_some())?;
        Some((read.table, read.snapshot))
    }

    /// Ends without a word.
    pub(super) fn fail(&mut self) {
        self.reads = None;
    }

    /// Begins, ends or continues to read; returns what it does, unless it only continues.
    pub(super) fn step(
        &mut self,
        random: &mut RandomStream,
        now: u64,
        leader: Option<&Master>,
    ) -> Result<Option<String>, String> {
        let Some(read) = &mut self.reads else {
            return Ok(random.percent(BEGIN).then(|| self.begin(random, now)));
        };
        if random.percent(DIE) {
            self.fail();
            return Ok(Some("dies".to_string()));
        }
        let Some(master) = leader else { return Ok(None) };
        if random.percent(RELEASE) {
            master.holds.release(read.table, &self.name);
            self.reads = None;
            return Ok(Some("ends".to_string()));
        }
        // It keeps within half a lease, so that a hold never ends by itself.
        let is_late = read.accepted.is_some_and(|accepted| now - accepted >= LEASE / 2);
        if random.percent(LOST) && !is_late {
            return Ok(None);
        }
        self.hold(now, master)
    }

    /// Draws a snapshot that no server drops before it is held.
    fn begin(&mut self, random: &mut RandomStream, now: u64) -> String {
        let age = random.below(AGE - 2 * SKEW - LEASE);
        let read = Read {
            table: table_of(random.below(TABLES)),
            snapshot: Timestamp::from_micros(clock(now, 0).wall.micros - age * 1_000_000),
            accepted: None,
        };
        let told = format!("begins to read {} at {}", read.table, read.snapshot);
        self.reads = Some(read);
        told
    }

    fn hold(&mut self, now: u64, master: &Master) -> Result<Option<String>, String> {
        let Some(read) = &mut self.reads else { return Ok(None) };
        let clock = clock(now, master.error);
        let age = clock.wall.micros.saturating_sub(read.snapshot.micros());
        let held = master.holds.hold(clock, read.table, &self.name, read.snapshot);
        match (held, age > MAX_AGE * 1_000_000) {
            (Ok(()), false) => {
                let is_first = read.accepted.replace(now).is_none();
                // Without a leader for longer, the snapshot may be dropped before the first hold.
                let is_old = age > (AGE - 2 * SKEW) * 1_000_000;
                if is_first && is_old {
                    self.fail();
                    return Ok(Some("begins too late".to_string()));
                }
                Ok(is_first.then(|| "holds its snapshot".to_string()))
            }
            (Err(_), true) => {
                self.fail();
                Ok(Some("has read for too long".to_string()))
            }
            (Ok(()), true) => Err(format!("{} holds a snapshot that is too old", self.name)),
            (Err(error), false) => Err(format!("{} may not hold: {error}", self.name)),
        }
    }
}
