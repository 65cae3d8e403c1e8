//! The steps of a hosted trial.

use std::time::Duration;

use sim_plan::RandomStream;

use super::{HostedTrial, SERVER};
use crate::world::World;

/// Most time that passes in a step, in milliseconds.
const PASS_MILLIS: u64 = 1_500;

/// A step of a trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Pass,
    Write,
    /// A request that is sent again after its reply.
    WriteAgain,
    Scan,
    Alter,
    /// The client learns the columns that the table has now.
    LearnColumns,
    /// A disk operation fails within a job.
    FailJobs,
    /// Pages cannot be read while a scan wants them.
    LoseReads,
    Kill,
    PowerCut,
    /// An alteration reaches the replica while a scan waits for its snapshot.
    AlterBeneathScan,
}

fn draw(random: &mut RandomStream) -> Step {
    random.weighted(&[
        (Step::Pass, 8),
        (Step::Write, 24),
        (Step::WriteAgain, 12),
        (Step::Scan, 8),
        (Step::Alter, 14),
        (Step::LearnColumns, 4),
        (Step::FailJobs, 7),
        (Step::LoseReads, 7),
        (Step::Kill, 4),
        (Step::PowerCut, 4),
        (Step::AlterBeneathScan, 5),
    ])
}

impl HostedTrial {
    pub(super) fn take_step(&mut self) {
        let step = draw(&mut self.random);
        self.fleet.steps.push(format!("{step:?}, {:?}", self.fleet.world.now()));
        match step {
            Step::Pass => {
                let millis = self.random.below(PASS_MILLIS);
                self.fleet.pass(Duration::from_millis(millis));
            }
            Step::Write => self.write(),
            Step::WriteAgain => self.write_again(),
            Step::Scan => self.scan(),
            Step::Alter => {
                // The next write has the columns of this one.
                self.write();
                self.alter();
                self.write();
            }
            Step::LearnColumns => self.view = self.table.shape.clone(),
            Step::FailJobs => self.fail_jobs(),
            Step::LoseReads => self.lose_reads(),
            Step::Kill => {
                self.fleet.kill(SERVER);
                self.fleet.restart(SERVER);
            }
            Step::PowerCut => {
                self.fleet.cut_power(SERVER);
                self.fleet.restart(SERVER);
            }
            Step::AlterBeneathScan => self.alter_beneath_scan(),
        }
    }
}
