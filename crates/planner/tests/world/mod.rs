//! Random clusters for property tests, carrying a plan out, and an audit that counts everything again by name.

pub mod lowered;
pub mod order;

use std::collections::BTreeMap;
use std::sync::Arc;

use andreas_model::{
    CostRate, EnergyPrice, GpuCount, GpuType, JobId, NamespaceName, NodeName, Seconds, StepFunction, Time,
    Watts,
};
use andreas_planner::{
    Decision, Estimate, GpuTypeInfo, Job, JobState, Lateness, LimitEffect, MultiNodeEffect, Namespace, Node,
    Placement, Plan, PowerBudget, Preemption, Resources, Snapshot, Worker,
};
use proptest::prelude::*;

const TYPES: [&str; 3] = ["A100", "T4", "V100"];
const NOW: f64 = 1_000_000.0;

fn node(i: usize) -> impl Strategy<Value = Node> {
    let free = (any::<bool>(), 0..64_000_u64, 0..8_u64).prop_map(|(limited, cpu, pods)| Resources {
        cpu_milli: limited.then_some(cpu),
        memory_bytes: None,
        pods: limited.then_some(pods),
        others: BTreeMap::new(),
    });
    (0..3_usize, 1..=8_u32, 0..=2_u32, 0.0..400.0, free).prop_map(
        move |(kind, gpus, foreign, overhead, free)| Node {
            free_gpus: GpuCount(gpus.saturating_sub(foreign)),
            host_busy: Watts(overhead),
            free,
            ..Node::new(NodeName::from(format!("n{i:02}")), TYPES[kind].into(), GpuCount(gpus))
        },
    )
}

fn estimates() -> impl Strategy<Value = Arc<[Estimate]>> {
    let rows = prop::collection::vec((1.0..4000.0, 50.0..400.0, 0.0..0.5, 0.5..1.0), 1..=3);
    rows.prop_map(|rows| {
        let by_type = rows.into_iter().zip(TYPES).flat_map(|((epoch, watts, rel_std, scaling), kind)| {
            [1_u32, 2, 4, 8].into_iter().map(move |gpus| Estimate {
                rel_std: if rel_std < 0.2 { 0.0 } else { rel_std },
                ..Estimate::new(
                    kind.into(),
                    GpuCount(gpus),
                    Seconds(epoch / f64::from(gpus).powf(scaling)),
                    Watts(watts * f64::from(gpus)),
                )
            })
        });
        by_type.collect()
    })
}

fn job(i: usize) -> impl Strategy<Value = (Job, u8, usize)> {
    let who = (0..2_u8, -2e5..0.0_f64, prop::option::of(-5e4..3e5_f64), 1e-5..1e-2_f64, 0.1..60.0_f64);
    let how = (
        any::<bool>(),
        any::<bool>(),
        prop::option::of(prop::collection::vec(0..8_usize, 0..6)),
        prop::collection::vec(0..8_usize, 0..2),
        0..12_000_u64,
    );
    let held = (any::<bool>(), prop::bool::weighted(0.2), prop::bool::weighted(0.2), 0..5_u8, 0..1000_usize);
    (who, how, held, estimates()).prop_map(move |(who, how, held, estimates)| {
        let (namespace, submit, deadline, weight, epochs_left) = who;
        let (gang, limits, candidates, forbidden, cpu) = how;
        let (movable, never, young, state, pick) = held;
        let names = |list: Vec<usize>| list.into_iter().map(|n| NodeName::from(format!("n{n:02}"))).collect();
        let job = Job {
            deadline: deadline.map(|d| Time(NOW + d)),
            spread: if gang { vec![MultiNodeEffect { nodes: 2, time_factor: 1.1 }] } else { vec![] },
            limits: if limits {
                vec![LimitEffect {
                    gpu_type: "A100".into(),
                    limit: Watts(200.0),
                    time_factor: 1.1,
                    power_factor: 0.8,
                }]
            } else {
                vec![]
            },
            worker: Worker {
                per_gpu: Resources { cpu_milli: Some(cpu), ..Resources::default() },
                quota_per_gpu: [("requests.nvidia.com/gpu".into(), 1)].into(),
                quota_fixed: [("pods".into(), 1)].into(),
                ..Worker::default()
            },
            candidates: candidates.map(names),
            forbidden: forbidden.into_iter().map(|n| NodeName::from(format!("n{n:02}"))).collect(),
            refused_workers: vec![],
            preemption: if never { Preemption::Never } else { Preemption::Allowed },
            movable,
            grace: Seconds([0.0, 60.0, 120.0][i % 3]),
            min_run: Seconds(if young { 1e6 } else { 0.0 }),
            lost: Seconds(100.0),
            ..Job::new(
                JobId::from(format!("ns{namespace}/job{i:02}")),
                NamespaceName::from(format!("ns{namespace}")),
                Time(NOW + submit),
                CostRate(weight),
                epochs_left,
                estimates,
            )
        };
        (job, state, pick)
    })
}

