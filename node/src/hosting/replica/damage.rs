//! Damage of a replica's stored files: a replica that its group can replace fails, any other serves what is whole.
//!
//! ```text
//!   damage ──▶ ask all other voters ──▶ a majority is healthy without this replica: it fails, the masters replace it
//!                                  └──▶ otherwise: logged, nothing changes
//! ```
//!
//! - A failed replica neither votes nor acknowledges entries, and only a majority of the voters elects a leader, evicts
//!   it and promotes its successor. Without that majority its failure would end the tablet.
//! - A healthy voter answers now, and its leader reports it as healthy. The answer alone is not enough: a voter that
//!   cannot catch up from the leader's log answers, too. Nor is the report: it shows silence after minutes.
//! - A replica that asks does not answer meanwhile, so that two damaged ones never fail by relying on each other.
//!
//! *Not here:* a log or metadata that cannot be written, and damage that a client's scan meets: they fail any replica.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use engine::error::{Error, ErrorKind};
use engine::ids::PeerId;
use engine::raft::{RaftStatus, Role};
use engine::time::Instant;
use futures_util::future::join_all;

use super::ReplicaHandle;
use super::event_loop::ReplicaLoop;
use super::shared::{Command, Shared};
use nyala_common::wire::consensus as wire;
use nyala_proto::kudu::consensus::health_report_pb::HealthStatus;
use nyala_proto::kudu::consensus::{ConsensusStatePb, RaftConfigPb, RaftPeerPb};

/// Numbers of the errors by which a device or file system reports a damaged file: ENOENT, EIO.
const DAMAGE_ERRNOS: [i32; 2] = [2, 5];

/// Returns true if a read failed by the fault of its file. Other errors are of the build, or of the server at that
/// time (no file descriptors, no memory): the next read may succeed, and all replicas meet them one after another.
pub fn is_damage(error: &Error) -> bool {
    match error.kind {
        ErrorKind::Corrupt => true,
        // A file that ends early has no error number.
        ErrorKind::Io => error.errno.is_none_or(|errno| DAMAGE_ERRNOS.contains(&errno)),
        _ => false,
    }
}

impl ReplicaHandle {
    /// Fails the replica for damage of its files, if its tablet can do without it. Returns true if it did.
    pub async fn fail_if_replaceable(&self, error: &Error) -> bool {
        let Ok(status) = self.status_now().await else { return false };
        let fails = self.shared.fail_if_replaceable(&status, error).await;
        if fails {
            // A loop that ended has no callers.
            let _ended = self.inbox.send(Command::Failed);
        }
        fails
    }

    /// Returns true while the replica may be about to fail for damage: no other one may rely on it.
    pub fn is_checking_damage(&self) -> bool {
        self.shared.damage_checks.load(Ordering::SeqCst) > 0
    }
}

/// A running check, counted until it is dropped.
struct DamageCheckGuard<'a>(&'a AtomicUsize);

impl<'a> DamageCheckGuard<'a> {
    fn new(count: &'a AtomicUsize) -> DamageCheckGuard<'a> {
        count.fetch_add(1, Ordering::SeqCst);
        DamageCheckGuard(count)
    }
}

impl Drop for DamageCheckGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Interval at which a leader whose log is damaged checks that its group can do without it.
const LOG_CHECK_INTERVAL: Duration = Duration::from_secs(30);

impl ReplicaLoop {
    /// Fails a leader that cannot read its log for a follower because it is damaged, if the tablet can do without it:
    /// only another leader has the entries that the follower lacks. The read is repeated, so a leader that is needed
    /// checks again later.
    pub(super) fn on_log_read_failed(&mut self, error: &Error) {
        let now = self.shared.env.now();
        let is_recent = |at: Instant| now.mono.since(at) < LOG_CHECK_INTERVAL;
        if !is_damage(error) || self.log_checked_at.is_some_and(is_recent) {
            return;
        }
        self.log_checked_at = Some(now.mono);
        let (shared, event_sender) = (self.shared.clone(), self.event_sender.clone());
        let (status, error) = (self.replica.status(now), error.clone());
        self.shared.env.spawn("damaged log", async move {
            if shared.fail_if_replaceable(&status, &error).await {
                event_sender.queue(Command::Failed);
            }
        });
    }
}

impl Shared {
    /// Fails the replica if its tablet can do without it; else logs the damage. `status` is the replica's own. Returns
    /// true if it failed. The caller wakes the loop then.
    async fn fail_if_replaceable(&self, status: &RaftStatus, error: &Error) -> bool {
        // Order: before the others are asked, and until the failure shows.
        let _check = DamageCheckGuard::new(&self.damage_checks);
        let fails = self.is_replaceable(status).await && !self.stopping.load(Ordering::Relaxed);
        if fails {
            self.fail(error);
        } else {
            let tablet = self.tablet.tablet;
            tracing::error!(%tablet, %error, "a damaged replica stays: it cannot be replaced, or its group needs it");
        }
        fails
    }

