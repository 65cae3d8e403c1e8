//! O14: what a replica holds in memory agrees with its files. A copy of a quiet server's disks is opened as a restart
//! would open them: each tablet has the same members, schema, last applied operation and count of live rows, and a
//! scan finds as many rows as are counted.

use super::Violation;

/// Name of this oracle.
pub const NAME: &str = "recovered state";

/// State of one replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplicaState {
    pub term: u64,
    /// The committed configuration.
    pub members: String,
    /// Columns, version, table name and extra configuration.
    pub schema: String,
    /// Timestamp of the last applied operation.
    pub last_applied: u64,
    /// The count that the replica keeps.
    pub live_rows: u64,
}

/// A replica that runs, and the same replica opened from a copy of its disks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecoveredReplica {
    pub server: String,
    pub tablet: String,
    pub running: ReplicaState,
    /// State after the replay of the log, or the error.
    pub opened: Result<OpenedState, String>,
}

/// State that was read from disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenedState {
    pub state: ReplicaState,
    /// Rows that a scan returns.
    pub scanned_rows: u64,
}

/// Reports replicas whose memory and files differ.
pub fn check(replicas: &[RecoveredReplica]) -> Vec<Violation> {
    replicas.iter().flat_map(differences).collect()
}

fn differences(replica: &RecoveredReplica) -> Vec<Violation> {
    let violation = |what: String| {
        let message = format!("tablet {} of {}: {what}", replica.tablet, replica.server);
        Violation::new(NAME, message)
    };
    let running = &replica.running;
    let opened = match &replica.opened {
        Ok(opened) => opened,
        Err(error) => return vec![violation(format!("it runs, and its files cannot be opened: {error}"))],
    };
    let mut found = Vec::new();
    let mut differ = |what: &str, running: &dyn std::fmt::Display, opened: &dyn std::fmt::Display| {
        found.push(violation(format!("it runs with {what} {running}, and its files have {opened}")));
    };
    if opened.state.term < running.term {
        differ("term", &running.term, &opened.state.term);
    }
    if opened.state.members != running.members {
        differ("members", &running.members, &opened.state.members);
    }
    if opened.state.schema != running.schema {
        differ("schema", &running.schema, &opened.state.schema);
    }
    if opened.state.last_applied != running.last_applied {
        differ("last applied timestamp", &running.last_applied, &opened.state.last_applied);
    }
    if opened.state.live_rows != running.live_rows {
        differ("count of live rows", &running.live_rows, &opened.state.live_rows);
    }
    if opened.scanned_rows != running.live_rows {
        let scanned = format!("{} rows to read", opened.scanned_rows);
        differ("count of live rows", &running.live_rows, &scanned);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replica(change: fn(&mut OpenedState)) -> RecoveredReplica {
        let running = ReplicaState {
            term: 3,
            members: "t0 t1 t2".to_string(),
            schema: "version 1".to_string(),
            last_applied: 70,
            live_rows: 12,
        };
        let mut opened = OpenedState { state: running.clone(), scanned_rows: 12 };
        change(&mut opened);
        let (server, tablet) = ("t1".to_string(), "a".to_string());
        RecoveredReplica { server, tablet, running, opened: Ok(opened) }
    }

    #[test]
    fn a_replica_that_would_restart_as_it_is_passes() {
        assert_eq!(check(&[replica(|_| {}), replica(|opened| opened.state.term = 4)]), []);
    }

    #[test]
    fn each_difference_is_reported() {
        let changes: [fn(&mut OpenedState); 6] = [
            |opened| opened.state.term = 2,
            |opened| opened.state.members = "t0 t1 t3".to_string(),
            |opened| opened.state.schema = "version 2".to_string(),
            |opened| opened.state.last_applied = 69,
            |opened| opened.state.live_rows = 13,
            |opened| opened.scanned_rows = 11,
        ];
        for change in changes {
            let replica = replica(change);
            assert_eq!(check(std::slice::from_ref(&replica)).len(), 1, "{replica:?}");
        }
        let failed = RecoveredReplica { opened: Err("corrupt".to_string()), ..replica(|_| {}) };
        assert_eq!(check(&[failed]).len(), 1);
    }
}
