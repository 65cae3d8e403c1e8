//! The steps of a storage trial.

/// A step of a trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Write,
    /// Many rows that are appended without a sync.
    Burst,
    /// Operations that the leader does not commit yet.
    Append,
    Alter,
    /// A leader that does not have what is not committed, and other operations in its place.
    OtherLeader,
    FlushRows,
    FlushDeltas,
    MergeDeltas,
    Compact,
    ChosenCompaction,
    Checkpoint,
    LogGc,
    /// History up to some snapshot is not kept any more.
    Forget,
    Restart,
    PowerCut,
}
