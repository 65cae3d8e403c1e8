//! The steps of a group trial.

use sim_plan::RandomStream;

/// A step of a group trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// A message arrives, or is lost.
    Deliver,
    /// A server's disk does what waits for it.
    Effects,
    /// Messages arrive and disks write for a while.
    Turns,
    /// Time passes.
    Time,
    /// A client sends a request, again or for the first time.
    Request,
    Alter,
    Copy,
    Job,
    LogGc,
    Forget,
    Read,
    /// A reader wants a newer snapshot.
    WantSnapshot,
    /// An operator changes members or deletes a replica that is none.
    Operate,
    /// An order to delete a replica arrives late, or again.
    LateDelete,
    Fault(Fault),
}

/// A fault of a group trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    PowerCut,
    /// The power is cut within one of the next disk operations.
    LatePowerCut,
    Kill,
    Restart,
    CutLink,
    /// The leader reaches no other server.
    Isolate,
    /// A follower is cut off until the leader's log does not have what it lacks.
    Outrun,
    /// The leader's last operations reach one follower alone, and are lost everywhere else.
    Strand,
    /// A member is removed, added again, and loses its former replica while its leader catches it up.
    Readd,
    RepairLink,
    RepairLinks,
    Stall,
    Unstall,
    /// The device of a log runs full, or has space again.
    FillLog,
    FreeLog,
    Rot,
    Elect,
    /// Right after a read at the leader another server leads, which does not know that snapshot.
    Supplant,
    /// A vote request of a term that has its leader comes late.
    StrayVote,
    StepDown,
}

pub(super) fn draw(random: &mut RandomStream) -> Step {
    if random.percent(6) {
        return Step::Fault(draw_fault(random));
    }
    random.weighted(&[
        (Step::Deliver, 32),
        (Step::Effects, 20),
        (Step::Turns, 8),
        (Step::Time, 12),
        (Step::Request, 14),
        (Step::Alter, 1),
        (Step::Copy, 8),
        (Step::Job, 3),
        (Step::LogGc, 1),
        (Step::Forget, 1),
        (Step::Read, 3),
        (Step::WantSnapshot, 1),
        (Step::Operate, 4),
        (Step::LateDelete, 1),
    ])
}

fn draw_fault(random: &mut RandomStream) -> Fault {
    random.weighted(&[
        (Fault::PowerCut, 8),
        (Fault::LatePowerCut, 5),
        (Fault::Kill, 5),
        (Fault::Restart, 40),
        (Fault::CutLink, 12),
        (Fault::Isolate, 8),
        (Fault::Outrun, 4),
        (Fault::Strand, 8),
        (Fault::Readd, 8),
        (Fault::RepairLink, 10),
        (Fault::RepairLinks, 12),
        (Fault::Stall, 4),
        (Fault::Unstall, 10),
        (Fault::FillLog, 6),
        (Fault::FreeLog, 12),
        (Fault::Rot, 4),
        (Fault::Elect, 6),
        (Fault::Supplant, 3),
        (Fault::StrayVote, 6),
        (Fault::StepDown, 3),
    ])
}
