//! O11: resources are back to zero when the cluster is quiet. No client has a scan open, no replica is copied, no call
//! waits, no operation is pending and no job runs, so nothing may still hold what they took.

use super::Violation;

/// Name of this oracle.
pub const NAME: &str = "resources";

/// Bytes of requests and replies of idle servers: heartbeats on their way.
const MESSAGE_BYTES_MAX: u64 = 64 << 10;

/// Resources that one server holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServerUsage {
    pub server: String,
    pub scanners: u64,
    /// Sessions in which other servers copy tablets from here.
    pub copies_served: u64,
    /// Copies of tablets to here.
    pub copies_made: u64,
    /// Bytes of received requests and of replies that are not sent.
    pub messages: u64,
    /// Bytes of pending operations of all tablets.
    pub operations: u64,
    /// Bytes of running maintenance jobs of all tablets.
    pub maintenance: u64,
}

/// Reports what quiet servers still hold.
pub fn check(servers: &[ServerUsage]) -> Vec<Violation> {
    servers.iter().flat_map(held).collect()
}

fn held(usage: &ServerUsage) -> Vec<Violation> {
    let limits = [
        ("open scanners", usage.scanners, 0),
        ("sessions of tablet copies from it", usage.copies_served, 0),
        ("tablet copies to it", usage.copies_made, 0),
        ("bytes of requests and replies", usage.messages, MESSAGE_BYTES_MAX),
        ("bytes of pending operations", usage.operations, 0),
        ("bytes of maintenance jobs", usage.maintenance, 0),
    ];
    let above = limits.into_iter().filter(|(_, value, limit)| value > limit);
    above
        .map(|(what, value, limit)| {
            let message =
                format!("the cluster is quiet, and {} has {value} {what} ({limit} allowed)", usage.server);
            Violation::new(NAME, message)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_still_held_is_reported() {
        let idle = ServerUsage { server: "t1".to_string(), messages: 4_000, ..ServerUsage::default() };
        assert_eq!(check(std::slice::from_ref(&idle)), []);
        let leaks = [
            ServerUsage { scanners: 1, ..idle.clone() },
            ServerUsage { copies_served: 1, ..idle.clone() },
            ServerUsage { copies_made: 1, ..idle.clone() },
            ServerUsage { messages: 1 << 20, ..idle.clone() },
            ServerUsage { operations: 1, ..idle.clone() },
            ServerUsage { maintenance: 1, ..idle },
        ];
        for leak in leaks {
            assert_eq!(check(std::slice::from_ref(&leak)).len(), 1, "{leak:?}");
        }
    }
}
