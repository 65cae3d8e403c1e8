//! Handing leadership over (dissertation §3.10).

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::message::{Message, Reply};
use super::queue::Progress;
use super::{Ctx, Peer, Raft, State};
use crate::error::{Error, Result};
use crate::ids::PeerId;
use crate::time::Instant;

/// A leader that takes no proposals until somebody else leads, or until it gives up waiting.
pub(super) struct Transfer {
    to: Option<PeerId>,
    until: Instant,
    /// Who was told to stand, and how often.
    asked: BTreeMap<PeerId, u32>,
    /// When somebody is told again: the message may be lost, or the election.
    again: Instant,
}

impl Transfer {
    /// When time alone has to be looked at.
    pub fn deadline(&self) -> Instant {
        if self.asked.is_empty() { self.until } else { self.until.min(self.again) }
    }

    /// A voter that has everything: whoever was told least often, of these the one heard of last.
    fn successor(&self, peers: &BTreeMap<PeerId, Progress>, last: u64) -> Option<Peer> {
        let fits = |progress: &&Progress| {
            progress.peer.is_voter()
                && progress.matched == last
                && self.to.is_none_or(|to| to == progress.peer.id)
        };
        let order = |progress: &&Progress| {
            let asked = self.asked.get(&progress.peer.id).copied().unwrap_or(0);
            (asked, Reverse(progress.heard))
        };
        peers.values().filter(fits).min_by_key(order).map(|progress| progress.peer.clone())
    }
}

impl Raft {
    pub(super) fn give_up_leadership(
        &mut self,
        ticket: u64,
        to: Option<PeerId>,
        abrupt: bool,
        ctx: &mut Ctx<'_>,
    ) {
        let begun = self.begin_to_give_up(to, abrupt, ctx);
        self.reply(ticket, Reply::StepDown(begun), ctx.out);
        self.check_transfer(ctx);
    }

    fn begin_to_give_up(&mut self, to: Option<PeerId>, abrupt: bool, ctx: &mut Ctx<'_>) -> Result<()> {
        self.check_leader()?;
        if abrupt {
            self.step_down(ctx);
            // Somebody else goes first.
            self.election_due = self.election_due.after(self.options.election_timeout());
            return Ok(());
        }
        let config = self.active_config();
        let other = |id: PeerId| id != self.me && config.is_voter(id);
        if let Some(to) = to
            && !other(to)
        {
            let message = format!("peer {to} is not a voter that could lead instead of {}", self.me);
            return Err(Error::invalid(message));
        }
        if !config.voters().any(|peer| other(peer.id)) {
            return Err(Error::invalid("there is no other voter to lead this tablet"));
        }
        let until = ctx.now.mono.after(self.options.election_timeout());
        if let State::Leader(leader) = &mut self.state {
            let asked = BTreeMap::new();
            leader.transfer = Some(Transfer { to, until, asked, again: ctx.now.mono });
        }
        ctx.out.status_changed = true;
        Ok(())
    }

    /// Tells a successor once it has everything, and again, or another, if nothing comes of it. Goes on leading when it
    /// takes too long.
    pub(super) fn check_transfer(&mut self, ctx: &mut Ctx<'_>) {
        let last = self.log.last().index;
        let State::Leader(leader) = &mut self.state else { return };
        let Some(transfer) = &mut leader.transfer else { return };
        if ctx.now.mono >= transfer.until {
            leader.transfer = None;
            ctx.out.status_changed = true;
            return;
        }
        if ctx.now.mono < transfer.again {
            return;
        }
        let successor = transfer.successor(&leader.peers, last);
        if successor.is_some() || !transfer.asked.is_empty() {
            transfer.again = ctx.now.mono.after(self.options.heartbeat_interval);
        }
        if let Some(peer) = successor {
            *transfer.asked.entry(peer.id).or_default() += 1;
            self.send(peer, Message::RunElection, ctx.out);
        }
    }
}
