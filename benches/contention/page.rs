//! The page of a profile: for each operation, the sites that waited or held longest, and the queues.

use std::fmt::Write;

use cores_model::{MeasuredRun, Measurement};

/// Sites of an operation on the page.
const SITES: usize = 16;

pub(crate) fn page(measured: &Measurement) -> String {
    let mut page = format!(
        "# Contention\n\nWritten by `cargo ci profile contention`; do not edit. {}\n\n\
         One master and one tablet server in a process, {} tablets, log sync off; insert, update and read by key of \
         rows of 1 KB, from 16 clients in another process on the same cores; {} rows are updated and read. \
         Rates, CPU and queues were measured \
         while locks were not; then sites with locks that report every wait and hold. All results are for each \
         operation. A site is a place that takes a lock, or a task's turn; contended: it was held. Holds from \
         0.5 ms on are long: the thread had lost its core, or waited for a disk.\n\n",
        measured.machine,
        measured.tablets,
        crate::run::ROWS
    );
    page += &totals(measured);
    let most = measured.runs.iter().map(|run| run.cores).max();
    for run in measured.runs.iter().filter(|run| Some(run.cores) == most) {
        let _ = writeln!(page, "## {}, {} cores\n", run.operation, run.cores);
        page += &sites(run);
        page += &queues(run);
    }
    page
}

fn totals(measured: &Measurement) -> String {
    let mut table = "| operation | cores | operations/s | p50, us | server CPU, us | client CPU, us | \
                     cores of others | lock waits, us | held, us |\n\
                     |---|--:|--:|--:|--:|--:|--:|--:|--:|\n"
        .to_string();
    for run in &measured.runs {
        let waits: f64 = run.sites.iter().map(|site| site.wait_us).sum();
        let held: f64 = run.sections.iter().map(|section| section.held_us).sum();
        let _ = writeln!(
            table,
            "| {} | {} | {:.0} | {:.0} | {:.1} | {:.1} | {:.2} | {waits:.2} | {held:.1} |",
            run.operation,
            run.cores,
            run.rate(),
            run.p50_us,
            run.server_cpu_us,
            run.client_cpu_us,
            run.other_cores
        );
    }
    table + "\n"
}

fn sites(run: &MeasuredRun) -> String {
    let mut table = "| guarded value | place | visits | contended, % | wait, us | held, us | long, us |\n\
                     |---|---|--:|--:|--:|--:|--:|\n"
        .to_string();
    for site in run.sites.iter().take(SITES) {
        let _ = writeln!(
            table,
            "| `{}` | `{}` | {:.2} | {:.2} | {:.3} | {:.3} | {:.3} |",
            site.section,
            site.place,
            site.visits,
            site.contended_percent,
            site.wait_us,
            site.held_us,
            site.long_us
        );
    }
    table + "\n"
}

fn queues(run: &MeasuredRun) -> String {
    let mut table = "| queue or step | entries | us each |\n|---|--:|--:|\n".to_string();
    for queue in &run.queues {
        let _ = writeln!(table, "| `{}` | {:.3} | {:.1} |", queue.metric, queue.entries, queue.mean_us);
    }
    table + "\n"
}
