//! Setups of the model for a measured run: the run itself again, and servers with more cores.

use crate::measurement::{MeasuredRun, Measurement, Section};
use crate::simulation::{SectionSetup, ServerSetup, SimulatedResult, simulate};

/// Numbers of cores to predict.
pub(crate) const CORES: [u32; 5] = [1, 2, 4, 16, 64];
/// Clients for each core, on other machines, and their time between a reply and the next request: they keep all
/// cores busy.
pub(crate) const CLIENTS_PER_CORE: u32 = 16;
pub(crate) const PAUSE_US: f64 = 100.0;
/// Tablets for each core of a server whose tablets grow with it, as in the measured runs on two cores.
pub(crate) const TABLETS_PER_CORE: u32 = 2;
/// Most visits that an operation makes to a section in the model; more visits become longer ones.
const VISITS_MAX: f64 = 4.0;
/// Share of time for which the busiest lock of a section is held at the most cores, if nothing slows them: a section
/// below it cannot slow them, and is plain work in the model.
const HELD_MIN: f64 = 0.02;

/// Prediction for a number of cores.
pub(crate) struct Prediction {
    pub cores: u32,
    pub result: SimulatedResult,
    /// Section whose busiest lock is held for the largest share of time, and the share.
    pub busiest: Option<(String, f64)>,
}

/// Tablets of a predicted server.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum TabletCount {
    /// As many as were measured.
    Fixed,
    /// [`TABLETS_PER_CORE`] for each core.
    PerCore,
}

/// Returns the sections that operations of several clients share: a connection's own never make them wait.
pub(crate) fn shared_sections(run: &MeasuredRun) -> impl Iterator<Item = &Section> {
    let per_connection = f64::from(run.clients) * 0.6;
    run.sections.iter().filter(move |section| f64::from(section.locks()) < per_connection)
}

/// Predicts a server with `cores` cores, and clients on other machines.
pub(crate) fn predict(
    whole: &Measurement,
    run: &MeasuredRun,
    cores: u32,
    tablets: TabletCount,
) -> Prediction {
    let most = f64::from(CORES[CORES.len() - 1]) * 1e6 / run.server_cpu_us;
    let matters = |section: &&Section| most / section.limit() >= HELD_MIN;
    let sections: Vec<&Section> = shared_sections(run).filter(matters).collect();
    let setup = ServerSetup {
        cores,
        clients: cores * CLIENTS_PER_CORE,
        pause_us: PAUSE_US,
        work_us: work_us(run.server_cpu_us, &sections),
        sections: sections
            .iter()
            .map(|section| section_setup(section, locks(whole, section, cores, tablets), 1.0))
            .collect(),
    };
    let result = simulate(&setup);
    let named = sections.iter().zip(&result.held).max_by(|one, two| one.1.total_cmp(two.1));
    let busiest = named.map(|(section, held)| (section.name.clone(), *held));
    Prediction { cores, result, busiest }
}

/// Predicts the rate of `measured` from the demands of `demands`, which may be a run on fewer cores. Clients and other
/// processes share the cores, as they did.
pub(crate) fn predict_again(demands: &MeasuredRun, measured: &MeasuredRun) -> f64 {
    let cores = f64::from(measured.cores);
    let slower = cores / (cores - measured.other_cores).max(0.05);
    let sections: Vec<&Section> = shared_sections(demands).collect();
    let work_us = work_us(demands.server_cpu_us, &sections) + demands.client_cpu_us;
    let setup = ServerSetup {
        cores: measured.cores,
        clients: measured.clients,
        pause_us: 0.0,
        work_us: work_us * slower,
        sections: sections.iter().map(|section| section_setup(section, section.locks(), slower)).collect(),
    };
    simulate(&setup).rate
}

/// Returns the CPU of an operation outside of the sections.
fn work_us(cpu_us: f64, sections: &[&Section]) -> f64 {
    let held: f64 = sections.iter().map(|section| section.held_us).sum();
    (cpu_us - held).max(0.0)
}

fn section_setup(section: &Section, locks: u32, slower: f64) -> SectionSetup {
    let visits = section.visits.round().clamp(1.0, VISITS_MAX) as u32;
    SectionSetup { wait: section.wait, locks, visits, held_us: section.held_us * slower }
}

/// Returns the locks of a section on the predicted server.
fn locks(whole: &Measurement, section: &Section, cores: u32, tablets: TabletCount) -> u32 {
    let (locks, measured) = (section.locks(), f64::from(whole.tablets));
    let of_tablets = (0.6..1.4).contains(&(f64::from(locks) / measured));
    let predicted = (cores * TABLETS_PER_CORE).max(whole.tablets);
    if tablets == TabletCount::PerCore && of_tablets && locks > 1 { predicted } else { locks }
}
