//! Readiness: `/readyz` is right about a quiet cluster. All faults have ended, so no check of any server has a warning
//! or fails.

use std::collections::BTreeSet;

use super::Violation;

const NAME: &str = "readiness";

/// Word of a check that has nothing to tell an operator.
const OK: &str = "ok";
/// Checks of files. Damage may wait for an operator: no copy replaces a tombstone that cannot be read.
const OF_FILES: [&str; 2] = [TABLETS, "scrub"];
/// Check of tablet servers for failed replicas.
const TABLETS: &str = "tablets";
/// Check of masters for servers that they refuse. A refused server that is lost stays refused.
const OF_SERVERS: &str = "tablet servers";

/// One check of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerCheck {
    pub server: String,
    pub name: &'static str,
    /// Word of its result.
    pub word: &'static str,
    pub text: String,
}

/// Causes of warnings that last when all faults have ended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LastingCauses {
    /// Servers whose files are damaged.
    pub damaged: BTreeSet<String>,
    /// Servers that could not remove what a copy has left: the replica stays failed until it is copied again.
    pub keep_copies: BTreeSet<String>,
    /// True if a server whose clock masters refused may have lost its disks.
    pub loses_refused: bool,
}

impl LastingCauses {
    fn explain(&self, check: &ServerCheck) -> bool {
        OF_FILES.contains(&check.name) && self.damaged.contains(&check.server)
            || check.name == TABLETS && self.keep_copies.contains(&check.server)
            || check.name == OF_SERVERS && self.loses_refused
    }
}

/// Reports checks of quiet servers that are not right.
pub fn check(checks: &[ServerCheck], causes: &LastingCauses) -> Vec<Violation> {
    let wrong = checks.iter().filter(|check| check.word != OK && !causes.explain(check));
    let violation = |check: &ServerCheck| {
        let ServerCheck { server, name, word, text } = check;
        Violation::new(
            NAME,
            format!("the cluster is quiet, and /readyz of {server} has {name}: {word}: {text}"),
        )
    };
    wrong.map(violation).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_damage_may_last() {
        let of = |server: &str, name, word| ServerCheck {
            server: server.to_string(),
            name,
            word,
            text: "why".to_string(),
        };
        let [damaged, keep_copies] = ["t1", "t2"].map(|server| BTreeSet::from([server.to_string()]));
        let causes = LastingCauses { damaged, keep_copies, loses_refused: false };
        let found = |checks: &[ServerCheck]| check(checks, &causes).len();
        assert_eq!(found(&[of("t0", "tablets", OK), of("m0", "masters", OK)]), 0);
        assert_eq!(found(&[of("t1", "tablets", "warning"), of("t1", "scrub", "warning")]), 0);
        assert_eq!(found(&[of("t0", "tablets", "warning")]), 1, "its files are sound");
        assert_eq!(found(&[of("t2", "tablets", "warning"), of("t2", "scrub", "warning")]), 1);
        assert_eq!(found(&[of("t1", "masters", "failed"), of("t1", "space", "warning")]), 2);
        let refused = [of("m0", "tablet servers", "warning")];
        assert_eq!(found(&refused), 1);
        assert_eq!(check(&refused, &LastingCauses { loses_refused: true, ..causes.clone() }), []);
    }
}
