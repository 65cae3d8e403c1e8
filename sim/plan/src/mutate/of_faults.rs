//! Mutations of faults.

use std::time::Duration;

use crate::draws::{MS, SECOND, rounded};
use crate::faults::{Fault, FaultKind, HostDir, TimedFault, Trigger, TriggeredFault};
use crate::generate::FaultGenerator;
use crate::host::Host;
use crate::plan::Plan;
use crate::random_stream::RandomStream;

/// Longest fault that a mutation makes, unless the parent's was longer.
const SPAN_MAX: Duration = Duration::from_secs(20);
/// Least and greatest shift of a fault: from a part of a heartbeat to several elections.
const SHIFT: (Duration, Duration) = (MS, Duration::from_secs(4));
/// Factors of a fault's duration.
const FACTORS: [(u32, u32); 6] = [(1, 4), (1, 2), (3, 4), (3, 2), (2, 1), (4, 1)];
/// Most occurrences of a trigger, and most disk operations after it, until an aimed fault strikes.
const NTH_MAX: u64 = 4;
const OPS_MAX: u64 = 25;

impl Plan {
    /// Draws one of the faults.
    fn any_fault(&mut self, random: &mut RandomStream) -> Option<&mut TimedFault> {
        let count = self.faults.len() as u64;
        self.faults.get_mut(random.below(count) as usize)
    }

    pub(super) fn shift_fault(&mut self, random: &mut RandomStream) {
        let shift = rounded(random.span(SHIFT.0, SHIFT.1));
        let later = random.percent(50);
        let Some(fault) = self.any_fault(random) else { return };
        fault.at = if later { fault.at + shift } else { fault.at.saturating_sub(shift) };
    }

    pub(super) fn stretch_fault(&mut self, random: &mut RandomStream) {
        let (numerator, denominator) = random.pick(&FACTORS);
        let Some(fault) = self.any_fault(random) else { return };
        let span = fault.kind.span();
        if !span.is_zero() {
            let stretched = span * numerator / denominator;
            fault.kind.set_span(rounded(stretched.min(span.max(SPAN_MAX))));
        }
    }

    /// Lets a fault wait for a trigger: a loss of power is within a disk operation after it.
    pub(super) fn aim_fault(&mut self, random: &mut RandomStream, triggers: &[(Trigger, u32)]) {
        if triggers.iter().all(|(_, weight)| *weight == 0) {
            return;
        }
        let (moment, nth) = (random.weighted(triggers), random.between(1, NTH_MAX) as u32);
        let (dir, op) = (random.pick(&[HostDir::Wal, HostDir::Data]), random.between(1, OPS_MAX) as u32);
        let blow = random.pick(TriggeredFault::ALL);
        let Some(fault) = self.any_fault(random) else { return };
        let span = rounded(fault.kind.span().max(MS).min(SPAN_MAX));
        if fault.kind.kind().loses_durable_data() {
            return;
        }
        fault.kind = match fault.kind.cuts_power() {
            true => Fault::PowerCutAfter { moment, nth, dir, op, down: span },
            false => Fault::StrikeAfter { moment, nth, blow, span },
        };
    }

    /// Moves a fault to another server of the same role. Faults that lose data stay where they are.
    pub(super) fn retarget_fault(&mut self, random: &mut RandomStream) {
        let (masters, tservers) = (u64::from(self.cluster.masters), u64::from(self.cluster.tservers));
        let (master, tserver) = (random.below(masters) as u8, random.below(tservers) as u8);
        let Some(fault) = self.any_fault(random) else { return };
        if fault.kind.kind().loses_durable_data() {
            return;
        }
        fault.target = match fault.target {
            Host::Master(_) => Host::Master(master),
            Host::Tserver(_) => Host::Tserver(tserver),
            client => client,
        };
    }

    /// Replaces the faults from a time on by those of another plan. Those that lose data are neither taken nor given.
    pub(super) fn splice_faults(&mut self, random: &mut RandomStream, donor: &Plan) {
        let at = self.fault_time(random);
        let loses = |fault: &TimedFault| fault.kind.kind().loses_durable_data();
        self.faults.retain(|fault| fault.at < at || loses(fault));
        let later = donor.faults.iter().filter(|fault| fault.at >= at && !loses(fault));
        self.faults.extend(later.cloned());
    }

    /// Adds a fault of a kind with drawn parameters, in the time of the others.
    pub(super) fn add_fault(&mut self, random: &mut RandomStream, kind: FaultKind) {
        if kind.loses_durable_data() {
            return;
        }
        let end = self.faults_until() + SECOND;
        let clients = self.clients.len() as u8;
        let fault = FaultGenerator::one_fault(random, &self.cluster, clients, kind, end);
        self.faults.push(fault);
    }

    pub(super) fn remove_kind(&mut self, random: &mut RandomStream) {
        let Some(kind) = self.any_fault(random).map(|fault| fault.kind.kind()) else { return };
        self.faults.retain(|fault| fault.kind.kind() != kind);
    }
}
