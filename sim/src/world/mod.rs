//! Worlds: simulations of time, network and machines.
//!
//! A [`World`] is driven from outside, one span of time after the other; between two spans the driver kills, cuts,
//! pauses and inspects. Node code runs inside and sees an [`Env`].
//!
//! - `madsim`: for many runs. madsim's executor runs ready tasks in a random order that the seed decides; time, network
//!   and devices are [`virtual_env`]'s. Only in builds with `--cfg madsim`, as `cargo sim` makes them.
//! - [`keyed`]: for runs that are compared. Its own executor and the network draw by key, so a fault that is left out
//!   changes only what it caused. Time and devices are [`virtual_env`]'s too.
//! - [`turmoil`]: for independence from our models. tokio's own scheduler, turmoil's own network.

use std::collections::BTreeMap;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use nyala_common::env::Env;

use crate::event_log::EventLog;
use crate::machine::Machine;
use crate::net::call_cuts::CallCutId;
use crate::net::rules::LinkEffect;
use sim_plan::faults::CallPart;

pub mod executor_world;
pub mod keyed;
#[cfg(madsim)]
pub mod madsim;
pub mod turmoil;
pub mod virtual_env;

/// Start of simulated time: 2026-01-01, UTC.
pub const EPOCH: Duration = Duration::from_secs(1_767_225_600);
/// Start of monotonic clocks. Not zero, so that code cannot depend on a fresh machine.
pub const BOOTED: Duration = Duration::from_secs(100);

/// Result of a host's program or a client: an error ends the run.
pub type ProgramResult = Result<(), Box<dyn std::error::Error + Send + Sync>>;
/// Program of a host, run when it is booted and again after each restart.
pub type HostProgram = Arc<dyn Fn(Env) -> Pin<Box<dyn Future<Output = ProgramResult>>> + Send + Sync>;

/// Reason for which time stopped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StopReason {
    /// The requested time is reached.
    Reached,
    /// Every client has ended.
    ClientsEnded,
    /// A server's program ended, with this error if any: its process is gone.
    Exited { host: String, error: Option<String> },
    /// A host's power was cut within a disk operation.
    LostPower { host: String },
    /// The trigger of the plan's fault of this number fired.
    Fired { fault: usize },
}

/// A failure of a client or of the world itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorldFailure {
    pub host: String,
    pub message: String,
}

impl fmt::Display for WorldFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.host, self.message)
    }
}

impl std::error::Error for WorldFailure {}

/// A rule about links, by the names of hosts; `None`: any other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkRule {
    pub from: Option<String>,
    pub to: Option<String>,
    pub effect: LinkEffect,
}

/// The id of a [`LinkRule`] in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct LinkRuleId(pub u64);

/// Machines in a network, and time.
pub trait World {
    /// Returns the machine of this name, created at the first call: its disks, clock error and memory.
    fn machine(&mut self, host: &str) -> Arc<Machine>;

    /// Runs `program` on a host, from now on and after each restart.
    fn boot(&mut self, host: &str, program: HostProgram);

    /// Runs `program` on a host, once. When all such have ended, [`World::run_until`] says so.
    fn client(&mut self, host: &str, program: HostProgram);

    /// Returns the time since the run began.
    fn now(&self) -> Duration;

    /// Lets time pass until `at`, or until an event that the driver must handle.
    fn run_until(&mut self, at: Duration) -> Result<StopReason, WorldFailure>;

    /// Kills the process, not its machine: peers see their connections end, files keep what was written.
    fn kill(&mut self, host: &str);

    /// Cuts the power: peers receive nothing, disks keep what was synced and perhaps some of the rest.
    fn cut_power(&mut self, host: &str);

    /// Restarts a dead host, which runs its program.
    fn restart(&mut self, host: &str);

    /// Suspends the process until [`World::resume`]; its machine continues.
    fn pause(&mut self, host: &str);
    fn resume(&mut self, host: &str);

    /// Adds a rule until it is removed. A world without the effect does what comes nearest.
    fn add_rule(&mut self, rule: LinkRule) -> LinkRuleId;
    fn remove_rule(&mut self, id: LinkRuleId);

    /// Resets every connection between two hosts; returns their number.
    fn reset_between(&mut self, one: &str, other: &str) -> usize;

    /// Silences the connections between two hosts: all that they carry from now on is lost, and neither end
    /// is told, as after a router has dropped its state; new ones work. Returns the number of those that were
    /// not silent before: 0 in a world whose network is not the simulator's.
    fn silence_between(&mut self, _one: &str, _other: &str) -> usize {
        0
    }

    /// Arms the cut of a call: the connection from `opener` to `acceptor` is reset within the `nth` write of this part.
    fn arm_call_cut(&mut self, opener: &str, acceptor: &str, part: CallPart, nth: u32) -> CallCutId;
    fn disarm_call_cut(&mut self, id: CallCutId);

    /// Returns the number of calls that were cut.
    fn calls_cut(&self) -> u64;

    /// Lets the network, and the executor if it can, draw from another seed from now on, in a world whose network is
    /// ours.
    fn reseed(&mut self, _seed: u64) {}

    /// Returns true if each draw is named by a key, so that it depends on no other: see [`crate::draws`].
    fn draws_by_key(&self) -> bool {
        false
    }

    fn log(&self) -> &EventLog;

    /// Returns counters of the world's own work by name; none if it does not count.
    fn work_counts(&self) -> BTreeMap<&'static str, u64> {
        BTreeMap::new()
    }

    /// Returns the monotonic time of all machines.
    fn mono(&self) -> engine::time::Instant {
        engine::time::Instant((BOOTED + self.now()).as_nanos() as u64)
    }

    /// Returns the true time of day, in microseconds since 1970.
    fn true_micros(&self) -> u64 {
        (EPOCH + self.now()).as_micros() as u64
    }
}
