//! The page STUDY-CORES.md: the check at two cores, predictions, and the limits of sections.

use std::fmt::Write;

use crate::measurement::{MeasuredRun, Measurement, Section};
use crate::prediction::{
    CLIENTS_PER_CORE, CORES, PAUSE_US, Prediction, TABLETS_PER_CORE, TabletCount, predict, predict_again,
    shared_sections,
};

/// Sections of an operation on the page, those with the lowest limits.
const SECTIONS: usize = 6;

/// Returns the page of a measurement.
pub fn page(measured: &Measurement) -> String {
    let mut page = introduction(measured);
    page += &check(measured);
    for run in most_cores(measured) {
        page += &prediction(measured, run);
        page += &limits(run);
    }
    page
}

fn introduction(measured: &Measurement) -> String {
    format!(
        "# A server's cores\n\nWritten by `cargo sim study cores --out FILE` from the demands that `cargo ci profile \
         contention` measured (`sim/cores/demands.json`); do not edit. {}\n\n\
         An operation's CPU is work that any core does, and serial sections: locks, and turns of a task. The model \
         draws exponential times with these means. A thread that waits for a lock keeps its core, an operation that \
         waits for a turn leaves it. Predicted servers have {CLIENTS_PER_CORE} clients for each core on other \
         machines, which send the next request {PAUSE_US} us after a reply. Not modelled: caches, memory and atomics \
         that cores take from each other, and sections inside the kernel. They only lower the rates.\n\n",
        measured.machine
    )
}

/// Returns the runs with the most cores, one for each operation.
fn most_cores(measured: &Measurement) -> Vec<&MeasuredRun> {
    let most = measured.runs.iter().map(|run| run.cores).max();
    measured.runs.iter().filter(|run| Some(run.cores) == most).collect()
}

/// Returns the comparison of predictions and measurements on this machine, with the clients on the same cores.
fn check(measured: &Measurement) -> String {
    let mut page = "## Prediction and measurement\n\nThe clients share the cores. The cores that other processes \
                    took are subtracted. Demands of one core predict two: that is the check of the model.\n\n\
                    | operation | demands of, cores | rate of, cores | predicted, /s | measured, /s | error, % |\n\
                    |---|--:|--:|--:|--:|--:|\n"
        .to_string();
    for run in &measured.runs {
        let same = |demands: &&MeasuredRun| demands.operation == run.operation && demands.cores <= run.cores;
        for demands in measured.runs.iter().filter(same) {
            let (predicted, rate) = (predict_again(demands, run), run.rate());
            let error = (predicted / rate - 1.0) * 100.0;
            let _ = writeln!(
                page,
                "| {} | {} | {} | {predicted:.0} | {rate:.0} | {error:+.0} |",
                run.operation, demands.cores, run.cores
            );
        }
    }
    page + "\n"
}

/// Returns the predictions for an operation.
fn prediction(measured: &Measurement, run: &MeasuredRun) -> String {
    let mut page = format!(
        "## {}\n\n{:.1} us of server CPU. {} tablets, and {TABLETS_PER_CORE} for each core:\n\n\
         | cores | rate, /s | multiple of one core | cores busy, % | busiest section (held, %) | \
         rate with more tablets, /s | busiest section (held, %) |\n\
         |--:|--:|--:|--:|---|--:|---|\n",
        run.operation, run.server_cpu_us, measured.tablets
    );
    let mut one = None;
    for cores in CORES {
        let fixed = predict(measured, run, cores, TabletCount::Fixed);
        let grown = predict(measured, run, cores, TabletCount::PerCore);
        let one = *one.get_or_insert(fixed.result.rate);
        let _ = writeln!(
            page,
            "| {} | {:.0} | {:.1} | {:.0} | {} | {:.0} | {} |",
            fixed.cores,
            fixed.result.rate,
            fixed.result.rate / one,
            fixed.result.cores_busy * 100.0,
            busiest(&fixed),
            grown.result.rate,
            busiest(&grown)
        );
    }
    page + "\n"
}

fn busiest(prediction: &Prediction) -> String {
    prediction
        .busiest
        .as_ref()
        .map_or(String::new(), |(name, held)| format!("`{name}` ({:.0})", held * 100.0))
}

/// Returns the sections of an operation that are the first to be always held.
fn limits(run: &MeasuredRun) -> String {
    let mut sections: Vec<&Section> = shared_sections(run).collect();
    sections.sort_by(|one, two| one.limit().total_cmp(&two.limit()).then(one.name.cmp(&two.name)));
    let Some(first) = sections.first() else { return String::new() };
    let mut page = format!(
        "`{}` is the first section that is always held, from {:.0} cores on:\n\n\
         | section | locks | visits | held, us | always held at, /s | cores that reach it |\n\
         |---|--:|--:|--:|--:|--:|\n",
        first.name,
        first.limit() * run.server_cpu_us / 1e6
    );
    for section in sections.iter().take(SECTIONS) {
        let (limit, locks) = (section.limit(), section.locks());
        let cores = limit * run.server_cpu_us / 1e6;
        let Section { name, visits, held_us, .. } = section;
        let _ =
            writeln!(page, "| `{name}` | {locks} | {visits:.1} | {held_us:.2} | {limit:.0} | {cores:.0} |");
    }
    page + "\n"
}
