//! Safe time: no operation at or below it will be added, under this leader or a later one.
//!
//! ```text
//!   leader    t0: propose T = certainly past (wall clock less its error); the log ends with n
//!             │ updates sent after t0 ─► a majority responds in this term
//!             ▼ so no other leader was elected before t0: T is safe
//!             updates that reach n carry T ─► followers serve snapshots at T
//! ```
//!
//! Proof. This leader's later operations are above T, as T was taken from its clock. A leader of a later term was
//! elected by a majority that includes a server that responded after t0, so it was elected after t0 in true time.
//! Before its first operation it moves its clock past the latest time that its clock can mean
//! ([`Raft::advance_past_previous_leaders`]). That is above T, as T was past when it was proposed. An operation of an
//! earlier term that this leader does not have cannot return, once an operation of its own term is committed: until
//! then no proposal is confirmed. So there is no lease, and no bound but the stated error of the clocks.
//!
//! A clock whose stated error is above [`ERROR_MAX`] is not used. Then, and when a reader wants a snapshot of the
//! present while the error is large, the leader commits a no-op. The timestamp of a committed operation is always safe:
//! every later leader has it in its log and moves its clock past it.

use std::time::Duration;

use super::interface::{NO_OP_PAYLOAD, RaftEffects, TimestampSource};
use super::safe_time_proposals::SafeTimeProposal;
use super::{Raft, RoleState, StepContext, kind};
use crate::note::raft::RaftAction;
use crate::time::{ClockReading, Timestamp, WallTime};

/// Largest clock error that is accepted.
const ERROR_MAX: Duration = Duration::from_secs(1);
/// Longest wait of a reader for the clock; beyond it the leader commits a no-op.
const WAIT_MAX: Duration = Duration::from_millis(20);

/// Returns the time until `at` is past, if `past` is certainly past now.
fn time_until(at: Timestamp, past: Timestamp) -> Duration {
    Duration::from_micros(at.micros().saturating_sub(past.micros()) + 1)
}

/// Returns the newest timestamp that is certainly past; `None` if the clock's error is too large.
fn latest_certain_past(wall: WallTime) -> Option<Timestamp> {
    let believed = Duration::from_micros(wall.error_micros) <= ERROR_MAX;
    believed.then(|| Timestamp::from_micros(wall.micros.saturating_sub(wall.error_micros)))
}

impl Raft {
    /// Timestamp at or below which no operation will be appended any more, here or by another leader.
    ///
    /// The caller tracks if all operations below it are applied. For a leader that is the [only
    /// voter](Raft::leads_single_voter_group), every timestamp that it takes is safe, and this is only a lower bound.
    pub fn safe_time(&self) -> Timestamp {
        self.safe.max(self.committed_at)
    }

    /// Requests that [`Raft::safe_time`] reach `at` soon, for a reader. Only a leader can act on it: it confirms its
    /// leadership with its followers, or commits a no-op.
    pub fn want_safe_time(
        &mut self,
        now: ClockReading,
        at: Timestamp,
        clock: &mut dyn TimestampSource,
        out: &mut RaftEffects,
    ) {
        if at <= self.safe_time() || self.leads_single_voter_group() {
            return;
        }
        let RoleState::Leader(leader) = &mut self.state else { return };
        let past = Timestamp::from_micros(now.wall.micros.saturating_sub(now.wall.error_micros));
        let wait = time_until(at, past);
        if latest_certain_past(now.wall).is_some() && wait <= WAIT_MAX {
            leader.proposals.add_waiter(at, now.mono.after(wait));
            leader.proposals.next_at = now.mono;
        } else if self.log.get(self.log.last().index).is_none_or(|entry| entry.timestamp < at)
            && leader.transfer.is_none()
        {
            self.append_own(kind::NO_OP, NO_OP_PAYLOAD, clock, out);
        }
        let ctx = &mut StepContext { now, clock, out };
        self.propose_safe_time(ctx);
        self.send_pending_updates(now, ctx.out);
    }

    /// Moves the clock past every safe time that an earlier leader can have reported.
    pub(super) fn advance_past_previous_leaders(&mut self, ctx: &mut StepContext<'_>) {
        let WallTime { micros, error_micros } = ctx.now.wall;
        if latest_certain_past(ctx.now.wall).is_some() {
            ctx.clock.pass(Timestamp::from_micros(micros.saturating_add(error_micros)));
        }
        let seen = self.log.get(self.log.last().index).map_or(Timestamp::MIN, |entry| entry.timestamp);
        ctx.clock.pass(seen.max(self.safe_time()));
    }

    /// Proposes a timestamp for followers to adopt once it is confirmed, if a proposal is due.
    pub(super) fn propose_safe_time(&mut self, ctx: &mut StepContext<'_>) {
        let RoleState::Leader(leader) = &mut self.state else { return };
        let proposals = &mut leader.proposals;
        let wanted = proposals.wanted.take_if(|(_, due)| ctx.now.mono >= *due);
        if leader.peers.is_empty() || !(wanted.is_some() || ctx.now.mono >= proposals.next_at) {
            return;
        }
        proposals.next_at = self.options.heartbeat_after(ctx.now.mono);
        if wanted.is_some() {
            // Sent now, or as soon as an update in flight has its response.
            leader.peers.values_mut().for_each(|progress| progress.reader_waits = true);
        }
        let Some(past) = latest_certain_past(ctx.now.wall) else { return };
        // Another reader waits for a later timestamp.
        if let Some((latest, _)) = wanted.filter(|(latest, _)| *latest > past) {
            proposals.add_waiter(latest, ctx.now.mono.after(time_until(latest, past)));
        }
        let at = ctx.clock.take().min(past);
        proposals.push(SafeTimeProposal { at, last: self.log.last().index, sent: self.sent });
        self.confirm_safe_time(ctx);
    }

    /// Confirms the proposals that a majority has responded to; called when a peer responds.
    pub(super) fn confirm_safe_time(&mut self, ctx: &mut StepContext<'_>) {
        if !self.is_caught_up_leader() {
            return;
        }
        let RoleState::Leader(leader) = &mut self.state else { return };
        let config = self.pending_configs.back().map_or(&self.meta.committed, |(_, config)| config);
        let confirmed = |proposal: &SafeTimeProposal| {
            let after = |id| leader.peers.get(&id).is_some_and(|progress| progress.confirmed > proposal.sent);
            let voters = config.voters().filter(|peer| peer.id == self.me || after(peer.id));
            voters.count() >= config.majority()
        };
        let count = leader.proposals.pending.iter().take_while(|proposal| confirmed(proposal)).count();
        let newest = leader.proposals.pending.drain(..count).next_back();
        if let Some(proposal) = newest {
            leader.proposals.confirmed = Some((proposal.at, proposal.last));
            self.advance_safe_time(proposal.at, ctx);
        }
    }

    /// Adopts a safe time that the leader reports.
    pub(super) fn accept_safe_time(&mut self, safe: Timestamp, ctx: &mut StepContext<'_>) {
        if safe > self.safe_time() {
            ctx.clock.pass(safe);
            self.advance_safe_time(safe, ctx);
        }
    }

    fn advance_safe_time(&mut self, safe: Timestamp, ctx: &mut StepContext<'_>) {
        if safe > self.safe {
            self.safe = safe;
            self.note(ctx, RaftAction::SafeTimeAdvance { safe });
        }
    }
}
