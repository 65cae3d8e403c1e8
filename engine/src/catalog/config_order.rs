//! Order of the configurations that a tablet's replicas report.
//!
//! ```text
//!   index     3        4        5
//!   lost     a,b,c ── ····· ── a,b,c,d    term 2, reported to the masters before a and b were lost
//!   forced   a,b,c ── c                   term 4, where the log of c ended
//! ```
//!
//! Terms rise with indexes in a log, and all later leaders have a committed entry (Raft §5.4). So of two committed
//! configurations, that of the higher index is newer. An operator who forces a configuration on a replica without a
//! majority breaks this: its index may be at or below that of a configuration that only the lost replicas had. Its term
//! is newer than theirs. So the terms of the configurations' operations decide where they are known.

use super::Tablet;
use super::heartbeat::ReportedTablet;
use super::record::ConsensusState;
use crate::ids::PeerId;

impl Tablet {
    /// Returns the term of its configuration's operation, if a replica has told it since this master leads.
    pub(super) fn config_term(&self) -> Option<i64> {
        self.holders().find_map(|replica| replica.config_term)
    }

    /// Returns true if the report of a replica on `server` has a newer configuration than the known one.
    pub(super) fn is_newer_config(&self, server: PeerId, report: &ReportedTablet) -> bool {
        let Some(reported) = &report.consensus else { return false };
        let known = &self.record.consensus;
        if reported.config_index > known.config_index {
            // A new master knows no terms of configurations yet. A replica that was lost before another one was forced
            // has not seen the forced leader's term; an ordinary newer configuration is reported by its leader, too.
            let is_behind = self.config_term().is_none() && reported.term < known.term;
            return !is_behind && !self.is_older_config(report);
        }
        // A leader that has just been elected may not know yet that the newest configuration is committed.
        let is_forced = report.config_term.is_some_and(|term| term > self.config_term_max());
        is_forced && reported.leader == Some(server)
    }

    /// Returns true if a replica has reported an older configuration than the known one.
    pub(super) fn is_older_config(&self, report: &ReportedTablet) -> bool {
        let known = self.record.consensus.config_index;
        let Some(reported) = &report.consensus else { return known > -1 };
        let is_of_older_term = |known: i64| term_max(report).is_some_and(|term| term < known);
        reported.config_index < known || self.config_term().is_some_and(is_of_older_term)
    }

    /// Returns a term that its configuration's operation does not exceed. Without a report of that configuration this
    /// is the term of the newest leader.
    fn config_term_max(&self) -> i64 {
        self.holders().filter_map(term_max).min().unwrap_or(self.record.consensus.term)
    }

    /// Returns the replicas whose last report has its configuration.
    fn holders(&self) -> impl Iterator<Item = &ReportedTablet> {
        let known = &self.record.consensus;
        let has = move |replica: &&ReportedTablet| {
            replica.consensus.as_ref().is_some_and(|reported| is_same_config(known, reported))
        };
        self.replicas.values().filter(has)
    }
}

/// Returns a term that the operation of a reported configuration does not exceed: none in a log is of a newer term than
/// the replica. A replica that does not run reports no term.
fn term_max(report: &ReportedTablet) -> Option<i64> {
    let of_replica = || report.consensus.as_ref().map(|reported| reported.term).filter(|term| *term > 0);
    report.config_term.or_else(of_replica)
}

/// Returns true if two states have one configuration. Two of one index differ if one of them was forced.
fn is_same_config(known: &ConsensusState, reported: &ConsensusState) -> bool {
    let (known_peers, reported_peers) = (known.peers.iter(), reported.peers.iter());
    known.config_index == reported.config_index
        && known_peers.map(|peer| peer.server).eq(reported_peers.map(|peer| peer.server))
}
