//! Variants of group trials, which have a stream of their own: other trials keep their draws.

use engine::config::TabletConfig;
use engine::replica::{Op, RequestId};
use sim_plan::RandomStream;
use sim_plan::tables::{ModelTable, draw};

/// One trial in this many has numbered rows, and one in this many replicas that keep few replies.
const RARE_EVERY: u64 = 6;
/// One trial in this many ends with orders to a group that has settled.
const LAST_ORDERS_EVERY: u64 = 3;
/// Replies that such a replica keeps, and bytes of their results: those of few errors.
pub(super) const FEW_REPLIES: usize = 4;
const FEW_RESULT_BYTES: usize = 300;
/// Most bytes of the key of a numbered row: more than any has.
const NUMBERED_KEY_BYTES: usize = 1 << 10;

/// Variant of a trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct GroupVariant {
    /// Rows have an auto-increment column at the end of their key.
    pub numbered: bool,
    /// Replicas keep few replies, and get some proposals late.
    pub few_replies: bool,
    /// An operator gives orders to the group that has settled.
    pub last_orders: bool,
}

impl GroupVariant {
    /// Draws the variant of a seed, with the stream for what belongs to it.
    pub(super) fn draw(seed: u64) -> (GroupVariant, RandomStream) {
        let mut random = RandomStream::new(seed, "group trial, variant");
        let numbered = random.below(RARE_EVERY) == 0;
        let few_replies = random.below(RARE_EVERY) == 0;
        // A stream of its own: the table of a seed stays as it is.
        let last_orders = RandomStream::new(seed, "group trial, last orders").below(LAST_ORDERS_EVERY) == 0;
        (GroupVariant { numbered, few_replies, last_orders }, random)
    }

    /// Returns the table of a trial, whose rows may be numbered.
    pub(super) fn table(self, random: &mut RandomStream, table: ModelTable) -> ModelTable {
        if self.numbered { draw::numbered(random, table) } else { table }
    }

    pub(super) fn config(self, config: TabletConfig) -> TabletConfig {
        let config = match self.numbered {
            true => TabletConfig { key_bytes_max: NUMBERED_KEY_BYTES, ..config },
            false => config,
        };
        match self.few_replies {
            true => TabletConfig {
                tracked_replies_max: FEW_REPLIES,
                tracked_result_bytes_max: FEW_RESULT_BYTES,
                ..config
            },
            false => config,
        }
    }
}

/// A proposal that waits for its replica.
pub(super) struct LateProposal {
    pub server: usize,
    /// Life of the server, and number of its replicas that were closed before.
    pub life: u64,
    pub closed: u64,
    pub ticket: u64,
    pub op: Op,
    pub request: RequestId,
    /// Number of results that the server knew.
    pub results: usize,
    /// Number of requests after which it arrives.
    pub wait: i64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_trial_in_six_has_each_rare_variant_and_one_in_three_last_orders() {
        let variants: Vec<GroupVariant> = (0..600).map(|seed| GroupVariant::draw(seed).0).collect();
        let numbered = variants.iter().filter(|variant| variant.numbered).count();
        let few_replies = variants.iter().filter(|variant| variant.few_replies).count();
        let is_a_sixth = |count: usize| (60..140).contains(&count);
        assert!(is_a_sixth(numbered) && is_a_sixth(few_replies), "{numbered}, {few_replies}");
        let last_orders = variants.iter().filter(|variant| variant.last_orders).count();
        assert!((150..250).contains(&last_orders), "{last_orders}");
    }
}
