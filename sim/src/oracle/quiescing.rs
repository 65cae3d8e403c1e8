//! A quiescing server begins no scans, and leads no tablets once others have taken over.

use super::Violation;

const NAME: &str = "quiescing";

/// Checks a scan of a tablet requested from a quiescing server; `began`: true if it was started.
pub fn check_scan(server: &str, tablet: &str, began: bool) -> Option<Violation> {
    began.then(|| Violation::new(NAME, format!("{server} quiesces and began a scan of tablet {tablet}")))
}

/// Returns an error while a quiescing server still leads tablets, for callers that wait for its leadership transfers.
pub fn still_leads(server: &str, leaders: i32) -> Option<String> {
    (leaders != 0).then(|| format!("{server} quiesces and still leads {leaders} tablets"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scan_at_a_quiescing_server_is_reported() {
        assert_eq!(check_scan("t1", "a", false), None);
        let found = check_scan("t1", "a", true).expect("a finding");
        assert_eq!(found.to_string(), "quiescing: t1 quiesces and began a scan of tablet a");
    }

    #[test]
    fn a_quiescing_server_may_lead_no_tablets() {
        assert_eq!(still_leads("t1", 0), None);
        assert!(still_leads("t1", 2).is_some_and(|what| what.contains("leads 2")));
    }
}
