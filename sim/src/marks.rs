//! Coverage marks: situations of engine and node that runs should reach. A mark that no run reaches is untested.
//!
//! `raft:` marks are the actions of the specification, `note:` marks are other notes, all others are set in the code.

use std::collections::BTreeMap;

/// Every mark, sorted.
pub const MARKS: &[&str] = &[
    "bootstrap: a torn tail was cut off the log",
    "bootstrap: answers of requests are remembered",
    "bootstrap: entries that were taken back are passed over",
    "bootstrap: operations are applied again",
    "bootstrap: operations are on disk already",
    "bootstrap: outcomes outlived their operations",
    "bootstrap: the group has yet to decide on operations",
    "bootstrap: the log has several segments",
    "bootstrap: the log holds a configuration",
    "bootstrap: the log is empty",
    "bootstrap: the superblock knew of a commit that the log lacks",
    "checkpoint: a superblock without a flush",
    "client: a scan goes on at another server",
    "client: a scan skips a range that no tablet holds",
    "client: a scan tries again",
    "client: a scanner is gone, the scan begins anew",
    "client: a write tries again",
    "client: a write tries another server",
    "clock: unsynchronized",
    "commit: a majority has an entry of an older term, which is not enough",
    "compaction: a rowset takes its changes in",
    "compaction: an input was changed meanwhile",
    "compaction: more than two rowsets",
    "compaction: nothing was left",
    "compaction: rows are in memory beside it",
    "compaction: the rows make several rowsets",
    "delta compaction: into columns written anew before",
    "delta compaction: others came meanwhile",
    "delta flush: others came meanwhile",
    "flush: another MemRowSet waits",
    "flush: new rows were inserted meanwhile",
    "flush: nothing was left to write",
    "flush: operations came meanwhile",
    "flush: the rows make several rowsets",
    "heartbeat: a full report",
    "heartbeat: a report of what changed",
    "heartbeat: failed",
    "heartbeat: the master has forgotten the server",
    "heartbeat: the master leads no longer",
    "heartbeat: the master wants a full report",
    "heartbeat: the server registers",
    "job: failed before its superblock",
    "log: a member needs what is cut off",
    "maintenance: a checkpoint",
    "maintenance: a compaction",
    "maintenance: a delta compaction",
    "maintenance: a delta flush",
    "maintenance: a flush",
    "maintenance: a job failed",
    "maintenance: a job's tablet went away",
    "maintenance: memory is short",
    "members: refused for what it asks",
    "members: refused, a new voter lags",
    "members: refused, another change is under way",
    "members: refused, does not lead",
    "members: refused, nothing of the term is committed",
    "members: refused, too few would be alive",
    "note: altered",
    "note: compacted",
    "note: flushed",
    "note: removed",
    "note: replayed",
    "note: served-latest",
    "raft: AbortPending",
    "raft: AdvanceCommit",
    "raft: BecomeLeader",
    "raft: ClientAppend",
    "raft: ConfigAppend",
    "raft: CopyAbort",
    "raft: CopyFinish",
    "raft: CopyOpen",
    "raft: CopyStart",
    "raft: Create",
    "raft: Delete",
    "raft: FollowerAppend",
    "raft: FollowerCommit",
    "raft: FollowerPersist",
    "raft: GrantPreVote",
    "raft: GrantVote",
    "raft: LeaderPersist",
    "raft: MetaPersist",
    "raft: Restart",
    "raft: SafeTimeAdvance",
    "raft: SeeTerm",
    "raft: StartElection",
    "raft: StartPreElection",
    "raft: StepDown",
    "raft: Tombstone",
    "replica: hibernated through a heartbeat",
    "replica: hibernated through an answer",
    "rpc: a call had to wait",
    "rpc: a call met a stopping server",
    "rpc: a deadline passed in the queue",
    "rpc: a queue was full",
    "rpc: too many connections in negotiation",
    "scan call: a batch is short, as memory is",
    "scan call: a snapshot of now",
    "scan call: a snapshot that the client names",
    "scan call: closed early",
    "scan call: goes on",
    "scan call: met a quiescing server",
    "scan call: refused by its tablet",
    "scan call: refused for now",
    "scan call: the latest",
    "scan call: what the client has written",
    "scan: between two times",
    "scan: by a predicate",
    "scan: goes on after a key",
    "scan: over a DeltaMemStore",
    "scan: over delta files",
    "scan: over memory and disk",
    "scan: over several rowsets",
    "scan: reads the past",
    "scan: rows are only counted",
    "scan: while a MemRowSet is flushed",
    "scan: while an operation is in flight",
    "space or clock: leadership moves away",
    "space: below the reserve",
    "space: there is some again",
    "tablet copy: met a damaged file at the source",
    "tablet copy: refused, the leader's term is over",
    "tablet copy: the log was cut while it was looked at",
    "update: refused for what it is",
    "update: refused, it does not join the log",
    "update: refused, the term is over",
    "vote: refused, a leader is alive",
    "vote: refused, it went to another",
    "vote: refused, nobody knows how far the log went",
    "vote: refused, the candidate's log is as long, but older",
    "vote: refused, the candidate's log lacks something",
    "vote: refused, the term is over",
    "write call: refused by its tablet",
    "write call: refused for disk space or clock",
    "write call: refused for memory",
    "write call: refused for now",
    "write call: waits until its time has surely passed",
    "write: DELETE_IGNORE met none",
    "write: INSERT_IGNORE met a row",
    "write: UPDATE_IGNORE met none",
    "write: a row was refused, others were not",
    "write: one batch changed several rowsets",
    "write: rows on disk were changed",
    "write: rows were deleted",
    "write: rows were inserted",
    "write: rows were updated",
    "write: rows were upserted",
    "write: while a MemRowSet is flushed",
];

