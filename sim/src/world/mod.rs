//! Worlds: what simulates time, network and death.
//!
//! A [`World`] is driven from outside, a stretch of time after the other; between two stretches the driver kills,
//! cuts, pauses and looks. Node code runs inside and sees an [`Env`].
//!
//! - `madsim`: breadth. madsim's executor runs ready tasks in a random order that the seed decides; time, network
//!   and devices are [`clockwork`]'s. Only in builds with `--cfg madsim`, as `cargo sim` makes them.
//! - [`turmoil`]: fidelity. tokio's own scheduler, turmoil's own network.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use node::env::Env;

use crate::machine::Machine;
use crate::net::rules::Effect;
use crate::trace::EventLog;

pub mod clockwork;
#[cfg(madsim)]
pub mod madsim;
pub mod turmoil;

/// When simulated time begins: 2026-01-01, UTC.
pub const EPOCH: Duration = Duration::from_secs(1_767_225_600);
/// Where monotonic clocks start. Not at zero: the first moments of a machine's life are nobody's special case.
pub const BOOTED: Duration = Duration::from_secs(100);

/// How a host's program or a client ends: an error ends the run.
pub type Ended = Result<(), Box<dyn std::error::Error + Send + Sync>>;
/// What runs on a host, from when it is booted and again after each restart.
pub type Program = Arc<dyn Fn(Env) -> Pin<Box<dyn Future<Output = Ended>>> + Send + Sync>;

/// Why time stopped passing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stopped {
    /// The time asked for has come.
    Reached,
    /// Every client has ended.
    ClientsEnded,
    /// A server's program ended, with this error if any: its process is gone.
    Exited { host: String, error: Option<String> },
    /// A host's power failed within a disk operation.
    LostPower { host: String },
    /// The moment has come for the plan's fault of this number.
    Struck { fault: usize },
}

/// A client failed, or the world itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub host: String,
    pub message: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.host, self.message)
    }
}

impl std::error::Error for Failure {}

/// A rule about links, by the names of hosts; `None`: any other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkRule {
    pub from: Option<String>,
    pub to: Option<String>,
    pub effect: Effect,
}

/// Names a [`LinkRule`] that holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct LinkRuleId(pub u64);

/// Machines in a network, and time.
pub trait World {
    /// The machine of this name, made when it is first asked for: its disks, clock error and memory.
    fn machine(&mut self, host: &str) -> Arc<Machine>;

    /// Runs `program` on a host, from now on and after each restart.
    fn boot(&mut self, host: &str, program: Program);

    /// Runs `program` on a host, once. When all such have ended, [`World::run_until`] says so.
    fn client(&mut self, host: &str, program: Program);

    /// Time since the run began.
    fn now(&self) -> Duration;

    /// Lets time pass until `at`, or until something happens that the driver must see to.
    fn run_until(&mut self, at: Duration) -> Result<Stopped, Failure>;

    /// The process dies, its machine does not: peers see their connections end, files keep what was written.
    fn kill(&mut self, host: &str);

    /// The power fails: peers hear nothing, disks keep what was synced and perhaps some of the rest.
    fn cut_power(&mut self, host: &str);

    /// A dead host comes back and runs its program.
    fn restart(&mut self, host: &str);

    /// The process does nothing until [`World::resume`]; its machine goes on.
    fn pause(&mut self, host: &str);
    fn resume(&mut self, host: &str);

    /// Makes a rule hold until it is removed. A world without the effect does what comes nearest.
    fn add_rule(&mut self, rule: LinkRule) -> LinkRuleId;
    fn remove_rule(&mut self, id: LinkRuleId);

    /// Resets every connection between two hosts; how many.
    fn reset_between(&mut self, one: &str, other: &str) -> usize;

    fn log(&self) -> &EventLog;

    /// The monotonic time of all machines.
    fn mono(&self) -> engine::time::Instant {
        engine::time::Instant((BOOTED + self.now()).as_nanos() as u64)
    }

    /// The true time of day, in microseconds since 1970.
    fn true_micros(&self) -> u64 {
        (EPOCH + self.now()).as_micros() as u64
    }
}
