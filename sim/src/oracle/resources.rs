//! O11: resources are back to zero when the cluster is quiet. No client has a scan open, no replica is copied, no call
//! waits, no operation is pending and no job runs, so nothing may still hold what they took, and no job is due.

use std::collections::BTreeMap;

use super::Violation;

/// Name of this oracle.
pub const NAME: &str = "resources";

/// Bytes of requests and replies of idle servers: heartbeats on their way.
const MESSAGE_BYTES_MAX: u64 = 64 << 10;

/// Tasks that end when there is nothing to do.
const ENDING_TASKS: [&str; 4] = ["peer copy", "peer election", "peer vote", "tablet copy"];
/// Tasks of calls: a look may meet a heartbeat, or a connection that is opened for one. Most of each name.
const CALL_TASKS: [&str; 3] = ["rpc call", "rpc connect", "master-request"];
const CALL_TASKS_MAX: u64 = 2;
/// Most tasks of any other name, of a server without tablets and for each tablet: connections, heartbeats.
const SERVER_TASKS_MAX: u64 = 64;
const TABLET_TASKS_MAX: u64 = 8;

/// Maintenance that is due in the tablets of a server. It is done within seconds, and begins when something changes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DueMaintenance {
    /// MemRowSets that wait for their flush.
    pub frozen: u64,
    /// Stores above the size at which they are flushed.
    pub large_stores: u64,
    /// Tablets with rowsets that are worth compacting.
    pub compactions: u64,
    /// Stores with rows or deltas while more memory is tracked than the soft limit.
    pub stores_in_short_memory: u64,
}

impl DueMaintenance {
    fn least(self, other: DueMaintenance) -> DueMaintenance {
        DueMaintenance {
            frozen: self.frozen.min(other.frozen),
            large_stores: self.large_stores.min(other.large_stores),
            compactions: self.compactions.min(other.compactions),
            stores_in_short_memory: self.stores_in_short_memory.min(other.stores_in_short_memory),
        }
    }
}

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
    /// Tablets that are open.
    pub tablets: u64,
    /// Operations of all tablets led here that are begun and not applied.
    pub in_flight: u64,
    /// Log anchors of stores that have nothing to flush.
    pub anchors: u64,
    /// Bytes of MemRowSets that no tablet has: readers hold them.
    pub rows: u64,
    /// Bytes of DeltaMemStores that no tablet has.
    pub deltas: u64,
    /// Difference between the bytes that the page cache has and those that it counts.
    pub pages: u64,
    /// Tasks that have not ended, by name.
    pub tasks: BTreeMap<&'static str, u64>,
    pub due: DueMaintenance,
}

impl ServerUsage {
    /// Returns what the server holds at both of two looks: one may meet a message on its way.
    #[must_use]
    pub fn least(&self, other: &ServerUsage) -> ServerUsage {
        let task = |(name, count): (&&'static str, &u64)| {
            (*name, (*count).min(other.tasks.get(name).copied().unwrap_or_default()))
        };
        ServerUsage {
            server: self.server.clone(),
            scanners: self.scanners.min(other.scanners),
            copies_served: self.copies_served.min(other.copies_served),
            copies_made: self.copies_made.min(other.copies_made),
            messages: self.messages.min(other.messages),
            operations: self.operations.min(other.operations),
            maintenance: self.maintenance.min(other.maintenance),
            tablets: self.tablets.max(other.tablets),
            in_flight: self.in_flight.min(other.in_flight),
            anchors: self.anchors.min(other.anchors),
            rows: self.rows.min(other.rows),
            deltas: self.deltas.min(other.deltas),
            pages: self.pages.min(other.pages),
            tasks: self.tasks.iter().map(task).collect(),
            due: self.due.least(other.due),
        }
    }