/// Returns the marks that were not reached.
pub fn unreached(reached: &BTreeMap<String, (u64, u64)>) -> Vec<&'static str> {
    MARKS.iter().copied().filter(|mark| !reached.contains_key(*mark)).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    /// Collects the texts of the calls that set marks.
    fn marks_in(source: &str, marks: &mut BTreeSet<String>) {
        let calls = ["observer.mark", "out.mark(", "effects.mark("];
        let calls = calls.into_iter().flat_map(|call| source.match_indices(call));
        for (at, _) in calls {
            let call = &source[at..];
            let end = call.find(";\n").unwrap_or(call.len());
            let texts = call[..end].split('"').skip(1).step_by(2);
            marks.extend(texts.map(str::to_string));
        }
    }

    fn walk(dir: &Path, marks: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(dir).expect("a folder of sources") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                if !path.ends_with("tests") {
                    walk(&path, marks);
                }
            } else if path.extension().is_some_and(|ext| ext == "rs") {
                marks_in(&std::fs::read_to_string(&path).expect("a source"), marks);
            }
        }
    }

    #[test]
    fn the_list_matches_the_sources() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let mut found = BTreeSet::new();
        ["engine", "node"].iter().for_each(|dir| walk(&root.join(dir), &mut found));
        let listed: BTreeSet<String> = MARKS.iter().map(|mark| mark.to_string()).collect();
        let missing: Vec<_> = found.difference(&listed).collect();
        assert!(missing.is_empty(), "not in the list: {missing:?}");
        let is_call = |mark: &&String| !mark.starts_with("raft: ") && !mark.starts_with("note: ");
        let stale: Vec<_> = listed.difference(&found).filter(is_call).collect();
        assert!(stale.is_empty(), "set nowhere: {stale:?}");
        assert!(MARKS.len() >= 100, "only {} marks", MARKS.len());
        assert!(MARKS.windows(2).all(|pair| pair[0] < pair[1]), "the list is sorted");
    }
}