/// A cluster whose jobs hold no more than there is.
pub fn snapshots() -> impl Strategy<Value = Snapshot> {
    let nodes = (0..7_usize).prop_flat_map(|n| (0..n).map(node).collect::<Vec<_>>());
    let jobs = (0..14_usize).prop_flat_map(|n| (0..n).map(job).collect::<Vec<_>>());
    let rules = (
        prop::option::weighted(0.5, 500.0..9000.0_f64),
        prop::option::of(1e3..1e5_f64),
        0.0..0.3_f64,
        0.0..300.0_f64,
        (0..20_u64, any::<bool>()),
    );
    (nodes, jobs, rules).prop_map(|(nodes, jobs, (budget, aging, share, restart, (quota, limited)))| {
        let price = EnergyPrice::per_kwh(0.2, 1.3);
        let mut snapshot = Snapshot {
            now: Time(NOW),
            tariff: StepFunction::new(vec![
                (Time(0.0), price),
                (Time(NOW + 7200.0), EnergyPrice(price.0 * 2.0)),
            ])
            .unwrap(),
            budget: budget.map(|watts| PowerBudget {
                watts: StepFunction::new(vec![
                    (Time(0.0), Watts(watts)),
                    (Time(NOW + 60.0), Watts(watts * 0.9)),
                ])
                .unwrap(),
                margin: 0.05,
                scope_factor: 1.2,
            }),
            lateness: Lateness {
                turnaround_share: share,
                late_fixed: Seconds(900.0),
                aging: aging.map(Seconds),
            },
            restart: Seconds(restart),
            wear: Seconds(restart / 2.0),
            gpu_types: TYPES
                .iter()
                .map(|t| GpuTypeInfo { name: GpuType::from(*t), idle: Watts(30.0), max: Watts(400.0) })
                .collect(),
            nodes,
            namespaces: if limited {
                vec![Namespace {
                    name: "ns0".into(),
                    quota: [("requests.nvidia.com/gpu".into(), quota), ("pods".into(), 5)].into(),
                }]
            } else {
                vec![]
            },
            jobs: vec![],
            prices: None,
            intended: vec![],
        };
        for (job, state, pick) in jobs {
            add_job_in_state(&mut snapshot, job, state, pick);
        }
        snapshot
    })
}

/// Adds a job in this state, or waiting if its GPUs are not free.
fn add_job_in_state(snapshot: &mut Snapshot, mut job: Job, state: u8, pick: usize) {
    let since = Time(NOW - 5000.0);
    if let Some(node) = snapshot.nodes.get(pick % snapshot.nodes.len().max(1)) {
        let placement = Placement {
            gpu_type: node.gpu_type.clone(),
            nodes: vec![node.name.clone()],
            gpus_per_node: GpuCount([1, 2, 4][pick % 3]),
            limit: None,
        };
        let gone_by = Time(NOW + 60.0);
        job.state = match state {
            0 | 1 => JobState::Running { placement, since },
            2 => JobState::Stopping { holds: placement, target: None, gone_by },
            3 if pick.is_multiple_of(2) => JobState::Starting { target: placement, since },
            3 => JobState::Stopping { target: Some(placement.clone()), holds: placement, gone_by },
            _ => JobState::Waiting,
        };
    }
    snapshot.jobs.push(job);
    if !fits(snapshot, &held(snapshot), true) {
        snapshot.jobs.last_mut().unwrap().state = JobState::Waiting;
    }
}

