//! Every job starts at last, and ends, at any load: random small clusters and endless streams of jobs.

use std::collections::{BTreeMap, BTreeSet};

use andreas_model::{CostRate, EnergyPrice, GpuCount, JobId, NodeName, Seconds, StepFunction, Time, Watts};
use andreas_planner::{
    Estimate, GpuTypeInfo, Job, JobState, Lateness, LimitsCount, MultiNodeEffect, Node, Placement,
    PowerBudget, Preemption, Resources, Snapshot, Worker,
};
use proptest::prelude::*;
use rand::SeedableRng as _;
use rand_chacha::ChaCha8Rng;

use crate::methods::{self, Method};

/// Name, speed and watts of a GPU that trains.
const TYPES: [(&str, f64, f64); 2] = [("slow", 1.0, 200.0), ("fast", 2.5, 400.0)];
const IDLE_W: f64 = 40.0;
const OVERHEAD_W: f64 = 150.0;
const RESTART_S: f64 = 30.0;
/// Planning weights double in five minutes, so a job is fully aged after 45.
const AGING_S: f64 = 300.0;
const FULLY_AGED_S: f64 = 9.0 * AGING_S;
/// Decisions are at most so far apart, seconds.
const TICK_S: f64 = 600.0;
/// The first jobs of a stream are watched; it never ends before they have.
const WATCHED: usize = 8;

#[derive(Clone, Debug)]
struct Case {
    seed: u64,
    /// Type and GPUs of each node.
    nodes: Vec<(usize, u32)>,
    /// Work that arrives, as part of what the cluster can do.
    load: f64,
    /// Where the budget is between one job of one GPU and everything at work.
    budget: Option<f64>,
    /// Largest factor of true times on predicted ones, and of predicted on true ones.
    error: f64,
    aging: bool,
}

fn cases() -> impl Strategy<Value = Case> {
    let node = (0..2_usize, prop::sample::select(vec![1_u32, 2, 4, 8]));
    let nodes = prop::collection::vec(node, 1..5);
    let rules = (0.3..3.0_f64, prop::option::of(0.0..1.0_f64), prop_oneof![Just(1.0), 1.0..1.8_f64]);
    (any::<u64>(), nodes, rules).prop_map(|(seed, nodes, (load, budget, error))| Case {
        seed,
        nodes,
        load,
        budget,
        error,
        aging: true,
    })
}

impl Case {
    fn gpus(&self) -> f64 {
        self.nodes.iter().map(|(_, gpus)| f64::from(*gpus)).sum()
    }

    /// Watts between those of one job of one GPU and those of everything at work.
    fn budget_w(&self) -> Option<f64> {
        let idle = self.gpus() * IDLE_W;
        let (_, _, most) = TYPES[1];
        let least = idle + OVERHEAD_W + most - IDLE_W;
        let all: f64 =
            self.nodes.iter().map(|(kind, gpus)| f64::from(*gpus) * TYPES[*kind].2 + OVERHEAD_W).sum();
        self.budget.map(|part| least + part * (all - least).max(0.0))
    }

    fn cluster(&self) -> Snapshot {
        let node = |(i, (kind, gpus)): (usize, &(usize, u32))| Node {
            name: format!("n{i}").into(),
            gpu_type: TYPES[*kind].0.into(),
            gpus: GpuCount(*gpus),
            boards: GpuCount(*gpus),
            free_gpus: GpuCount(*gpus),
            host_idle: Watts::ZERO,
            host_busy: Watts(OVERHEAD_W),
            sleep: None,
            foreign_power: None,
            gang_class: 0,
            free: Resources::default(),
        };
        let of_type = |(name, _, watts): (&str, f64, f64)| GpuTypeInfo {
            name: name.into(),
            idle: Watts(IDLE_W),
            max: Watts(watts),
        };
        Snapshot {
            now: Time(0.0),
            tariff: StepFunction::flat(EnergyPrice::per_kwh(0.2, 1.3)),
            budget: self.budget_w().map(|watts| PowerBudget {
                watts: StepFunction::flat(Watts(watts)),
                margin: 0.0,
                scope_factor: 1.0,
            }),
            lateness: Lateness {
                turnaround_share: 0.1,
                late_fixed: Seconds(900.0),
                aging: self.aging.then_some(Seconds(AGING_S)),
            },
            restart: Seconds(RESTART_S),
            wear: Seconds::ZERO,
            gpu_types: TYPES.into_iter().map(of_type).collect(),
            nodes: self.nodes.iter().enumerate().map(node).collect(),
            namespaces: vec![],
            jobs: vec![],
            prices: None,
            intended: vec![],
        }
    }

