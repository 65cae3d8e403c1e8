//! O13: servers do not repeat calls that change or copy tablets without a pause. Each such call is refused now and
//! then, and repeated; one that is repeated at once occupies two servers until its cause is gone.

use std::time::Duration;

use super::Violation;

/// Name of this oracle.
pub const NAME: &str = "control calls";

/// Methods that servers call for few reasons and repeat with a pause.
pub const METHODS: [&str; 9] = [
    "kudu_consensus_ConsensusService_StartTabletCopy",
    "kudu_consensus_ConsensusService_ChangeConfig",
    "kudu_consensus_ConsensusService_BulkChangeConfig",
    "kudu_consensus_ConsensusService_LeaderStepDown",
    "kudu_tserver_TabletCopyService_BeginTabletCopySession",
    "kudu_tserver_TabletServerAdminService_CreateTablet",
    "kudu_tserver_TabletServerAdminService_DeleteTablet",
    "kudu_tserver_TabletServerAdminService_AlterSchema",
    "kudu_tserver_TabletServerAdminService_Quiesce",
];

/// Calls of one method that a server may get at any rate: those of clients and of all tablets at a time.
const BURST: u64 = 400;
/// Calls of one method per second that a server may get for as long as the run lasts.
const PER_SECOND: f64 = 20.0;

/// Calls that a server has got in its present life.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallCount {
    pub server: String,
    pub method: String,
    pub calls: u64,
}

/// Reports methods that servers called too often in a run of this length.
pub fn check(counts: &[CallCount], run: Duration) -> Vec<Violation> {
    let most = BURST + (run.as_secs_f64() * PER_SECOND) as u64;
    let of_control = counts.iter().filter(|count| METHODS.contains(&count.method.as_str()));
    of_control
        .filter(|count| count.calls > most)
        .map(|CallCount { server, method, calls }| {
            let message = format!("{server} got {calls} calls of {method} within {run:?} ({most} allowed)");
            Violation::new(NAME, message)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_control_calls_without_a_pause_are_reported() {
        let count = |method: &str, calls| {
            vec![CallCount { server: "t1".to_string(), method: method.to_string(), calls }]
        };
        let run = Duration::from_secs(30);
        assert_eq!(check(&count(METHODS[0], 1_000), run), []);
        assert_eq!(check(&count(METHODS[0], 1_001), run).len(), 1);
        assert_eq!(check(&count("kudu_tserver_TabletServerService_Write", 1_000_000), run), []);
    }
}