type Held = Vec<(usize, Placement)>;

/// What jobs hold and are promised now: a stopping job with a target on the same node counts once.
fn held(snapshot: &Snapshot) -> Held {
    let of = |(i, job): (usize, &Job)| match &job.state {
        JobState::Waiting => None,
        JobState::Starting { target: p, .. }
        | JobState::Running { placement: p, .. }
        | JobState::Stopping { holds: p, .. } => Some((i, p.clone())),
    };
    snapshot.jobs.iter().enumerate().filter_map(of).collect()
}

/// What is taken once jobs are there; a stopping job's larger part where it goes on where it was.
fn taken(snapshot: &Snapshot, assignments: &Placements) -> Held {
    let mut taken = Held::new();
    for (i, job) in snapshot.jobs.iter().enumerate() {
        let goes = assignments[&job.id].as_ref();
        let stays = match &job.state {
            JobState::Stopping { holds, .. } => Some(holds),
            _ => None,
        };
        match (stays, goes) {
            (Some(holds), Some(goes)) if holds.nodes == goes.nodes => {
                taken.push((i, if holds.gpus_per_node > goes.gpus_per_node { holds } else { goes }.clone()));
            }
            (stays, goes) => taken.extend(stays.into_iter().chain(goes).map(|p| (i, p.clone()))),
        }
    }
    taken
}

/// Whether GPUs, CPU, pods and, if asked, quotas suffice.
fn fits(snapshot: &Snapshot, taken: &Held, quotas: bool) -> bool {
    let mut gpus: BTreeMap<&NodeName, u64> = BTreeMap::new();
    let mut cpu: BTreeMap<&NodeName, u64> = BTreeMap::new();
    let mut pods: BTreeMap<&NodeName, u64> = BTreeMap::new();
    let mut quota: BTreeMap<(&NamespaceName, &str), u64> = BTreeMap::new();
    for (i, place) in taken {
        let job = &snapshot.jobs[*i];
        let count = u64::from(place.gpus_per_node.0);
        for name in &place.nodes {
            *gpus.entry(name).or_default() += count;
            *cpu.entry(name).or_default() += count * job.worker.per_gpu.cpu_milli.unwrap_or(0);
            *pods.entry(name).or_default() += 1;
        }
        let workers = place.nodes.len() as u64;
        *quota.entry((&job.namespace, "requests.nvidia.com/gpu")).or_default() += workers * count;
        *quota.entry((&job.namespace, "pods")).or_default() += workers;
    }
    let nodes = snapshot.nodes.iter().all(|node| {
        let of = |m: &BTreeMap<&NodeName, u64>| m.get(&node.name).copied().unwrap_or(0);
        of(&gpus) <= u64::from(node.free_gpus.0)
            && node.free.cpu_milli.is_none_or(|free| of(&cpu) <= free)
            && node.free.pods.is_none_or(|free| of(&pods) <= free)
    });
    let left = |ns: &Namespace| {
        ns.quota.iter().all(|(key, left)| quota.get(&(&ns.name, key)).copied().unwrap_or(0) <= *left)
    };
    nodes && (!quotas || snapshot.namespaces.iter().all(left))
}

/// Time and watts of a job somewhere; of a configuration that is not in its table, those of the planner's rule.
fn draw(job: &Job, place: &Placement) -> f64 {
    let rows = job.estimates.iter().filter(|row| row.gpu_type == place.gpu_type);
    let nearest = rows.min_by_key(|row| (row.gpus.0.abs_diff(place.total_gpus().0), row.gpus));
    let limit = |l: &&LimitEffect| l.gpu_type == place.gpu_type && Some(l.limit) == place.limit;
    let factor = job.limits.iter().find(limit).map_or(1.0, |l| l.power_factor);
    let total = f64::from(place.total_gpus().0);
    nearest.map_or(400.0 * total, |row| row.power.0 / f64::from(row.gpus.0) * total) * factor
}

