//! Safe time: no operation at or below it will appear any more, whoever leads.
//!
//! ```text
//!   leader    t0: pick T = what is surely past (wall clock less its error); the log ends with n
//!             │ updates sent after t0 ─► a majority answers in this term
//!             ▼ so nobody else was elected before t0: T is safe
//!             updates that reach n carry T ─► followers serve snapshots at T
//! ```
//!
//! Why it holds. This leader's later operations are above T, as T was taken from its clock. A leader of a later term
//! was elected by a majority with a server that answered after t0, so after t0 in true time; before its first
//! operation it moves its clock past the latest time its own clock can mean ([`Raft::pass_predecessors`]), which is
//! above T, as T was past when it was picked. An operation of an earlier term that this leader does not have can't come
//! back either, once an operation of its own term is committed: until then nothing is confirmed.
//! So there is no lease, and no bound on anything but the stated error of the clocks.
//!
//! A clock whose stated error is above [`ERROR_MAX`] is as good as none. Then, and when a snapshot of right now is
//! wanted while the error is large, the leader commits a no-op: the timestamp of what is committed is always safe,
//! since every later leader has it in its log and is moved past it.

use std::collections::VecDeque;
use std::time::Duration;

use super::message::{Clock, NO_OP_PAYLOAD, Output};
use super::{Ctx, Raft, RaftOptions, State, kind};
use crate::note::raft::Action;
use crate::time::{Instant, Now, Timestamp, WallTime};

/// Clocks that are worse than this are not believed.
const ERROR_MAX: Duration = Duration::from_secs(1);
/// A reader waits for the clock up to this long rather than have something written for it.
const WAIT_MAX: Duration = Duration::from_millis(20);
/// Confirming a newer one confirms the older: a few are enough.
const PICKS_MAX: usize = 8;

/// The leader's picks.
#[derive(Default)]
pub(super) struct Picks {
    /// Not confirmed yet, oldest first.
    waiting: VecDeque<Pick>,
    /// The newest confirmed one, with the last entry when it was picked.
    confirmed: Option<(Timestamp, u64)>,
    next_at: Instant,
    /// The latest that readers wait for, and when the clock is surely past the earliest.
    wanted: Option<(Timestamp, Instant)>,
}

struct Pick {
    at: Timestamp,
    last: u64,
    /// Updates with greater numbers were sent after it.
    sent: u64,
}

impl Picks {
    pub fn confirmed(&self) -> Option<(Timestamp, u64)> {
        self.confirmed
    }

    pub fn deadline(&self, _options: &RaftOptions) -> Option<Instant> {
        self.wanted.map(|(_, at)| at)
    }

    /// No reader waits.
    pub fn is_unwanted(&self) -> bool {
        self.wanted.is_none()
    }

    /// A reader waits for `at`, which is surely past at `due`. Those who come later do not put off who came first.
    fn want(&mut self, at: Timestamp, due: Instant) {
        let (other, earlier) = self.wanted.unwrap_or((at, due));
        self.wanted = Some((other.max(at), earlier.min(due)));
    }

    fn push(&mut self, pick: Pick) {
        match self.waiting.back_mut() {
            Some(last) if pick.at <= last.at => return,
            // Nothing was sent since: what confirms the one confirms the other.
            Some(last) if pick.sent == last.sent => return *last = pick,
            _ => {}
        }
        // The oldest is confirmed first. It stays: were it given up for newer ones, readers could keep any of them from
        // being confirmed.
        if self.waiting.len() == PICKS_MAX {
            self.waiting.remove(1);
        }
        self.waiting.push_back(pick);
    }
}

/// How long until `at` is past, if now it is surely `past`.
fn until(at: Timestamp, past: Timestamp) -> Duration {
    Duration::from_micros(at.micros().saturating_sub(past.micros()) + 1)
}

/// The newest timestamp that is surely past; `None` if the clock says that it does not know.
fn surely_past(wall: WallTime) -> Option<Timestamp> {
    let believed = Duration::from_micros(wall.error_micros) <= ERROR_MAX;
    believed.then(|| Timestamp::from_micros(wall.micros.saturating_sub(wall.error_micros)))
}

impl Raft {
    /// No operation at or below this timestamp will be appended any more, here or by another leader. Whether all below
    /// it are applied is for the caller to know. If this leader [decides alone](Raft::decides_alone), every timestamp
    /// it takes is safe, and this is only a lower bound.
    pub fn safe_time(&self) -> Timestamp {
        self.safe.max(self.committed_at)
    }

