//! Kinds of faults, by the profiles that draw them.

use super::generate::Profile;

/// Kinds of faults with their usual weights, by the profile that is about them.
pub(super) const KINDS: [(Profile, &[(&str, u32)]); 6] = [
    (
        Profile::Crash,
        &[
            ("kill", 4),
            ("power-cut", 4),
            ("power-cut-in-disk", 6),
            ("power-cut-after", 8),
            ("zone-power-cut", 2),
            ("strike-after", 4),
            ("strike-leader", 3),
            ("pause", 3),
        ],
    ),
    (
        Profile::Network,
        &[
            ("strike-after", 6),
            ("strike-leader", 3),
            ("isolate", 4),
            ("cut-link", 4),
            ("cut-peers", 4),
            ("swizzle", 3),
            ("slow-link", 3),
            ("loss", 2),
            ("reset", 3),
            ("no-connect", 2),
        ],
    ),
    (
        Profile::Disk,
        &[
            ("disk-stall", 3),
            ("disk-slow", 2),
            ("disk-error", 3),
            ("disk-full", 2),
            ("sync-error", 2),
            ("read-errors", 1),
            ("power-cut-in-sync", 2),
            ("bit-rot", 1),
            ("lost-write", 1),
            ("misdirected-write", 1),
        ],
    ),
    (Profile::Clock, &[("clock-jump", 2), ("clock-drift", 2), ("clock-error", 1)]),
    (Profile::Memory, &[("memory", 2), ("slow-cpu", 1)]),
    (Profile::Copy, &[("wipe", 1)]),
];

/// In how many plans in a hundred of `profile` a kind of fault of the profile `of` is.
pub(super) fn percent_of(profile: Profile, of: Profile) -> u64 {
    match profile {
        Profile::Calm => 0,
        Profile::Swarm => 45,
        // Copies are made after crashes and while moving, whatever else is wrong.
        Profile::Copy if of == Profile::Crash => 60,
        Profile::Copy if of == Profile::Network => 25,
        profile => 80 * u64::from(profile == of),
    }
}

/// Every kind of fault that plans of this profile draw, by its word.
pub fn drawn_by(profile: Profile) -> Vec<&'static str> {
    let kinds = KINDS.iter().filter(|(of, _)| percent_of(profile, *of) > 0);
    kinds.flat_map(|(_, kinds)| kinds.iter().map(|(word, _)| *word)).collect()
}

/// The profile that is about a kind of fault, by its word.
pub fn profile_of(kind: &str) -> Option<Profile> {
    let of = KINDS.iter().find(|(_, kinds)| kinds.iter().any(|(word, _)| *word == kind));
    of.map(|(profile, _)| *profile)
}

/// The fault atlas: these take what was durable, and strike the one frail server only.
pub(super) const LOSES_DATA: [&str; 4] = ["wipe", "bit-rot", "lost-write", "misdirected-write"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_of_fault_is_of_the_first_profile_that_is_about_it() {
        assert_eq!(profile_of("reset"), Some(Profile::Network));
        assert_eq!(profile_of("strike-after"), Some(Profile::Crash));
        assert_eq!(profile_of("rust"), None);
    }
}