    /// Whether the cluster without any other job could run it so.
    fn fits(&self, kind: usize, total: u32, span: u32) -> bool {
        let wide = self.nodes.iter().filter(|(of, gpus)| *of == kind && gpus * span >= total).count();
        let watts =
            self.gpus() * IDLE_W + f64::from(total) * (TYPES[kind].2 - IDLE_W) + f64::from(span) * OVERHEAD_W;
        total.is_multiple_of(span)
            && wide >= span as usize
            && self.budget_w().is_none_or(|budget| watts <= budget)
    }

    /// The next job of the stream, how many times longer than predicted it takes, and until when nodes refuse it.
    fn job(&self, i: usize, submit: Time, numbers: &mut ChaCha8Rng) -> (Job, f64, Time) {
        let seconds = numbers.random_range(5.0..40.0) * 60.0;
        let scaling = numbers.random_range(0.7..1.0);
        let spans: &[u32] = if numbers.random_bool(0.4) { &[1, 2] } else { &[1] };
        let possible: Vec<u32> = [1, 2, 4, 8, 16]
            .into_iter()
            .filter(|g| (0..2).any(|kind| spans.iter().any(|span| self.fits(kind, *g, *span))))
            .collect();
        // As many as one could ever get, or a range of numbers, of which that is one.
        let requested =
            if possible.is_empty() { 1 } else { possible[numbers.random_range(0..possible.len())] };
        let counts: Vec<u32> = if numbers.random_bool(0.5) { vec![requested] } else { vec![1, 2, 4, 8, 16] };
        let rows = TYPES.into_iter().flat_map(|(name, speed, watts)| {
            let row = move |gpus: &u32| Estimate {
                gpu_type: name.into(),
                gpus: GpuCount(*gpus),
                epoch: Seconds(seconds / speed / f64::from(*gpus).powf(scaling)),
                power: Watts(watts * f64::from(*gpus)),
                draw: None,
                rel_std: 0.0,
            };
            counts.iter().map(row).collect::<Vec<_>>()
        });
        let deadline = submit + Seconds(seconds * numbers.random_range(0.2..1.5));
        let refused = numbers.random_bool(0.3);
        let part = numbers.random_range(0.3_f64..1.3).min(1.0);
        let forbidden: Vec<NodeName> = (0..self.nodes.len())
            .filter(|_| numbers.random_bool(part) && refused)
            .map(|n| NodeName::from(format!("n{n}")))
            .collect();
        let longer = libm::pow(self.error, numbers.random_range(-1.0..1.0));
        let until = submit + Seconds(numbers.random_range(60.0..3600.0));
        let namespace = if numbers.random_bool(0.5) { "ns0" } else { "ns1" };
        let job = Job {
            id: format!("{namespace}/job{i:04}").into(),
            namespace: namespace.into(),
            submit,
            deadline: numbers.random_bool(0.7).then_some(deadline),
            weight: CostRate(1e-6 * 10_000.0_f64.powf(numbers.random::<f64>())),
            epochs_left: 1.0,
            estimates: rows.collect(),
            spread: if spans.len() > 1 {
                vec![MultiNodeEffect { nodes: 2, time_factor: 1.1 }]
            } else {
                vec![]
            },
            limits: vec![],
            limits_count: LimitsCount::AtOnce,
            unknown: None,
            requested_gpus: Some(GpuCount(requested)),
            worker: Worker::default(),
            candidates: None,
            forbidden,
            refused_workers: vec![],
            preemption: if numbers.random_bool(0.2) { Preemption::Never } else { Preemption::Allowed },
            movable: !numbers.random_bool(0.2),
            grace: Seconds::ZERO,
            min_run: Seconds(if numbers.random_bool(0.2) { 600.0 } else { 0.0 }),
            lost: Seconds::ZERO,
            usually_lost: None,
            restart: None,
            restarts_last_day: 0,
            promised: false,
            state: JobState::Waiting,
        };
        (job, longer, until)
    }

    /// Mean seconds between arrivals at this load.
    fn gap(&self) -> f64 {
        let speed: f64 = self.nodes.iter().map(|(kind, gpus)| TYPES[*kind].1 * f64::from(*gpus)).sum();
        22.5 * 60.0 / speed / self.load
    }
}

/// Predicted seconds of a whole job there.
fn seconds(job: &Job, place: &Placement) -> f64 {
    let row = |e: &&Estimate| e.gpu_type == place.gpu_type && e.gpus == place.total_gpus();
    let spread = if place.nodes.len() > 1 { job.spread[0].time_factor } else { 1.0 };
    job.estimates.iter().find(row).unwrap().epoch.0 * spread
}

/// A job that trains.
struct Run {
    place: Placement,
    /// Seconds of a restart that are still to pass.
    restarting: f64,
}