    /// Asks that [`Raft::safe_time`] reach `at` soon, as a reader waits for it. Only a leader can do anything about
    /// it: it asks its followers whether it still leads, or writes a no-op.
    pub fn want_safe_time(&mut self, now: Now, at: Timestamp, clock: &mut dyn Clock, out: &mut Output) {
        if at <= self.safe_time() || self.decides_alone() {
            return;
        }
        let State::Leader(leader) = &mut self.state else { return };
        let past = Timestamp::from_micros(now.wall.micros.saturating_sub(now.wall.error_micros));
        let wait = until(at, past);
        if surely_past(now.wall).is_some() && wait <= WAIT_MAX {
            leader.picks.want(at, now.mono.after(wait));
            leader.picks.next_at = now.mono;
        } else if self.log.get(self.log.last().index).is_none_or(|entry| entry.timestamp < at)
            && leader.transfer.is_none()
        {
            self.append_own(kind::NO_OP, NO_OP_PAYLOAD, clock, out);
        }
        let ctx = &mut Ctx { now, clock, out };
        self.pick_safe_time(ctx);
        self.pump(now, ctx.out);
    }

    /// Moves the clock past everything an earlier leader can have promised.
    pub(super) fn pass_predecessors(&mut self, ctx: &mut Ctx<'_>) {
        let WallTime { micros, error_micros } = ctx.now.wall;
        if surely_past(ctx.now.wall).is_some() {
            ctx.clock.pass(Timestamp::from_micros(micros.saturating_add(error_micros)));
        }
        let seen = self.log.get(self.log.last().index).map_or(Timestamp::MIN, |entry| entry.timestamp);
        ctx.clock.pass(seen.max(self.safe_time()));
    }

    /// Picks a timestamp for followers to adopt once it is confirmed, if it is time for one.
    pub(super) fn pick_safe_time(&mut self, ctx: &mut Ctx<'_>) {
        let State::Leader(leader) = &mut self.state else { return };
        let picks = &mut leader.picks;
        let wanted = picks.wanted.take_if(|(_, due)| ctx.now.mono >= *due);
        if leader.peers.is_empty() || !(wanted.is_some() || ctx.now.mono >= picks.next_at) {
            return;
        }
        picks.next_at = self.options.heartbeat_after(ctx.now.mono);
        if wanted.is_some() {
            // Now, or as soon as one of what is on its way was answered.
            leader.peers.values_mut().for_each(|progress| progress.asked = true);
        }
        let Some(past) = surely_past(ctx.now.wall) else { return };
        // Another reader waits for more.
        if let Some((latest, _)) = wanted.filter(|(latest, _)| *latest > past) {
            picks.want(latest, ctx.now.mono.after(until(latest, past)));
        }
        let at = ctx.clock.take().min(past);
        picks.push(Pick { at, last: self.log.last().index, sent: self.sent });
        self.confirm_safe_time(ctx);
    }

    /// A peer answered: perhaps a majority has, since a timestamp was picked.
    pub(super) fn confirm_safe_time(&mut self, ctx: &mut Ctx<'_>) {
        if !self.is_caught_up_leader() {
            return;
        }
        let State::Leader(leader) = &mut self.state else { return };
        let config = self.pending_configs.back().map_or(&self.meta.committed, |(_, config)| config);
        let confirmed = |pick: &Pick| {
            let after = |id| leader.peers.get(&id).is_some_and(|progress| progress.confirmed > pick.sent);
            let voters = config.voters().filter(|peer| peer.id == self.me || after(peer.id));
            voters.count() >= config.majority()
        };
        let count = leader.picks.waiting.iter().take_while(|pick| confirmed(pick)).count();
        let newest = leader.picks.waiting.drain(..count).next_back();
        if let Some(pick) = newest {
            leader.picks.confirmed = Some((pick.at, pick.last));
            self.advance_safe_time(pick.at, ctx);
        }
    }

    /// The leader says so.
    pub(super) fn adopt_safe_time(&mut self, safe: Timestamp, ctx: &mut Ctx<'_>) {
        if safe > self.safe_time() {
            ctx.clock.pass(safe);
            self.advance_safe_time(safe, ctx);
        }
    }

    fn advance_safe_time(&mut self, safe: Timestamp, ctx: &mut Ctx<'_>) {
        if safe > self.safe {
            self.safe = safe;
            self.note(ctx, Action::SafeTimeAdvance { safe });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pick(at: u64, sent: u64) -> Pick {
        Pick { at: Timestamp::from_micros(at), last: 1, sent }
    }

    fn kept(picks: &Picks) -> Vec<(u64, u64)> {
        picks.waiting.iter().map(|pick| (pick.at.micros(), pick.sent)).collect()
    }

    #[test]
    fn of_many_picks_the_oldest_stays_and_the_newest_do() {
        let mut picks = Picks::default();
        (1..=20).for_each(|at| picks.push(pick(at, 100 + at)));
        let newest = (14..=20).map(|at| (at, 100 + at));
        assert_eq!(kept(&picks), std::iter::once((1, 101)).chain(newest).collect::<Vec<_>>());
        picks.push(pick(20, 121));
        assert_eq!(kept(&picks).last(), Some(&(20, 120)), "it says no more than the last");
        picks.push(pick(21, 120));
        assert_eq!(kept(&picks)[6..], [(19, 119), (21, 120)], "nothing was sent between the two");
    }
}
