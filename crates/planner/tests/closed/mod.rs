//! A closed loop: jobs arrive, a method decides at every event, time passes, the bill is summed up.
//!
//! Ten nodes of four GPU types, jobs of half an hour to two days of a reference GPU, deadlines at 0.3 to 1.5 times
//! that. The bill is that of the planner's contract: energy of jobs and overhead of busy nodes, tardiness, a fixed
//! price of a miss, a share for time in the system; energy of idle GPUs apart. A change costs a restart.

// Each of the programs that include this file uses a part of it.
#![allow(dead_code, clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::time::Instant;

use andreas_model::{CostRate, EnergyPrice, GpuCount, JobId, Seconds, StepFunction, Time, Watts};
use andreas_planner::{
    DEFAULT_WEAR, Estimate, GpuTypeInfo, Job, JobState, Lateness, LimitEffect, LimitsCount, Node, Placement,
    Plan, PowerBudget, Preemption, Resources, Snapshot, Worker,
};

/// Speed of a GPU against the slowest type, its idle and its training watts.
const TYPES: [(&str, f64, f64, f64); 4] = [
    ("T4", 1.0, 10.0, 65.0),
    ("V100", 3.0, 40.0, 230.0),
    ("A100", 6.5, 50.0, 330.0),
    ("H100", 12.0, 60.0, 560.0),
];
/// Type, GPUs and number of the nodes.
const NODES: [(&str, u32, usize); 5] =
    [("T4", 2, 2), ("V100", 4, 3), ("A100", 4, 2), ("A100", 8, 2), ("H100", 8, 1)];
/// Power limits as part of the most that a GPU draws, with the factors on time and power: the medians of what Zeus
/// (You et al., NSDI 2023) measured for BERT on V100s, rounded.
const LIMITS: [(f64, f64, f64); 4] =
    [(0.8, 1.03, 0.90), (0.7, 1.045, 0.84), (0.6, 1.09, 0.775), (0.5, 1.185, 0.69)];
/// Overhead of a busy node, watts.
const OVERHEAD_W: f64 = 200.0;
pub const PRICE_PER_KWH: f64 = 0.20;

/// A small generator, so that every run measures the same instance.
pub struct SeededRng(pub u64);

impl SeededRng {
    pub fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1_u64 << 53) as f64
    }

    pub fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.next()
    }
}

/// What is replayed.
#[derive(Clone)]
pub struct Load {
    pub jobs: usize,
    /// Mean seconds between arrivals.
    pub gap: f64,
    pub seed: u64,
    pub restart: f64,
    /// Seconds of its weight and draw that a restart must be worth to the planner besides.
    pub wear: f64,
    pub share: f64,
    pub late_fixed: f64,
    /// Deadlines at this many times the time on one reference GPU.
    pub deadlines: (f64, f64),
    /// Budget in watts.
    pub budget: Option<f64>,
    /// From when on the budget is another one, and which.
    pub windows: Vec<(f64, f64)>,
    /// Clusters of ten nodes.
    pub clusters: usize,
    /// Standard deviation of the logarithm of the error of predicted times.
    pub error: f64,
    /// Everything takes this many times less: arrivals, runs, deadlines, and the longest time between decisions.
    pub pace: f64,
    /// A job is left alone until it has run for this long.
    pub min_run: f64,
    /// Whether GPUs may be run at power limits.
    pub limits: bool,
    /// Weights are this many times as large: money for a second late, and with it for a share of time in the system.
    pub weights: f64,
}

