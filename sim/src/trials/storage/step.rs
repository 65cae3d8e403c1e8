//! The steps of a storage trial.

use sim_plan::RandomStream;

/// A step of a trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Write,
    /// Many rows that are appended without a sync.
    Burst,
    /// Operations that the leader does not commit yet.
    Append,
    Alter,
    /// An alteration that the tablet has already: the order came twice.
    RepeatAlteration,
    /// A leader that does not have what is not committed, and other operations in its place.
    OtherLeader,
    FlushRows,
    FlushDeltas,
    MajorDeltaCompaction,
    MinorDeltaCompaction,
    Compact,
    ChosenCompaction,
    Checkpoint,
    /// A flush of deltas beside which nothing is in memory but more changes of these rows, and a restart.
    FlushChanges,
    /// Rows that are deleted, and inserted again after the ancient history mark has passed that.
    InsertAgain,
    /// The flushes that the maintenance policy chooses while memory is short, until all is free.
    FreeMemory,
    /// The jobs that it chooses while the log is too long, until nothing needs the log.
    FreeLog,
    LogGc,
    /// History up to some snapshot is not kept any more.
    Forget,
    Restart,
    PowerCut,
}

pub(super) fn draw(random: &mut RandomStream) -> Step {
    random.weighted(&[
        (Step::Write, 20),
        (Step::Burst, 5),
        (Step::Append, 4),
        (Step::Alter, 3),
        (Step::RepeatAlteration, 3),
        (Step::OtherLeader, 5),
        (Step::FlushRows, 12),
        (Step::FlushDeltas, 8),
        (Step::MajorDeltaCompaction, 8),
        (Step::MinorDeltaCompaction, 6),
        (Step::Compact, 8),
        (Step::ChosenCompaction, 4),
        (Step::Checkpoint, 4),
        (Step::FlushChanges, 4),
        (Step::InsertAgain, 5),
        (Step::FreeMemory, 4),
        (Step::FreeLog, 3),
        (Step::LogGc, 5),
        (Step::Forget, 4),
        (Step::Restart, 7),
        (Step::PowerCut, 5),
    ])
}

pub(super) fn draw_beside_a_job(random: &mut RandomStream) -> Step {
    random.weighted(&[
        (Step::Write, 14),
        (Step::Append, 3),
        (Step::OtherLeader, 1),
        (Step::Alter, 3),
        (Step::Forget, 1),
    ])
}
