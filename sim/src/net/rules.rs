//! Link rules: faults of links that begin and end independently, several at a time.

use std::collections::BTreeMap;

/// A host by its number in the network.
pub type HostId = usize;

/// The effect of a rule on its links.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkEffect {
    /// Nothing passes; what was sent waits.
    Block,
    /// Everything takes this many nanoseconds longer.
    Delay(u64),
    /// Percentage of segments that are lost and must be retransmitted.
    Lose(u8),
    /// New connections get no reply.
    Ignore,
    /// New connections are refused.
    Refuse,
}

/// A rule for what one host sends to another; `None`: any other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rule {
    pub from: Option<HostId>,
    pub to: Option<HostId>,
    pub effect: LinkEffect,
}

/// The id of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct RuleId(pub u64);

/// The rules in force.
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

    /// Yields the effects on a link. No rule applies to what a host sends itself.
    fn effects(&self, from: HostId, to: HostId) -> impl Iterator<Item = LinkEffect> {
        let applies = move |rule: &&Rule| {
            from != to && rule.from.is_none_or(|id| id == from) && rule.to.is_none_or(|id| id == to)
        };
        self.rules.values().filter(applies).map(|rule| rule.effect)
    }

    pub fn blocked(&self, from: HostId, to: HostId) -> bool {
        self.effects(from, to).any(|effect| effect == LinkEffect::Block)
    }

    /// Returns the additional latency in nanoseconds.
    pub fn delay(&self, from: HostId, to: HostId) -> u64 {
        let delays = self.effects(from, to).filter_map(|effect| match effect {
            LinkEffect::Delay(nanos) => Some(nanos),
            _ => None,
        });
        delays.sum()
    }

    /// Returns the additional loss in percent.
    pub fn loss(&self, from: HostId, to: HostId) -> u64 {
        let losses = self.effects(from, to).filter_map(|effect| match effect {
            LinkEffect::Lose(percent) => Some(u64::from(percent)),
            _ => None,
        });
        losses.max().unwrap_or(0)
    }

    /// Returns the effect on new connections, if any.
    pub fn connect_effect(&self, from: HostId, to: HostId) -> Option<LinkEffect> {
        self.effects(from, to).find(|effect| matches!(effect, LinkEffect::Ignore | LinkEffect::Refuse))
    }
}