/// Lets a method plan until the watched jobs have ended, or ought to have. Says who has not started, and who has not ended.
fn left_over(case: &Case, method: Method) -> (BTreeSet<JobId>, BTreeSet<JobId>) {
    let mut numbers = ChaCha8Rng::seed_from_u64(case.seed);
    let mut snapshot = case.cluster();
    let mut decide = methods::deciding(method, 0, 10);
    let (mut truth, mut refused) = (BTreeMap::new(), BTreeMap::new());
    let mut runs: BTreeMap<JobId, Run> = BTreeMap::new();
    let (mut waits, mut lives) = (BTreeSet::new(), BTreeSet::new());
    let (mut count, mut arrival, mut give_up) = (0, Time(0.0), Time(0.0));
    // When the last of the watched is fully aged, and what is to be done from then on: first what somebody else's job still has, then theirs.
    let (mut fully_aged, mut work) = (Time(0.0), Seconds(40.0 * 60.0 * 1.1 * case.error + TICK_S));
    while count < WATCHED || !lives.is_empty() && snapshot.now < give_up {
        while arrival <= snapshot.now {
            let (job, longer, until) = case.job(count, arrival, &mut numbers);
            if count < WATCHED {
                waits.insert(job.id.clone());
                lives.insert(job.id.clone());
                // Once all of them are fully aged and may run anywhere, at worst whoever runs runs to the end on the slowest
                // there is, and then they do so one after the other.
                let slowest = job.estimates.iter().map(|e| e.epoch.0).fold(0.0, f64::max) * 1.1 * case.error;
                fully_aged =
                    fully_aged.max(job.deadline.unwrap_or(arrival).max(until) + Seconds(FULLY_AGED_S));
                work += Seconds(slowest + 10.0 * RESTART_S);
                give_up = fully_aged + work;
            }
            truth.insert(job.id.clone(), longer);
            refused.insert(job.id.clone(), until);
            snapshot.jobs.push(job);
            count += 1;
            arrival = arrival - Seconds(case.gap() * libm::log(1.0 - numbers.random::<f64>()));
        }
        for job in &mut snapshot.jobs {
            if refused[&job.id] <= snapshot.now {
                job.forbidden.clear();
            }
        }
        let plan = decide(&snapshot).unwrap();
        snapshot.prices.clone_from(&plan.prices);
        let now = snapshot.now;
        let mut next = (now + Seconds(TICK_S)).min(arrival);
        for job in &mut snapshot.jobs {
            let Some(goes) = plan.jobs[&job.id].decision.placement() else {
                runs.remove(&job.id);
                job.state = JobState::Waiting;
                continue;
            };
            waits.remove(&job.id);
            if !runs.get(&job.id).is_some_and(|run| run.place.same_gpus(goes)) {
                let restarting = if job.epochs_left < 1.0 { RESTART_S } else { 0.0 };
                runs.insert(job.id.clone(), Run { place: goes.clone(), restarting });
                job.state = JobState::Running { placement: goes.clone(), since: now };
            }
            let left = runs[&job.id].restarting + job.epochs_left * seconds(job, goes) * truth[&job.id];
            next = next.min(now + Seconds(left.max(1.0)));
        }
        let passed = (next - now).0;
        snapshot.now = next;
        for job in &mut snapshot.jobs {
            let Some(run) = runs.get_mut(&job.id) else { continue };
            let trained = (passed - run.restarting).max(0.0);
            run.restarting = (run.restarting - passed).max(0.0);
            job.epochs_left -= trained / seconds(job, &run.place) / truth[&job.id];
        }
        snapshot.jobs.retain(|job| {
            let done = job.epochs_left <= 1e-9;
            if done {
                runs.remove(&job.id);
                lives.remove(&job.id);
            }
            !done
        });
    }
    (waits, lives)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, max_shrink_iters: 60, ..ProptestConfig::default() })]

    #[test]
    fn every_job_starts_at_last_and_ends(case in cases(), method in prop::sample::select(methods::all())) {
        let (waits, lives) = left_over(&case, method);
        prop_assert!(waits.is_empty(), "{method}: {waits:?} never started");
        prop_assert!(lives.is_empty(), "{method}: {lives:?} never ended");
    }
}

/// Whether somebody never starts at twice the work that the cluster can do, if nobody's turn comes by waiting.
#[allow(dead_code, reason = "only some methods let somebody wait for ever")]
pub fn somebody_never_starts_without_ageing(method: Method, seed: u64) -> bool {
    let nodes = vec![(0, 4), (1, 2)];
    let case = Case { seed, nodes, load: 2.0, budget: None, error: 1.0, aging: false };
    !left_over(&case, method).0.is_empty()
}