    /// Returns the number of tasks of a name that a quiet server may have.
    fn tasks_max(&self, name: &str) -> u64 {
        if ENDING_TASKS.contains(&name) {
            0
        } else if CALL_TASKS.contains(&name) {
            CALL_TASKS_MAX
        } else {
            SERVER_TASKS_MAX + TABLET_TASKS_MAX * self.tablets
        }
    }
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
        ("operations in flight", usage.in_flight, 0),
        ("log anchors of stores with nothing to flush", usage.anchors, 0),
        ("bytes of MemRowSets that no tablet has", usage.rows, 0),
        ("bytes of DeltaMemStores that no tablet has", usage.deltas, 0),
        ("bytes of pages more or less than its cache counts", usage.pages, 0),
        ("frozen MemRowSets", usage.due.frozen, 0),
        ("stores above their flush size", usage.due.large_stores, 0),
        ("tablets with rowsets to compact", usage.due.compactions, 0),
        ("unflushed stores though memory is short", usage.due.stores_in_short_memory, 0),
    ];
    let tasks = usage.tasks.iter().map(|(name, count)| (*name, *count, usage.tasks_max(name)));
    let above = limits.into_iter().chain(tasks).filter(|(_, value, limit)| value > limit);
    above
        .map(|(what, value, limit)| {
            let server = &usage.server;
            let message = format!("the cluster is quiet, and {server} has {value} {what} ({limit} allowed)");
            Violation::new(NAME, message)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_look_meets_is_not_held() {
        let usage = |votes: u64, scanners: u64| ServerUsage {
            server: "t1".to_string(),
            scanners,
            tasks: BTreeMap::from([("peer vote", votes)]),
            ..ServerUsage::default()
        };
        assert_eq!(check(&[usage(2, 0).least(&usage(0, 1))]), []);
        assert_eq!(check(&[usage(2, 1).least(&usage(1, 3))]).len(), 2);
        let due = |frozen| ServerUsage {
            due: DueMaintenance { frozen, ..DueMaintenance::default() },
            ..usage(0, 0)
        };
        assert_eq!(check(&[due(1).least(&due(0))]), []);
    }

    #[test]
    fn what_is_still_held_is_reported() {
        let idle = ServerUsage { server: "t1".to_string(), messages: 4_000, ..ServerUsage::default() };
        assert_eq!(check(std::slice::from_ref(&idle)), []);
        let called =
            ServerUsage { tasks: BTreeMap::from([("rpc call", 2), ("replica", 64)]), ..idle.clone() };
        assert_eq!(check(&[called]), []);
        let due = |due| ServerUsage { due, ..idle.clone() };
        let none = DueMaintenance::default();
        let leaks = [
            due(DueMaintenance { frozen: 1, ..none }),
            due(DueMaintenance { large_stores: 1, ..none }),
            due(DueMaintenance { compactions: 1, ..none }),
            due(DueMaintenance { stores_in_short_memory: 1, ..none }),
            ServerUsage { tasks: BTreeMap::from([("rpc call", 3)]), ..idle.clone() },
            ServerUsage { scanners: 1, ..idle.clone() },
            ServerUsage { copies_served: 1, ..idle.clone() },
            ServerUsage { copies_made: 1, ..idle.clone() },
            ServerUsage { messages: 1 << 20, ..idle.clone() },
            ServerUsage { operations: 1, ..idle.clone() },
            ServerUsage { maintenance: 1, ..idle.clone() },
            ServerUsage { in_flight: 1, ..idle.clone() },
            ServerUsage { anchors: 1, ..idle.clone() },
            ServerUsage { rows: 1, ..idle.clone() },
            ServerUsage { deltas: 1, ..idle.clone() },
            ServerUsage { pages: 1, ..idle.clone() },
            ServerUsage { tasks: BTreeMap::from([("peer vote", 1)]), ..idle.clone() },
            ServerUsage { tasks: BTreeMap::from([("replica", 65)]), ..idle.clone() },
        ];
        for leak in leaks {
            assert_eq!(check(std::slice::from_ref(&leak)).len(), 1, "{leak:?}");
        }
    }
}
