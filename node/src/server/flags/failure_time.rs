//! Time after which a silent server counts as failed, by a flag that may change at run time.

use engine::raft::RaftOptions;

use super::Flags;
use crate::changed_flag::LiveSeconds;

/// Flag of the silence after which a member of a group counts as failed.
pub const FOLLOWER_FAILED_SEC: &str = "follower_unavailable_considered_failed_sec";

/// Returns the silence after which a member of a group counts as failed: that of `raft` until its flag is changed.
pub fn follower_failed_after(raft: &RaftOptions, flags: &Flags) -> LiveSeconds {
    LiveSeconds::new(raft.follower_failed_after, flags.live(FOLLOWER_FAILED_SEC))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_time_is_exact_until_its_flag_is_changed() {
        let (flags, name) = (Flags::new(), FOLLOWER_FAILED_SEC);
        let raft =
            RaftOptions { follower_failed_after: Duration::from_millis(300), ..RaftOptions::default() };
        let time = follower_failed_after(&raft, &flags);
        assert_eq!(time.get(), Duration::from_millis(300));
        flags.change(name, "7200", false).expect("it changes at run time");
        assert_eq!(time.get(), Duration::from_secs(7200));
        flags.change(name, "300", false).expect("it changes at run time");
        assert_eq!(time.get(), Duration::from_millis(300), "as at the start");
    }
}
