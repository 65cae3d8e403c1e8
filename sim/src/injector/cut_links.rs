//! Link rules in force, and the hosts that are cut off by them.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::net::rules::LinkEffect;
use crate::world::{LinkRule, LinkRuleId};

/// Rules in force, each with its start, and for each sending host the time when its last rule ended.
#[derive(Debug, Default)]
pub(super) struct CutLinks {
    rules: BTreeMap<LinkRuleId, (LinkRule, Duration)>,
    ended: BTreeMap<Option<String>, Duration>,
}

impl CutLinks {
    pub(super) fn add(&mut self, id: LinkRuleId, rule: LinkRule, now: Duration) {
        self.rules.insert(id, (rule, now));
    }

    /// Removes a rule; returns true if it was in force.
    pub(super) fn remove(&mut self, id: LinkRuleId, now: Duration) -> bool {
        let removed = self.rules.remove(&id);
        removed.map(|(rule, _)| self.ended.insert(rule.from, now)).is_some()
    }

    /// Returns the time since which nothing delays the host's messages; `None` if a rule does now.
    pub(super) fn clear(&self, host: &str) -> Option<Duration> {
        let about = |from: &Option<String>| from.as_deref().is_none_or(|from| from == host);
        if self.rules.values().any(|(rule, _)| about(&rule.from)) {
            return None;
        }
        let ended = self.ended.iter().filter(|(from, _)| about(from)).map(|(_, at)| *at);
        Some(ended.max().unwrap_or_default())
    }

    /// Returns the time since which none of these hosts receives anything from `host`; `None` if one does.
    pub(super) fn cut_off(&self, host: &str, mut others: impl Iterator<Item = String>) -> Option<Duration> {
        let blocked = |other: String| {
            let blocks = |(rule, _): &&(LinkRule, Duration)| {
                rule.effect == LinkEffect::Block
                    && rule.from.as_deref().is_none_or(|from| from == host)
                    && rule.to.as_ref().is_none_or(|to| *to == other)
            };
            self.rules.values().filter(blocks).map(|(_, since)| *since).min()
        };
        others.try_fold(Duration::ZERO, |latest, other| Some(blocked(other)?.max(latest)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn rule(from: Option<&str>, to: Option<&str>, effect: LinkEffect) -> LinkRule {
        LinkRule { from: from.map(String::from), to: to.map(String::from), effect }
    }

    fn others() -> impl Iterator<Item = String> {
        ["t0", "t2"].map(String::from).into_iter()
    }

    #[test]
    fn a_host_cut_off_from_all_others_is_silent() {
        let mut links = CutLinks::default();
        assert_eq!(links.cut_off("t1", others()), None);
        links.add(LinkRuleId(1), rule(Some("t1"), Some("t0"), LinkEffect::Block), at(1));
        assert_eq!(links.cut_off("t1", others()), None, "t2 receives its messages");
        links.add(LinkRuleId(2), rule(Some("t1"), Some("t2"), LinkEffect::Lose(50)), at(2));
        assert_eq!(links.cut_off("t1", others()), None, "half of it is retransmitted");
        links.add(LinkRuleId(3), rule(Some("t1"), None, LinkEffect::Block), at(3));
        assert_eq!(links.cut_off("t1", others()), Some(at(3)));
        assert!(links.remove(LinkRuleId(3), at(4)) && !links.remove(LinkRuleId(3), at(4)));
        assert_eq!(links.cut_off("t1", others()), None);
    }

    #[test]
    fn rules_for_other_hosts_delay_nothing() {
        let mut links = CutLinks::default();
        assert_eq!(links.clear("t1"), Some(Duration::ZERO));
        links.add(LinkRuleId(1), rule(Some("t2"), Some("t1"), LinkEffect::Block), at(1));
        assert_eq!(links.clear("t1"), Some(Duration::ZERO));
        links.add(LinkRuleId(2), rule(Some("t1"), Some("t2"), LinkEffect::Delay(5)), at(2));
        assert_eq!(links.clear("t1"), None);
        links.remove(LinkRuleId(2), at(7));
        links.remove(LinkRuleId(1), at(9));
        assert_eq!(links.clear("t1"), Some(at(7)));
        assert_eq!(links.clear("t2"), Some(at(9)));
        links.add(LinkRuleId(3), rule(None, Some("t0"), LinkEffect::Block), at(10));
        assert_eq!(links.clear("t1"), None, "what it sends to t0 waits");
    }
}
