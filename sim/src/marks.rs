//! Coverage marks: situations of engine and node that runs should reach. A mark that no run reaches is untested.
//!
//! `raft:` marks are the actions of the specification, `note:` marks are other notes, all others are set in the code.

use std::collections::BTreeMap;

/// Every mark, sorted.
pub const MARKS: &[&str] = &[
    "bootstrap: commit entries without operations",
    "bootstrap: configuration in the log",
    "bootstrap: empty log",
    "bootstrap: operations already durable",
    "bootstrap: operations replayed",
    "bootstrap: results of requests restored",
    "bootstrap: several segments",
    "bootstrap: superblock newer than the log's commits",
    "bootstrap: torn tail truncated",
    "bootstrap: truncated entries skipped",
    "bootstrap: uncommitted operations",
    "checkpoint: a superblock without a flush",
    "client: scan continued at another server",
    "client: scan retried",
    "client: scan skipped a non-covered range",
    "client: scanner expired, scan restarted",
    "client: write retried",
    "client: write retried at another server",
    "clock: unsynchronized",
    "commit: a majority has an entry of an older term",
    "compaction: concurrent change of an input",
    "compaction: more than two rowsets",
    "compaction: no live rows",
    "compaction: one rowset with its deltas",
    "compaction: rows in the MemRowSet",
    "compaction: several rowsets",
    "config change: rejected, a new voter lags",
    "config change: rejected, another is pending",
    "config change: rejected, invalid",
    "config change: rejected, no commit in this term",
    "config change: rejected, not the leader",
    "config change: rejected, too few live voters",
    "create: begins",
    "create: failed",
    "delete: begins",
    "delete: newer configuration while it stopped",
    "delete: rejected, newer configuration",
    "delta flush: concurrent deltas",
    "flush: another frozen MemRowSet",
    "flush: concurrent inserts",
    "flush: concurrent operations",
    "flush: no live rows",
    "flush: several rowsets",
    "formats: level raised",
    "heartbeat: failed",
    "heartbeat: full report",
    "heartbeat: full report requested",
    "heartbeat: incremental report",
    "heartbeat: master stepped down",
    "heartbeat: registration",
    "heartbeat: server unknown to the master",
    "job: failed before its superblock",
    "log: a member needs entries that log GC removed",
    "maintenance: MemRowSet flush",
    "maintenance: checkpoint",
    "maintenance: delta flush",
    "maintenance: job failed",
    "maintenance: major delta compaction",
    "maintenance: memory pressure",
    "maintenance: minor delta compaction",
    "maintenance: rowset compaction",
    "maintenance: tablet of a job removed",
    "major delta compaction: column rewritten before",
    "major delta compaction: concurrent deltas",
    "minor delta compaction: beside a column file",
    "minor delta compaction: concurrent deltas",
    "note: altered",
    "note: compacted",
    "note: copy-refused",
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
    "replica: turn on the task of a caller",
    "rpc: call expired in the queue",
    "rpc: call queued",
    "rpc: call rejected by a stopping server",
    "rpc: queue full",
    "rpc: too many connections in negotiation",
    "scan call: READ_LATEST",
    "scan call: READ_YOUR_WRITES",
    "scan call: batch shortened by memory pressure",
    "scan call: closed early",
    "scan call: continued",
    "scan call: current snapshot",
    "scan call: pages read from files for one key",
    "scan call: read from memory and cached pages",
    "scan call: rejected by a quiescing server",
    "scan call: rejected by its tablet",
    "scan call: rejected, retriable",
    "scan call: rows aggregated",
    "scan call: schema changed while opening",
    "scan call: snapshot of the client",
    "scan: count only",
    "scan: diff scan",
    "scan: during a flush",
    "scan: memory and disk",
    "scan: operation in flight",
    "scan: over a DeltaMemStore",
    "scan: over delta files",
    "scan: past snapshot",
    "scan: predicate",
    "scan: resumed after a key",
    "scan: several rowsets",
    "scrub: damage found",
    "scrub: pass finished",
    "space or clock: leadership transferred",
    "space: above the reserve again",
    "space: below the reserve",
    "tablet copy: corrupt file at the source",
    "tablet copy: given up",
    "tablet copy: log GC during the snapshot",
    "tablet copy: rejected, stale term",
    "tablet copy: rejected, unknown vote",
    "tablet copy: unknown vote replaced",
    "update: rejected, invalid",
    "update: rejected, preceding entry does not match",
    "update: rejected, stale term",
    "vote: denied, already voted",
    "vote: denied, candidate's last term is lower",
    "vote: denied, candidate's log is shorter",
    "vote: denied, last log entry unknown",
    "vote: denied, live leader",
    "vote: denied, stale term",
    "write call: commit wait",
    "write call: rejected by its tablet",
    "write call: rejected for disk space or clock",
    "write call: rejected for memory",
    "write call: rejected, retriable",
    "write: DELETE_IGNORE of an absent row",
    "write: INSERT_IGNORE of a present row",
    "write: UPDATE_IGNORE of an absent row",
    "write: batch changed several rowsets",
    "write: during a flush",
    "write: flushed rows changed",
    "write: rows deleted",
    "write: rows inserted",
    "write: rows updated",
    "write: rows upserted",
    "write: some rows failed",
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
