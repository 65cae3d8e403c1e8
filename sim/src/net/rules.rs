//! What is wrong with links: rules that begin and end on their own, several at a time.

use std::collections::BTreeMap;

/// A host by its number in the network.
pub type HostId = usize;

/// What a rule does to what it applies to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Nothing passes; what was sent waits.
    Block,
    /// Everything takes so many nanoseconds longer.
    Delay(u64),
    /// So many segments in a hundred are lost, and sent again.
    Lose(u8),
    /// Nobody new is let in: no answer.
    Ignore,
    /// Nobody new is let in: refused.
    Refuse,
}

/// Applies to what goes from one host to another; `None`: any other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rule {
    pub from: Option<HostId>,
    pub to: Option<HostId>,
    pub effect: Effect,
}

/// Names a rule that was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct RuleId(pub u64);

/// The rules that hold.
#[derive(Debug, Default)]
pub struct Rules {
    rules: BTreeMap<RuleId, Rule>,
    next: u64,
}

impl Rules {
    pub fn add(&mut self, rule: Rule) -> RuleId {
        let id = RuleId(self.next);
        self.next += 1;
        self.rules.insert(id, rule);
        id
    }

    pub fn remove(&mut self, id: RuleId) -> Option<Rule> {
        self.rules.remove(&id)
    }

    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// No rule is about what a host sends itself.
    fn effects(&self, from: HostId, to: HostId) -> impl Iterator<Item = Effect> {
        let applies = move |rule: &&Rule| {
            from != to && rule.from.is_none_or(|id| id == from) && rule.to.is_none_or(|id| id == to)
        };
        self.rules.values().filter(applies).map(|rule| rule.effect)
    }

    pub fn blocked(&self, from: HostId, to: HostId) -> bool {
        self.effects(from, to).any(|effect| effect == Effect::Block)
    }

    /// Nanoseconds on top of the usual ones.
    pub fn delay(&self, from: HostId, to: HostId) -> u64 {
        let delays = self.effects(from, to).filter_map(|effect| match effect {
            Effect::Delay(nanos) => Some(nanos),
            _ => None,
        });
        delays.sum()
    }

    /// Of a hundred segments.
    pub fn loss(&self, from: HostId, to: HostId) -> u64 {
        let losses = self.effects(from, to).filter_map(|effect| match effect {
            Effect::Lose(percent) => Some(u64::from(percent)),
            _ => None,
        });
        losses.max().unwrap_or(0)
    }

    /// What becomes of new connections, if anything.
    pub fn door(&self, from: HostId, to: HostId) -> Option<Effect> {
        self.effects(from, to).find(|effect| matches!(effect, Effect::Ignore | Effect::Refuse))
    }
}