/// Watts besides those of the GPUs of our jobs.
fn idle_and_hosts(snapshot: &Snapshot, taken: &Held) -> f64 {
    let mut watts = 0.0;
    for node in &snapshot.nodes {
        let on = |p: &Placement| p.nodes.contains(&node.name);
        let ours: u32 = taken.iter().filter(|(_, p)| on(p)).map(|(_, p)| p.gpus_per_node.0).sum();
        let info = snapshot.gpu_types.iter().find(|t| t.name == node.gpu_type).unwrap();
        watts += f64::from(node.gpus.0 - node.free_gpus.0) * info.max.0;
        watts += (f64::from(node.free_gpus.0) - f64::from(ours)) * info.idle.0;
        watts += if ours > 0 { node.overhead().0 } else { 0.0 };
    }
    watts
}

/// Budgeted power in the scope of the budget with jobs there, as the contract defines it.
pub fn budgeted(snapshot: &Snapshot, assignments: &Placements) -> f64 {
    let taken = taken(snapshot, assignments);
    let mut watts = idle_and_hosts(snapshot, &taken);
    for (i, place) in &taken {
        let job = &snapshot.jobs[*i];
        let holds = match &job.state {
            JobState::Stopping { holds, .. } => Some(holds),
            _ => None,
        };
        let both = [holds, assignments[&job.id].as_ref()];
        // Of a job that goes on where it stops, the larger draw counts.
        let same = both.into_iter().flatten().filter(|p| p.nodes == place.nodes);
        watts += same.map(|p| draw(job, p)).fold(0.0, f64::max);
    }
    watts * snapshot.budget.as_ref().map_or(1.0, |b| b.scope_factor)
}

