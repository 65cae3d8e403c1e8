//! Weights of the kinds of faults, by the profiles that draw them.
//!
//! The order of draws follows `PROFILES`, and within a profile [`FaultKind::ALL`]. Plans of seeds depend on both.

use crate::faults::FaultKind;
use crate::profile::FaultProfile;

/// Profiles that kinds belong to, in the order of draws.
const PROFILES: [FaultProfile; 6] = [
    FaultProfile::Crash,
    FaultProfile::Network,
    FaultProfile::Disk,
    FaultProfile::Clock,
    FaultProfile::Memory,
    FaultProfile::Copy,
];

/// Returns the profiles that a kind belongs to, with its weight. A kind without a profile is drawn by scenarios only.
fn weights_of(kind: FaultKind) -> &'static [(FaultProfile, u32)] {
    use FaultKind::*;
    use FaultProfile::*;
    match kind {
        Kill => &[(Crash, 4)],
        PowerCut => &[(Crash, 4)],
        PowerCutInDisk => &[(Crash, 6)],
        PowerCutAfter => &[(Crash, 8)],
        PowerCutPages => &[(Crash, 6), (Disk, 4)],
        RollingRestart => &[(Crash, 2)],
        ZonePowerCut => &[(Crash, 2)],
        StrikeAfter => &[(Crash, 4), (Network, 6)],
        StrikeLeader => &[(Crash, 3), (Network, 3)],
        Pause => &[(Crash, 3)],

        Isolate => &[(Network, 4)],
        CutLink => &[(Network, 4)],
        CutPeers => &[(Network, 4)],
        Swizzle => &[(Network, 3)],
        SlowLink => &[(Network, 3)],
        Loss => &[(Network, 2)],
        Reset => &[(Network, 3)],
        CutCall => &[(Network, 6)],
        NoConnect => &[(Network, 2)],

        DiskStall => &[(Disk, 3)],
        DiskSlow => &[(Disk, 2)],
        DiskError => &[(Disk, 3)],
        // A restart of all servers would take away what it leaves, and no more than one server may have it.
        DiskErrorAfter => &[],
        DiskFull => &[(Disk, 2)],
        SyncError => &[(Disk, 2)],
        ReadErrors => &[(Disk, 1)],
        PowerCutInSync => &[(Disk, 2)],
        BitRot => &[(Disk, 1)],
        LostWrite => &[(Disk, 1)],
        MisdirectedWrite => &[(Disk, 1)],
        MetadataRot => &[(Disk, 2)],
        UnreadablePages => &[(Disk, 1)],
        Wipe => &[(Copy, 1)],

        ClockJump => &[(Clock, 2)],
        ClockDrift => &[(Clock, 2)],
        ClockError => &[(Clock, 1)],
        ClockStep => &[(Clock, 1)],

        FaultKind::Memory => &[(FaultProfile::Memory, 2)],
        SlowCpu => &[(FaultProfile::Memory, 1)],
    }
}

/// Generation of kinds: those of one are drawn from a stream of their own, which leaves the draws of older ones as they
/// were.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Generation {
    First,
    Second,
    Third,
}

pub(crate) fn generation(kind: FaultKind) -> Generation {
    use FaultKind::*;
    match kind {
        PowerCutPages | RollingRestart | CutCall => Generation::Second,
        MetadataRot | UnreadablePages | ClockStep => Generation::Third,
        _ => Generation::First,
    }
}

/// Returns all profiles with their kinds and weights, in the order of draws.
pub(crate) fn weighted_kinds() -> impl Iterator<Item = (FaultProfile, FaultKind, u32)> {
    let weight = |profile, kind| {
        let weight = weights_of(kind).iter().find(|(of, _)| *of == profile);
        weight.map(|(_, weight)| (profile, kind, *weight))
    };
    PROFILES
        .into_iter()
        .flat_map(move |profile| FaultKind::ALL.iter().filter_map(move |kind| weight(profile, *kind)))
}

/// Returns the percentage of plans of `profile` that draw from a kind of the profile `of`.
pub(crate) fn percent_of(profile: FaultProfile, of: FaultProfile) -> u64 {
    match profile {
        FaultProfile::Calm => 0,
        FaultProfile::Swarm => 45,
        // Tablet copies are caused by crashes, and are disturbed by any fault.
        FaultProfile::Copy if of == FaultProfile::Crash => 60,
        FaultProfile::Copy if of == FaultProfile::Network => 25,
        profile => 80 * u64::from(profile == of),
    }
}

/// Returns the words of all kinds that plans of a profile draw, in the order of draws.
pub fn drawn_by(profile: FaultProfile) -> Vec<&'static str> {
    let kinds = weighted_kinds().filter(|(of, ..)| percent_of(profile, *of) > 0);
    kinds.map(|(_, kind, _)| kind.word()).collect()
}

/// Returns the first profile that a kind belongs to.
pub fn profile_of(kind: FaultKind) -> Option<FaultProfile> {
    weighted_kinds().find(|(_, of, _)| *of == kind).map(|(profile, ..)| profile)
}

/// Returns the kinds that a mutation may add, with the largest of their weights. They lose no durable data.
pub fn addable() -> Vec<(FaultKind, u32)> {
    let weight = |kind: FaultKind| weights_of(kind).iter().map(|(_, weight)| *weight).max();
    let weighted = FaultKind::ALL.iter().filter_map(|kind| Some((*kind, weight(*kind)?)));
    weighted.filter(|(kind, _)| !kind.loses_durable_data()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_found_under_its_first_profile() {
        assert_eq!(profile_of(FaultKind::Reset), Some(FaultProfile::Network));
        assert_eq!(profile_of(FaultKind::StrikeAfter), Some(FaultProfile::Crash));
    }
}
