//! Cuts of calls: a connection is reset within a certain write, so that some of a request's or an answer's bytes arrive
//! and the rest never does.

use sim_plan::faults::CallPart;

/// The id of an armed cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallCutId(pub u64);

/// A cut that waits for its write. `H` names a host.
#[derive(Debug, Clone, Copy)]
struct CallCut<H> {
    id: CallCutId,
    opener: H,
    acceptor: H,
    part: CallPart,
    /// Writes until the one that is cut, itself included.
    left: u32,
}

/// The armed cuts of a network.
#[derive(Debug)]
pub struct CallCuts<H> {
    armed: Vec<CallCut<H>>,
    next: u64,
    /// Number of calls that were cut.
    pub cut: u64,
}

impl<H> Default for CallCuts<H> {
    fn default() -> CallCuts<H> {
        CallCuts { armed: Vec::new(), next: 0, cut: 0 }
    }
}

impl<H: PartialEq> CallCuts<H> {
    /// Cuts the `nth` write of this part from now on, in all connections of these two together.
    pub fn arm(&mut self, opener: H, acceptor: H, part: CallPart, nth: u32) -> CallCutId {
        let id = CallCutId(self.next);
        self.next += 1;
        self.armed.push(CallCut { id, opener, acceptor, part, left: nth.max(1) });
        id
    }

    /// Disarms a cut that has not found its write.
    pub fn disarm(&mut self, id: CallCutId) {
        self.armed.retain(|cut| cut.id != id);
    }

    /// Counts a write; true if it is the one to cut.
    pub fn is_due(&mut self, opener: &H, acceptor: &H, part: CallPart) -> bool {
        if self.armed.is_empty() {
            return false;
        }
        let is_of =
            |cut: &&mut CallCut<H>| cut.part == part && cut.opener == *opener && cut.acceptor == *acceptor;
        self.armed.iter_mut().filter(is_of).for_each(|cut| cut.left -= 1);
        let before = self.armed.len();
        self.armed.retain(|cut| cut.left > 0);
        let is_due = self.armed.len() < before;
        self.cut += u64::from(is_due);
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nth_write_of_its_part_is_cut_once() {
        let mut cuts = CallCuts::default();
        cuts.arm("a", "b", CallPart::Answer, 2);
        assert!(!cuts.is_due(&"a", &"b", CallPart::Request));
        assert!(!cuts.is_due(&"b", &"a", CallPart::Answer), "a connection that b opened");
        assert!(!cuts.is_due(&"a", &"b", CallPart::Answer));
        assert!(cuts.is_due(&"a", &"b", CallPart::Answer));
        assert!(!cuts.is_due(&"a", &"b", CallPart::Answer));
        assert_eq!(cuts.cut, 1);
    }

    #[test]
    fn a_disarmed_cut_does_nothing() {
        let mut cuts = CallCuts::default();
        let id = cuts.arm(1, 2, CallPart::Request, 1);
        cuts.arm(1, 2, CallPart::Request, 2);
        cuts.disarm(id);
        assert!(!cuts.is_due(&1, &2, CallPart::Request));
        assert!(cuts.is_due(&1, &2, CallPart::Request));
    }
}
