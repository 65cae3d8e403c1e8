//! A server that quiesces begins no scans, and leads nothing once others have taken over.

use super::Finding;

const NAME: &str = "quiescing";

/// A server that has said that it quiesces was asked to begin a scan of a tablet; `began`: whether it did.
pub fn check_scan(server: &str, tablet: &str, began: bool) -> Option<Finding> {
    began.then(|| Finding::new(NAME, format!("{server} quiesces and began a scan of tablet {tablet}")))
}

/// What a quiescing server still leads, as an error for those who wait for it to hand over.
pub fn still_leads(server: &str, leaders: i32) -> Option<String> {
    (leaders != 0).then(|| format!("{server} quiesces and still leads {leaders} tablets"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scan_that_begins_all_the_same_is_noticed() {
        assert_eq!(check_scan("t1", "a", false), None);
        let found = check_scan("t1", "a", true).expect("a finding");
        assert_eq!(found.to_string(), "quiescing: t1 quiesces and began a scan of tablet a");
    }

    #[test]
    fn a_server_that_has_handed_over_leads_nothing() {
        assert_eq!(still_leads("t1", 0), None);
        assert!(still_leads("t1", 2).is_some_and(|what| what.contains("leads 2")));
    }
}
