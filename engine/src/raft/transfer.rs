//! Leadership transfer (dissertation §3.10).

use std::collections::BTreeMap;

use super::interface::{RaftMessage, RaftReply};
use super::leadership_transfer::LeadershipTransfer;
use super::{Raft, RoleState, StepContext};
use crate::error::{Error, Result};
use crate::ids::PeerId;

impl Raft {
    pub(super) fn transfer_leadership(
        &mut self,
        ticket: u64,
        to: Option<PeerId>,
        abrupt: bool,
        ctx: &mut StepContext<'_>,
    ) {
        let started = self.start_transfer(to, abrupt, ctx);
        self.reply(ticket, RaftReply::StepDown(started), ctx.out);
        self.check_transfer(ctx);
    }

    fn start_transfer(&mut self, to: Option<PeerId>, abrupt: bool, ctx: &mut StepContext<'_>) -> Result<()> {
        self.check_leader()?;
        if abrupt {
            self.step_down(ctx);
            // Another voter starts an election first.
            self.election_due = self.election_due.after(self.options.election_timeout());
            return Ok(());
        }
        let config = self.active_config();
        let is_other_voter = |id: PeerId| id != self.me && config.is_voter(id);
        if let Some(to) = to
            && !is_other_voter(to)
        {
            let message = format!("peer {to} is not a voter that could lead instead of {}", self.me);
            return Err(Error::invalid(message));
        }
        if !config.voters().any(|peer| is_other_voter(peer.id)) {
            return Err(Error::invalid("there is no other voter to lead this tablet"));
        }
        let until = ctx.now.mono.after(self.options.election_timeout());
        if let RoleState::Leader(leader) = &mut self.state {
            let requested = BTreeMap::new();
            leader.transfer = Some(LeadershipTransfer { to, until, requested, retry_at: ctx.now.mono });
        }
        ctx.out.status_changed = true;
        Ok(())
    }

    /// Requests an election of the next leader once it has every entry, and retries with the same or another voter.
    /// Cancels the transfer after its timeout.
    pub(super) fn check_transfer(&mut self, ctx: &mut StepContext<'_>) {
        let last = self.log.last().index;
        let RoleState::Leader(leader) = &mut self.state else { return };
        let Some(transfer) = &mut leader.transfer else { return };
        if ctx.now.mono >= transfer.until {
            leader.transfer = None;
            ctx.out.status_changed = true;
            return;
        }
        if ctx.now.mono < transfer.retry_at {
            return;
        }
        let next_leader = transfer.transfer_target(&leader.peers, last);
        if next_leader.is_some() || !transfer.requested.is_empty() {
            transfer.retry_at = ctx.now.mono.after(self.options.heartbeat_interval);
        }
        if let Some(peer) = next_leader {
            *transfer.requested.entry(peer.id).or_default() += 1;
            self.send(peer, RaftMessage::RunElection, ctx.out);
        }
    }
}
