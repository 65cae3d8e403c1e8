//! The JUnit report for CI systems: a test case for each run, and one for each gate that closed.

use std::path::Path;

use anyhow::{Context, Result};

use super::gates::ClosedGate;
use super::results::Results;

/// Writes the report. `closed`: gates that fail the command.
pub(super) fn write(path: &Path, results: &Results, closed: &[ClosedGate]) -> Result<()> {
    std::fs::write(path, report(results, closed)).with_context(|| format!("writing {}", path.display()))
}

fn report(results: &Results, closed: &[ClosedGate]) -> String {
    let (tests, failures) = (results.runs.len() + closed.len(), results.failures() + closed.len());
    let mut xml = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
         <testsuite name=\"sim\" tests=\"{tests}\" failures=\"{failures}\">\n"
    );
    for (source, outcome) in &results.runs {
        begin(&mut xml, &source.what, &outcome.world, outcome.cpu_ms);
        for failure in &outcome.failures {
            let message = format!("{}: {}", failure.oracle, failure.message);
            fail(&mut xml, &message, &failure.story.join("\n"));
        }
        xml.push_str("  </testcase>\n");
    }
    for gate in closed {
        begin(&mut xml, gate.name, "all runs", 0);
        fail(&mut xml, &gate.message, "");
        xml.push_str("  </testcase>\n");
    }
    xml + "</testsuite>\n"
}

fn begin(xml: &mut String, name: &str, class: &str, cpu_ms: u64) {
    let (name, class, seconds) = (escape(name), escape(class), cpu_ms as f64 / 1e3);
    xml.push_str(&format!("  <testcase name=\"{name}\" classname=\"{class}\" time=\"{seconds}\">\n"));
}

fn fail(xml: &mut String, message: &str, story: &str) {
    let (message, story) = (escape(message), escape(story));
    xml.push_str(&format!("    <failure message=\"{message}\">{story}</failure>\n"));
}

/// Escapes text for XML, and drops the control characters that XML cannot have.
fn escape(text: &str) -> String {
    let shown: String = text.chars().filter(|c| !c.is_control() || matches!(c, '\n' | '\t')).collect();
    shown.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::cli::{PlanSource, RunOptions};
    use crate::run::{RunOutcome, ViolationRecord, WorldKind};
    use sim_plan::{FaultProfile, PlanSize};

    fn results(failures: Vec<ViolationRecord>) -> Results {
        let options =
            RunOptions { world: WorldKind::Turmoil, profile: FaultProfile::Calm, size: PlanSize::Smoke };
        let source = PlanSource { what: "7".to_string(), options };
        let outcome = RunOutcome { world: "turmoil".to_string(), failures, ..RunOutcome::default() };
        Results { runs: vec![(source, outcome)], elapsed: Duration::ZERO }
    }

    #[test]
    fn a_failed_run_is_a_failed_test_case() {
        let story = vec!["a & b \u{1b}".to_string()];
        let wrong = ViolationRecord { oracle: "once".into(), message: "<twice>".into(), story };
        let xml = report(&results(vec![wrong]), &[]);
        assert!(xml.contains("tests=\"1\" failures=\"1\""), "{xml}");
        assert!(xml.contains("once: &lt;twice&gt;") && xml.contains("a &amp; b <"), "{xml}");
    }

    #[test]
    fn a_closed_gate_is_a_failed_test_case() {
        let closed = [ClosedGate { name: "every-fault", message: "\"kill\" never fired".to_string() }];
        let xml = report(&results(Vec::new()), &closed);
        assert!(xml.contains("tests=\"2\" failures=\"1\""), "{xml}");
        assert!(xml.contains("name=\"every-fault\"") && xml.contains("&quot;kill&quot; never"), "{xml}");
    }
}