impl Default for Load {
    fn default() -> Self {
        Self {
            jobs: 400,
            gap: 450.0,
            seed: 1,
            restart: 120.0,
            wear: DEFAULT_WEAR.0,
            share: 0.1,
            late_fixed: 900.0,
            deadlines: (0.3, 1.5),
            budget: None,
            windows: Vec::new(),
            clusters: 1,
            error: 0.0,
            pace: 1.0,
            min_run: 0.0,
            limits: false,
            weights: 1.0,
        }
    }
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Bill {
    pub energy: f64,
    pub overhead: f64,
    pub idle: f64,
    pub tardiness: f64,
    pub misses: f64,
    pub turnaround: f64,
    pub late: usize,
    pub mean_hours: f64,
    pub restarts: f64,
    /// Most watts above the budget: by the plans, and by the draw.
    pub above: f64,
    pub decisions: usize,
    pub mean_ms: f64,
    pub worst_ms: f64,
    pub gap: f64,
}

impl Bill {
    /// The total of the contract; idle energy is reported apart.
    pub fn total(&self) -> f64 {
        self.energy + self.overhead + self.tardiness + self.misses + self.turnaround
    }
}

fn job(i: usize, submit: f64, load: &Load, rng: &mut SeededRng) -> (Job, Vec<f64>) {
    // Hours of one V100.
    let hours = 0.5 * 96.0_f64.powf(rng.next()) / load.pace;
    let (base, scaling) = (hours * 3600.0 * 3.0 / 100.0, rng.between(0.7, 0.95));
    let mut truth = Vec::new();
    let mut estimates = Vec::new();
    for (name, speed, _, watts) in TYPES {
        let affinity = rng.between(0.8, 1.25);
        let wrong = (load.error * normal(rng)).exp();
        for gpus in [1_u32, 2, 4, 8] {
            let epoch = base / (speed * affinity) / f64::from(gpus).powf(scaling);
            truth.push(epoch);
            estimates.push(Estimate {
                gpu_type: name.into(),
                gpus: GpuCount(gpus),
                epoch: Seconds(epoch * wrong),
                power: Watts(watts * f64::from(gpus)),
                draw: None,
                rel_std: load.error,
            });
        }
    }
    let late = rng.between(load.deadlines.0, load.deadlines.1);
    let job = Job {
        id: format!("team/job-{i:05}").into(),
        namespace: "team".into(),
        submit: Time(submit),
        deadline: Some(Time(submit + hours * 3600.0 * late)),
        weight: CostRate(rng.between(0.1, 10.0) * 0.02 / 3600.0 * 10.0 * load.weights),
        epochs_left: 100.0,
        estimates: estimates.into(),
        spread: vec![],
        limits: if load.limits { limits() } else { vec![] },
        limits_count: LimitsCount::AtOnce,
        unknown: None,
        requested_gpus: Some(GpuCount([1, 1, 2, 4][(rng.next() * 4.0) as usize])),
        worker: Worker::default(),
        candidates: None,
        forbidden: vec![],
        refused_workers: vec![],
        preemption: Preemption::Allowed,
        movable: true,
        grace: Seconds::ZERO,
        min_run: Seconds(load.min_run),
        lost: Seconds::ZERO,
        usually_lost: None,
        restart: None,
        restarts_last_day: 0,
        promised: false,
        state: JobState::Waiting,
    };
    (job, truth)
}

fn limits() -> Vec<LimitEffect> {
    let of = |(name, _, _, watts): &(&str, f64, f64, f64)| {
        let (name, most) = (*name, watts * 1.1);
        LIMITS.map(|(part, time_factor, power_factor)| LimitEffect {
            gpu_type: name.into(),
            limit: Watts(most * part),
            time_factor,
            power_factor,
        })
    };
    TYPES.iter().flat_map(of).collect()
}

fn normal(rng: &mut SeededRng) -> f64 {
    (0..12).map(|_| rng.next()).sum::<f64>() - 6.0
}

/// The cluster without jobs.
pub fn cluster(load: &Load) -> Snapshot {
    let mut nodes = Vec::new();
    for _ in 0..load.clusters {
        for (kind, gpus, count) in NODES {
            for _ in 0..count {
                nodes.push(Node {
                    name: format!("node-{:04}", nodes.len()).into(),
                    gpu_type: kind.into(),
                    gpus: GpuCount(gpus),
                    boards: GpuCount(gpus),
                    free_gpus: GpuCount(gpus),
                    host_idle: Watts::ZERO,
                    host_busy: Watts(OVERHEAD_W),
                    sleep: None,
                    foreign_power: None,
                    gang_class: 0,
                    free: Resources::default(),
                });
            }
        }
    }
    Snapshot {
        now: Time(0.0),
        tariff: StepFunction::flat(EnergyPrice::per_kwh(PRICE_PER_KWH, 1.0)),
        budget: load.budget.map(|watts| PowerBudget {
            watts: {
                let windows = load.windows.iter().map(|(from, watts)| (Time(*from), Watts(*watts)));
                StepFunction::new(std::iter::once((Time(0.0), Watts(watts))).chain(windows).collect())
                    .unwrap()
            },
            margin: 0.0,
            scope_factor: 1.0,
        }),
        lateness: Lateness {
            turnaround_share: load.share,
            late_fixed: Seconds(load.late_fixed),
            aging: Some(Seconds(86_400.0)),
        },
        restart: Seconds(load.restart),
        wear: Seconds(load.wear),
        gpu_types: TYPES
            .iter()
            .map(|(name, _, idle, watts)| GpuTypeInfo {
                name: (*name).into(),
                idle: Watts(*idle),
                max: Watts(watts * 1.1),
            })
            .collect(),
        nodes,
        namespaces: vec![],
        jobs: vec![],
        prices: None,
        intended: vec![],
    }
}

/// A job on its way.
struct ActiveJob {
    truth: Vec<f64>,
    /// Seconds of a restart that are still to pass.
    restarting: f64,
    /// Restarts, the oldest first.
    restarts: Vec<Time>,
    on: Option<Placement>,
}

/// The jobs of a load in order of submission, with the true seconds of an epoch for each row of their tables.
pub fn arrivals(load: &Load) -> Vec<(Job, Vec<f64>)> {
    let mut rng = SeededRng(load.seed);
    let mut coming = Vec::new();
    let mut submit = 0.0;
    for i in 0..load.jobs {
        coming.push(job(i, submit, load, &mut rng));
        submit -= load.gap / load.pace / load.clusters as f64 * (1.0 - rng.next()).ln();
    }
    coming
}

/// Replays a load with a method.
pub fn replay(load: &Load, decide: &mut dyn FnMut(&Snapshot) -> Plan) -> Bill {
    let mut snapshot = cluster(load);
    let mut coming = arrivals(load).into_iter().peekable();
    let mut live: BTreeMap<JobId, ActiveJob> = BTreeMap::new();
    let mut bill = Bill::default();
    let mut gaps = (0.0, 0.0);
    let e = EnergyPrice::per_kwh(PRICE_PER_KWH, 1.0).0;
    loop {
        while let Some((job, truth)) = coming.next_if(|(j, _)| j.submit <= snapshot.now) {
            live.insert(job.id.clone(), ActiveJob { truth, restarting: 0.0, restarts: vec![], on: None });
            snapshot.jobs.push(job);
        }
        if snapshot.jobs.is_empty() {
            match coming.peek() {
                Some((job, _)) => snapshot.now = job.submit,
                None => break,
            }
            continue;
        }
        for job in &mut snapshot.jobs {
            let day_ago = snapshot.now - Seconds(86_400.0 / load.pace);
            job.restarts_last_day = live[&job.id].restarts.iter().filter(|at| **at > day_ago).count() as u32;
        }
        let start = Instant::now();
        let plan = decide(&snapshot);
        let ms = start.elapsed().as_secs_f64() * 1e3;
        bill.decisions += 1;
        bill.mean_ms += ms;
        bill.worst_ms = bill.worst_ms.max(ms);
        if let Some(gap) = plan.gap {
            gaps = (gaps.0 + gap, gaps.1 + 1.0);
        }
        if let Some(allowed) = plan.allowed_power {
            bill.above = bill.above.max(plan.budgeted_power.0 - allowed.0);
        }
        snapshot.prices.clone_from(&plan.prices);
        snapshot.intended.clone_from(&plan.intended);
        let now = snapshot.now;
        let mut next = coming.peek().map_or(f64::INFINITY, |(j, _)| (j.submit - now).0);
        next = next.min(900.0 / load.pace);
        let edge = snapshot.budget.as_ref().and_then(|b| b.watts.next_edge(now));
        next = edge.map_or(next, |edge| next.min((edge - now).0));
        let mut watts = (0.0, 0.0, 0.0);
        let mut used: BTreeMap<&str, u32> = BTreeMap::new();
        for job in &mut snapshot.jobs {
            let at = live.get_mut(&job.id).unwrap();
            let goes = plan.jobs[&job.id].decision.placement();
            let started = job.epochs_left < 100.0;
            if let (Some(goes), Some(on)) = (goes, &mut at.on)
                && goes.same_gpus(on)
            {
                // Another limit costs nothing.
                on.limit = goes.limit;
                if let JobState::Running { placement, .. } = &mut job.state {
                    placement.limit = goes.limit;
                }
            } else if goes != at.on.as_ref() {
                if started && goes.is_some() {
                    bill.restarts += 1.0;
                    at.restarts.push(now);
                }
                at.restarting = if started { load.restart } else { 0.0 };
                at.on = goes.cloned();
                job.state = match goes {
                    Some(goes) => JobState::Running { placement: goes.clone(), since: now },
                    None => JobState::Waiting,
                };
            }
            if let Some(on) = goes {
                let row = row(job, on);
                let (slower, thriftier) = limited(job, on);
                watts.0 += job.estimates[row].power.0 * thriftier;
                next = next.min(at.restarting + job.epochs_left * at.truth[row] * slower);
                for node in &on.nodes {
                    let at = snapshot.nodes.iter().position(|n| n.name == *node).unwrap();
                    *used.entry(snapshot.nodes[at].name.as_str()).or_default() += on.gpus_per_node.0;
                }
            }
        }
        for node in &snapshot.nodes {
            let used = used.get(node.name.as_str()).copied().unwrap_or(0);
            let info = snapshot.gpu_types.iter().find(|t| t.name == node.gpu_type).unwrap();
            watts.1 += if used > 0 { node.overhead().0 } else { 0.0 };
            watts.2 += f64::from(node.gpus.0.checked_sub(used).unwrap()) * info.idle.0;
        }
        if let Some(budget) = snapshot.budget.as_ref().and_then(|budget| budget.watts.at(now)) {
            bill.above = bill.above.max(watts.0 + watts.1 + watts.2 - budget.0);
        }
        bill.energy += watts.0 * next * e;
        bill.overhead += watts.1 * next * e;
        bill.idle += watts.2 * next * e;
        snapshot.now = now + Seconds(next);
        let now = snapshot.now;
        for job in &mut snapshot.jobs {
            let at = live.get_mut(&job.id).unwrap();
            if let Some(on) = &at.on {
                let trained = (next - at.restarting).max(0.0);
                at.restarting = (at.restarting - next).max(0.0);
                job.epochs_left -= trained / (at.truth[row(job, on)] * limited(job, on).0);
            }
        }
        snapshot.jobs.retain(|job| {
            let done = job.epochs_left <= 1e-9;
            if done {
                let late = (now - job.deadline.unwrap()).0.max(0.0);
                bill.tardiness += job.weight.0 * late;
                bill.misses += if late > 0.0 { job.weight.0 * load.late_fixed } else { 0.0 };
                bill.late += usize::from(late > 0.0);
                bill.turnaround += job.weight.0 * load.share * (now - job.submit).0;
                bill.mean_hours += (now - job.submit).0 / 3600.0 / load.jobs as f64;
                live.remove(&job.id);
            }
            !done
        });
    }
    bill.mean_ms /= bill.decisions as f64;
    bill.gap = if gaps.1 > 0.0 { gaps.0 / gaps.1 } else { 0.0 };
    bill.restarts /= load.jobs as f64;
    bill
}

fn row(job: &Job, on: &Placement) -> usize {
    let same = |e: &Estimate| e.gpu_type == on.gpu_type && e.gpus == on.total_gpus();
    job.estimates.iter().position(same).unwrap()
}

/// Factors on time and power of the limit at which a job runs.
fn limited(job: &Job, on: &Placement) -> (f64, f64) {
    let same = |l: &&LimitEffect| l.gpu_type == on.gpu_type && Some(l.limit) == on.limit;
    job.limits.iter().find(same).map_or((1.0, 1.0), |l| (l.time_factor, l.power_factor))
}
