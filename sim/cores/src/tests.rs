//! The model in cases whose results are known, and its page.

use crate::measurement::{MeasuredRun, Measurement, Section, SectionWait};
use crate::page;
use crate::prediction::predict_again;
use crate::simulation::{SectionSetup, ServerSetup, simulate};

fn setup(cores: u32, sections: Vec<SectionSetup>) -> ServerSetup {
    ServerSetup { cores, clients: 32 * cores, pause_us: 10.0, work_us: 20.0, sections }
}

fn section(wait: SectionWait, locks: u32, held_us: f64) -> SectionSetup {
    SectionSetup { wait, locks, visits: 1, held_us }
}

fn assert_near(found: f64, expected: f64, tolerance: f64) {
    assert!((found / expected - 1.0).abs() < tolerance, "{found} is not near {expected}");
}

#[test]
fn without_a_section_the_rate_is_that_of_the_cores() {
    for cores in [1, 2, 16, 64] {
        let result = simulate(&setup(cores, Vec::new()));
        assert_near(result.rate, f64::from(cores) * 1e6 / 20.0, 0.04);
        assert!(result.cores_busy > 0.97);
    }
}

#[test]
fn a_section_of_the_whole_server_is_a_bound() {
    for wait in [SectionWait::OnCore, SectionWait::InQueue] {
        let result = simulate(&setup(16, vec![section(wait, 1, 5.0)]));
        assert_near(result.rate, 1e6 / 5.0, 0.04);
        assert!(result.held[0] > 0.99);
        let result = simulate(&setup(1, vec![section(wait, 1, 5.0)]));
        assert_near(result.rate, 1e6 / 25.0, 0.04);
    }
}

#[test]
fn several_locks_share_the_work_of_a_section() {
    let result = simulate(&setup(64, vec![section(SectionWait::InQueue, 8, 20.0)]));
    assert_near(result.rate, 8.0 * 1e6 / 20.0, 0.04);
}

#[test]
fn one_client_has_the_latency_of_all_steps() {
    let alone = ServerSetup { clients: 1, ..setup(4, vec![section(SectionWait::OnCore, 1, 5.0)]) };
    assert_near(simulate(&alone).rate, 1e6 / 35.0, 0.04);
}

/// A waiting thread keeps its core: with two cores, 20 us of work and 20 us under a lock, the lock is the bound, and
/// operations that leave their cores do not run faster than it.
#[test]
fn an_operation_that_leaves_its_core_loses_less() {
    let rate = |wait| simulate(&setup(2, vec![section(wait, 1, 20.0)])).rate;
    let (on_core, in_queue) = (rate(SectionWait::OnCore), rate(SectionWait::InQueue));
    assert!(on_core < in_queue, "{on_core} {in_queue}");
    assert!(in_queue < 1e6 / 20.0 * 1.04);
}

fn run(cores: u32, operations: u64) -> MeasuredRun {
    let section = |name: &str, wait, visits, held_us, busiest_share| {
        let name = name.to_string();
        Section { name, wait, visits, held_us, busiest_share }
    };
    MeasuredRun {
        operation: "insert".to_string(),
        cores,
        clients: 16,
        operations,
        seconds: 1.0,
        p50_us: 400.0,
        server_cpu_us: 20.0,
        client_cpu_us: 30.0,
        other_cores: 0.0,
        sections: vec![
            section("replica::Replica", SectionWait::InQueue, 1.0, 8.0, 0.25),
            section("clock::Clock", SectionWait::OnCore, 2.0, 0.1, 1.0),
            section("send_queue::State", SectionWait::OnCore, 7.0, 2.0, 1.0 / 16.0),
        ],
        sites: Vec::new(),
        queues: Vec::new(),
    }
}

fn measurement() -> Measurement {
    let runs = vec![run(1, 20_000), run(2, 38_000)];
    Measurement { machine: "A machine of two cores.".to_string(), tablets: 4, runs }
}

#[test]
fn demands_of_one_core_predict_two() {
    let [one, two] = [run(1, 20_000), run(2, 40_000)];
    assert_near(predict_again(&one, &two), two.rate(), 0.06);
    let halved = MeasuredRun { other_cores: 1.0, ..two };
    assert_near(predict_again(&one, &halved), 20_000.0, 0.06);
}

#[test]
fn a_page_has_the_check_the_predictions_and_the_limits() {
    insta::assert_snapshot!(page(&measurement()));
}

#[test]
fn demands_are_read_as_they_are_written() {
    let text = serde_json::to_string(&measurement()).expect("numbers and texts are JSON");
    let read: Measurement = serde_json::from_str(&text).expect("it was written so");
    assert_eq!(read.runs[0].sections, measurement().runs[0].sections);
    assert_eq!(page(&read), page(&measurement()));
}

#[test]
fn the_kept_page_is_that_of_the_kept_demands() {
    let measured: Measurement = serde_json::from_str(include_str!("../demands.json")).expect("demands");
    let kept = include_str!("../../STUDY-CORES.md");
    assert_eq!(page(&measured), kept, "write it again: cargo sim study cores --out sim/STUDY-CORES.md");
}
