//! Which links something is wrong with, and who cannot be heard because of it.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::net::rules::Effect;
use crate::world::{LinkRule, LinkRuleId};

/// The rules that hold, each since that time, and when the last one ended for what each host sends.
#[derive(Debug, Default)]
pub(super) struct Links {
    rules: BTreeMap<LinkRuleId, (LinkRule, Duration)>,
    ended: BTreeMap<Option<String>, Duration>,
}

impl Links {
    pub fn add(&mut self, id: LinkRuleId, rule: LinkRule, now: Duration) {
        self.rules.insert(id, (rule, now));
    }

    /// Whether it held.
    pub fn remove(&mut self, id: LinkRuleId, now: Duration) -> bool {
        let removed = self.rules.remove(&id);
        removed.map(|(rule, _)| self.ended.insert(rule.from, now)).is_some()
    }

    /// Since when nothing holds back what a host has sent; `None` if something does.
    pub fn clear(&self, host: &str) -> Option<Duration> {
        let about = |from: &Option<String>| from.as_deref().is_none_or(|from| from == host);
        if self.rules.values().any(|(rule, _)| about(&rule.from)) {
            return None;
        }
        let ended = self.ended.iter().filter(|(from, _)| about(from)).map(|(_, at)| *at);
        Some(ended.max().unwrap_or_default())
    }

    /// Since when none of these hosts gets anything from `host`, if that is so.
    pub fn cut_off(&self, host: &str, mut others: impl Iterator<Item = String>) -> Option<Duration> {
        let blocked = |other: String| {
            let blocks = |(rule, _): &&(LinkRule, Duration)| {
                rule.effect == Effect::Block
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

    fn rule(from: Option<&str>, to: Option<&str>, effect: Effect) -> LinkRule {
        LinkRule { from: from.map(String::from), to: to.map(String::from), effect }
    }

    fn others() -> impl Iterator<Item = String> {
        ["t0", "t2"].map(String::from).into_iter()
    }

    #[test]
    fn who_is_cut_off_from_all_others_is_not_heard() {
        let mut links = Links::default();
        assert_eq!(links.cut_off("t1", others()), None);
        links.add(LinkRuleId(1), rule(Some("t1"), Some("t0"), Effect::Block), at(1));
        assert_eq!(links.cut_off("t1", others()), None, "t2 hears it");
        links.add(LinkRuleId(2), rule(Some("t1"), Some("t2"), Effect::Lose(50)), at(2));
        assert_eq!(links.cut_off("t1", others()), None, "half of it is sent again");
        links.add(LinkRuleId(3), rule(Some("t1"), None, Effect::Block), at(3));
        assert_eq!(links.cut_off("t1", others()), Some(at(3)));
        assert!(links.remove(LinkRuleId(3), at(4)) && !links.remove(LinkRuleId(3), at(4)));
        assert_eq!(links.cut_off("t1", others()), None);
    }

    #[test]
    fn what_is_wrong_with_others_holds_nothing_back() {
        let mut links = Links::default();
        assert_eq!(links.clear("t1"), Some(Duration::ZERO));
        links.add(LinkRuleId(1), rule(Some("t2"), Some("t1"), Effect::Block), at(1));
        assert_eq!(links.clear("t1"), Some(Duration::ZERO));
        links.add(LinkRuleId(2), rule(Some("t1"), Some("t2"), Effect::Delay(5)), at(2));
        assert_eq!(links.clear("t1"), None);
        links.remove(LinkRuleId(2), at(7));
        links.remove(LinkRuleId(1), at(9));
        assert_eq!(links.clear("t1"), Some(at(7)));
        assert_eq!(links.clear("t2"), Some(at(9)));
        links.add(LinkRuleId(3), rule(None, Some("t0"), Effect::Block), at(10));
        assert_eq!(links.clear("t1"), None, "what it sends to t0 waits");
    }
}