    /// Returns true if masters replace the replica, and a majority of the voters is healthy without it.
    async fn is_replaceable(&self, status: &RaftStatus) -> bool {
        if !self.config.is_replaced {
            return false;
        }
        let (tablet, peers) = (self.tablet.tablet, &self.config.peers);
        let mut calls = Vec::new();
        for peer in status.active_config().voters().filter(|peer| peer.id != self.me) {
            calls.push(async move { (peer.id, peers.consensus_state(tablet, peer).await) });
        }
        let answers = join_all(calls).await.into_iter();
        let answers: BTreeMap<PeerId, ConsensusStatePb> =
            answers.filter_map(|(peer, state)| Some((peer, state.ok()?))).collect();
        if status.role == Role::Leader {
            return has_majority(&wire::state_to_pb(status, self.me, true), &answers);
        }
        let view = status.leader.and_then(|leader| answers.get(&leader));
        view.is_some_and(|view| has_majority(view, &answers))
    }
}

/// Returns true if the voters that `view` shows as healthy and that gave `answers` are a majority of each of its
/// configurations: one that is not committed may be lost with the leader. `view` is a leader's: no other replica
/// reports health.
fn has_majority(view: &ConsensusStatePb, answers: &BTreeMap<PeerId, ConsensusStatePb>) -> bool {
    let configs = [Some(&view.committed_config), view.pending_config.as_ref()];
    configs.into_iter().flatten().all(|config| has_majority_of(config, answers))
}

fn has_majority_of(config_pb: &RaftConfigPb, answers: &BTreeMap<PeerId, ConsensusStatePb>) -> bool {
    let Ok(config) = wire::config_from_pb(config_pb) else { return false };
    let is_healthy = |pb: &RaftPeerPb| {
        pb.health_report.is_some_and(|report| report.overall_health() == HealthStatus::Healthy)
    };
    let members = config.peers.iter().zip(&config_pb.peers);
    let healthy = members
        .filter(|(peer, pb)| peer.is_voter() && answers.contains_key(&peer.id) && is_healthy(pb))
        .count();
    healthy >= config.majority()
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::ids::Uuid;
    use engine::raft::{MemberKind, Peer, RaftConfig};
    use nyala_proto::kudu::consensus::HealthReportPb;

    fn id(name: char) -> PeerId {
        Uuid([name.to_ascii_uppercase() as u8; 16])
    }

    /// Returns a configuration of these members, each with its health: `+` healthy, `-` failed, `?` unknown; learners
    /// are in lower case.
    fn config_pb(members: &str) -> RaftConfigPb {
        let (mut peers, mut healths) = (Vec::new(), Vec::new());
        for member in members.split(' ') {
            let [name, health] = member.chars().collect::<Vec<_>>()[..] else { panic!("{member}") };
            let kind = if name.is_uppercase() { MemberKind::Voter } else { MemberKind::NonVoter };
            peers.push(Peer { member: kind, ..Peer::voter(id(name), "host", 7050) });
            healths.push(match health {
                '+' => HealthStatus::Healthy,
                '-' => HealthStatus::FailedUnrecoverable,
                _ => HealthStatus::Unknown,
            });
        }
        let mut config = wire::config_to_pb(&RaftConfig::initial(peers));
        for (pb, health) in config.peers.iter_mut().zip(healths) {
            pb.health_report = Some(HealthReportPb { overall_health: Some(health as i32) });
        }
        config
    }

    /// Returns the outcome for a replica `A`. `configs` are its leader's committed configuration and the pending one,
    /// if any. `answered` are the members that answered.
    fn is_enough(configs: &[&str], answered: &str) -> bool {
        let mut configs = configs.iter().map(|members| config_pb(members));
        let committed_config = configs.next().expect("a group has one");
        let view =
            ConsensusStatePb { committed_config, pending_config: configs.next(), ..Default::default() };
        has_majority(&view, &answered.chars().map(|name| (id(name), ConsensusStatePb::default())).collect())
    }

    #[test]
    fn a_replica_is_replaceable_if_the_other_healthy_voters_are_a_majority() {
        let cases = [
            ("A+ B+ C+", "BC", true),
            ("A+ B+ C+", "B", false),
            ("A+ B+ C-", "BC", false),
            ("A+ B+ C?", "BC", false),
            ("A+ B+", "B", false),
            ("A+ B+ c+", "BC", false),
            ("A+", "", false),
            ("A+ B+ C+ D+ E-", "BCDE", true),
            ("A+ B+ C+ D+ E+", "BC", false),
            ("A+ B+ C+ D+", "BCD", true),
        ];
        for (members, answered, expected) in cases {
            assert_eq!(is_enough(&[members], answered), expected, "{members}, answers of {answered:?}");
        }
    }

    /// If the leader fails before another member has the change, the configuration before it decides.
    #[test]
    fn a_pending_change_needs_a_majority_of_both_configurations() {
        let cases = [
            (["A+ B+ C+ D-", "A+ B+ C+"], "BC", false),
            (["A+ B+", "A+ B+ D+"], "BD", false),
            (["A+ B+ C+", "A+ B+ C+ D+"], "BC", false),
            (["A+ B+ C+", "A+ B+ C+ D+"], "BCD", true),
        ];
        for (configs, answered, expected) in cases {
            assert_eq!(is_enough(&configs, answered), expected, "{configs:?}, answers of {answered:?}");
        }
    }

    #[test]
    fn damage_is_told_from_lack_of_resources() {
        let io = |errno| Error { kind: ErrorKind::Io, message: "a read".to_string(), errno };
        let cases = [(None, true), (Some(2), true), (Some(5), true), (Some(24), false), (Some(28), false)];
        for (errno, expected) in cases {
            assert_eq!(is_damage(&io(errno)), expected, "{errno:?}");
        }
        assert!(is_damage(&Error::corrupt("a page")));
        assert!(!is_damage(&Error::aborted("the tablet is shutting down")));
    }
}