/// Everything a plan must never do.
pub fn audit(snapshot: &Snapshot, plan: &Plan) -> Result<(), TestCaseError> {
    prop_assert_eq!(plan.jobs.len(), snapshot.jobs.len());
    let goes = assignments(plan);
    prop_assert!(fits(snapshot, &taken(snapshot, &goes), true), "over capacity or quota: {:#?}", plan.jobs);
    for job in &snapshot.jobs {
        let decided = &plan.jobs[&job.id];
        for number in [decided.energy.0, decided.on_time, decided.cost.0, decided.finish.map_or(0.0, |t| t.0)]
        {
            prop_assert!(number.is_finite());
        }
        let now = match &job.state {
            JobState::Running { placement: p, .. } | JobState::Starting { target: p, .. } => Some(p),
            JobState::Stopping { target, .. } => target.as_ref(),
            JobState::Waiting => None,
        };
        let Decision::Run(place) = &decided.decision else { continue };
        if Some(place) == now {
            continue;
        }
        let span = place.nodes.len() as u32;
        prop_assert!(span == 1 || job.spread.iter().any(|s| s.nodes == span));
        let row = |row: &Estimate| row.gpu_type == place.gpu_type && row.gpus == place.total_gpus();
        prop_assert!(now.is_some_and(|n| n.same_gpus(place)) || job.estimates.iter().any(row));
        for name in &place.nodes {
            let node = snapshot.nodes.iter().find(|n| n.name == *name).unwrap();
            prop_assert_eq!(&node.gpu_type, &place.gpu_type);
            let kept = now.is_some_and(|n| n.same_gpus(place));
            let admitted =
                job.candidates.as_ref().is_none_or(|c| c.contains(name)) && !job.forbidden.contains(name);
            prop_assert!(kept || admitted, "{name} does not admit {}", job.id);
        }
    }
    // Only a budget below what is held makes the plan stop jobs that the bound takes as given.
    prop_assert!(
        lowered::draws_too_much(snapshot, plan) || !plan.bound_invalid,
        "the bound is above the cost, {}",
        plan.cost
    );
    if let Some(allowed) = plan.allowed_power {
        let power = budgeted(snapshot, &goes);
        prop_assert!((power - plan.budgeted_power.0).abs() < 1.0, "{power} W, not {}", plan.budgeted_power);
        // What is leaving cannot be hastened: without it the budget is kept, or nothing runs.
        let mut left = snapshot.clone();
        left.jobs.iter_mut().for_each(|job| {
            if let JobState::Stopping { .. } = job.state {
                job.state = JobState::Waiting;
            }
        });
        let settled = budgeted(&left, &goes);
        let runs = plan.jobs.values().any(|j| j.decision.placement().is_some());
        prop_assert!(!runs || settled <= allowed.0 + 1e-6, "{settled} W of {allowed} when all have left");
        // Who could not be gone before a lower window fits it now.
        if let Some((after, watts)) = lower_window(snapshot) {
            let stays = |job: &Job| job.grace >= after;
            let mut then = goes.clone();
            left.jobs.iter().filter(|job| !stays(job)).for_each(|job| _ = then.insert(job.id.clone(), None));
            let drawn = budgeted(&left, &then);
            prop_assert!(
                then.values().all(Option::is_none) || drawn <= watts + 1e-6,
                "{drawn} W of {watts} in the lower window"
            );
        }
    }
    order::audit_order(snapshot, plan, (plan.jobs.len() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// Time until the first lower window of the budget, and what plans may use of it, W in the scope of the budget.
pub fn lower_window(snapshot: &Snapshot) -> Option<(Seconds, f64)> {
    let budget = snapshot.budget.as_ref()?;
    let present = budget.watts.at(snapshot.now)?;
    let lower =
        budget.watts.windows().iter().find(|(begin, watts)| *begin > snapshot.now && *watts < present);
    lower.map(|(begin, watts)| (*begin - snapshot.now, watts.0 * (1.0 - budget.margin)))
}

/// The snapshot a moment later, with the plan carried out.
pub fn carried_out(snapshot: &Snapshot, plan: &Plan) -> Snapshot {
    let mut next = snapshot.clone();
    for job in &mut next.jobs {
        let goes = plan.jobs[&job.id].decision.placement().cloned();
        let now = snapshot.now;
        job.state = match (job.state.clone(), goes) {
            (JobState::Stopping { holds, gone_by, .. }, target) => {
                JobState::Stopping { holds, target, gone_by }
            }
            // Who may not be moved takes its time to leave, as in a cluster: until then it is nobody who waits.
            (JobState::Running { placement: holds, .. } | JobState::Starting { target: holds, .. }, None)
                if !job.movable =>
            {
                JobState::Stopping { holds, target: None, gone_by: now + Seconds(60.0) }
            }
            (_, None) => JobState::Waiting,
            (JobState::Running { placement, since }, Some(goes)) => {
                let since = if placement.same_gpus(&goes) { since } else { now };
                JobState::Running { placement: goes, since }
            }
            (JobState::Starting { target, since }, Some(goes)) if target.same_gpus(&goes) => {
                JobState::Starting { target: goes, since }
            }
            (_, Some(placement)) => JobState::Running { placement, since: now },
        };
    }
    next
}

/// Where everybody runs or is to run without a plan.
pub fn present(snapshot: &Snapshot) -> Placements {
    let of = |job: &Job| match &job.state {
        JobState::Waiting => None,
        JobState::Running { placement: p, .. } | JobState::Starting { target: p, .. } => Some(p.clone()),
        JobState::Stopping { target, .. } => target.clone(),
    };
    snapshot.jobs.iter().map(|job| (job.id.clone(), of(job))).collect()
}

/// Where everybody runs, or is to run.
pub type Placements = BTreeMap<JobId, Option<Placement>>;

/// Where a plan has everybody run.
pub fn assignments(plan: &Plan) -> Placements {
    plan.jobs.iter().map(|(id, job)| (id.clone(), job.decision.placement().cloned())).collect()
}
