//! Children are valid plans.

use proptest::prelude::*;

use super::*;
use crate::fault_weights::addable;
use crate::faults::TimedFault;
use crate::host::Host;
use crate::profile::{FaultProfile, PlanSize};

/// A lineage: the seeds of the first plan and of the donor, and the mutations in order.
fn lineage() -> impl Strategy<Value = (u64, usize, u64, Vec<usize>)> {
    let mutations = prop::collection::vec(0..Mutation::ALL.len(), 1..8);
    (0..5_000_u64, 0..FaultProfile::ALL.len(), 0..5_000_u64, mutations)
}

fn child(plan: &Plan, donor: &Plan, random: &mut RandomStream, mutation: Mutation) -> Option<Plan> {
    let (kinds, triggers) = (addable(), [(Trigger::Members, 3), (Trigger::Vote, 1)]);
    let input = MutationInput { mutation, kind: random.weighted(&kinds), donor, triggers: &triggers };
    plan.mutated(random, &input)
}

fn descendant(seed: u64, profile: usize, donor: u64, mutations: &[usize]) -> (Plan, Plan) {
    let profile = FaultProfile::ALL[profile];
    let first = Plan::generate(seed, profile, PlanSize::Smoke);
    let donor = Plan::generate(donor, FaultProfile::Swarm, PlanSize::Smoke);
    let mut random = RandomStream::new(seed, "mutate");
    let mut plan = first.clone();
    for number in mutations {
        plan = child(&plan, &donor, &mut random, Mutation::ALL[*number]).unwrap_or(plan);
    }
    (first, plan)
}

fn loses(fault: &&TimedFault) -> bool {
    fault.kind.kind().loses_durable_data()
}

fn assert_valid(first: &Plan, plan: &Plan) {
    let hosts = plan.hosts();
    assert!(plan.faults.iter().all(|fault| hosts.contains(&fault.target)), "{plan}");
    assert!(plan.faults.is_sorted_by_key(|fault| fault.at) && plan.reseeds.is_sorted_by_key(|one| one.at));
    assert!(plan.faults_end_at() < plan.limit && plan.limit >= first.limit && plan.quiet >= first.quiet);
    let lossy: Vec<&TimedFault> = plan.faults.iter().filter(loses).collect();
    assert!(lossy.len() <= first.faults.iter().filter(loses).count(), "a child loses no more data: {plan}");
    let tservers: Vec<Host> =
        lossy.iter().map(|fault| fault.target).filter(|host| !is_master(*host)).collect();
    assert!(tservers.windows(2).all(|pair| pair[0] == pair[1]), "{plan}");
    let cut = plan.faults.iter().any(|fault| fault.kind.cuts_power());
    assert!(!cut || plan.cluster.log_sync || plan.cluster.replicas == 1, "{plan}");
    assert_eq!(plan.cluster.tservers, first.cluster.tservers);
}

fn is_master(host: Host) -> bool {
    matches!(host, Host::Master(_))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 50, ..ProptestConfig::default() })]

    #[test]
    fn every_child_is_valid_and_parsed_from_its_own_text((seed, profile, donor, mutations) in lineage()) {
        let (first, plan) = descendant(seed, profile, donor, &mutations);
        assert_valid(&first, &plan);
        let parsed = plan.to_string().parse::<Plan>();
        prop_assert_eq!(parsed.as_ref(), Ok(&plan), "{}", plan);
        prop_assert_eq!(descendant(seed, profile, donor, &mutations).1, plan, "equal draws give equal children");
    }
}

#[test]
fn every_mutation_changes_some_plan() {
    let donor = Plan::generate(7, FaultProfile::Swarm, PlanSize::Full);
    for mutation in Mutation::ALL {
        let changed = (0..20).filter(|seed| {
            let plan = Plan::generate(*seed, FaultProfile::Swarm, PlanSize::Full);
            child(&plan, &donor, &mut RandomStream::new(*seed, "mutate"), *mutation).is_some()
        });
        assert!(changed.count() > 5, "{} changes hardly any plan", mutation.word());
    }
}

#[test]
fn a_reseed_keeps_the_earlier_ones() {
    let donor = Plan::generate(7, FaultProfile::Calm, PlanSize::Smoke);
    let mut plan = Plan::generate(8, FaultProfile::Calm, PlanSize::Smoke);
    let mut random = RandomStream::new(1, "mutate");
    for _ in 0..10 {
        plan = child(&plan, &donor, &mut random, Mutation::Reseed).expect("a further seed");
    }
    assert!(!plan.reseeds.is_empty() && plan.reseeds.is_sorted_by_key(|one| one.at));
    assert_eq!(plan.to_string().parse::<Plan>(), Ok(plan));
}
