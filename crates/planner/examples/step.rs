//! How long one decision takes: `cargo run --release -p andreas-planner --example step -- METHOD JOBS NODES [REPEATS]
//! [INSTANCES] [TRIALS] [GAP]`.
//!
//! A third of the GPUs is held by running jobs; the rest of the jobs waits. Prints milliseconds per decision, the
//! cost and how many jobs run.

use std::time::Instant;

use andreas_core::{CostRate, EnergyPrice, GpuCount, Seconds, StepFunction, Time, Watts};
use andreas_planner::{
    DEFAULT_WEAR, Estimate, GpuTypeInfo, Job, JobState, Lateness, MethodName, Node, Options, Placement,
    Resources, Snapshot, Worker, plan,
};

/// Speed of a GPU against the slowest type, its idle and its training watts, GPUs per node.
const TYPES: [(&str, f64, f64, f64, u32); 4] = [
    ("T4", 1.0, 10.0, 65.0, 4),
    ("V100", 3.0, 40.0, 230.0, 8),
    ("A100", 6.5, 50.0, 330.0, 8),
    ("H100", 12.0, 60.0, 560.0, 8),
];

/// A small generator, so that every run measures the same instance.
struct SeededRng(u64);

impl SeededRng {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.next()
    }
}

fn job(i: usize, now: f64, rng: &mut SeededRng) -> Job {
    let hours = 0.5 * (96.0_f64).powf(rng.next());
    let (base, scaling) = (hours * 3600.0 * 6.5 / 100.0, rng.between(0.7, 0.95));
    let estimates = TYPES.iter().flat_map(|(name, speed, _, watts, widest)| {
        [1, 2, 4, 8].into_iter().filter(|g| g <= widest).map(move |gpus: u32| Estimate {
            rel_std: 0.1,
            ..Estimate::new(
                (*name).into(),
                GpuCount(gpus),
                Seconds(base / speed / f64::from(gpus).powf(scaling)),
                Watts(watts * f64::from(gpus)),
            )
        })
    });
    let submit = now - rng.between(0.0, 40_000.0);
    let deadline = Some(Time(submit + hours * 3600.0 * rng.between(0.3, 1.5)));
    let weight = CostRate(rng.between(0.1, 10.0) * 0.02 / 3600.0 * 10.0);
    Job {
        deadline,
        requested_gpus: Some(GpuCount(1 << (rng.next() * 4.0) as u32)),
        worker: Worker {
            per_gpu: Resources { cpu_milli: Some(8000), ..Resources::default() },
            ..Worker::default()
        },
        min_run: Seconds(300.0),
        lost: Seconds(60.0),
        ..Job::new(
            format!("team/job-{i:05}").into(),
            "team".into(),
            Time(submit),
            weight,
            100.0,
            estimates.collect(),
        )
    }
}

fn instance(jobs: usize, nodes: usize, seed: u64) -> Snapshot {
    let (now, mut rng) = (1e6, SeededRng(seed));
    let nodes: Vec<Node> = (0..nodes)
        .map(|i| {
            let (kind, _, _, _, gpus) = TYPES[i % TYPES.len()];
            Node {
                host_busy: Watts(200.0),
                free: Resources { cpu_milli: Some(96_000), pods: Some(110), ..Resources::default() },
                ..Node::new(format!("node-{i:05}").into(), kind.into(), GpuCount(gpus))
            }
        })
        .collect();
    let mut jobs: Vec<Job> = (0..jobs).map(|i| job(i, now, &mut rng)).collect();
    for (node, job) in nodes.iter().step_by(3).zip(&mut jobs) {
        job.state = JobState::Running {
            placement: Placement {
                gpu_type: node.gpu_type.clone(),
                nodes: vec![node.name.clone()],
                gpus_per_node: GpuCount(4),
                limit: None,
            },
            since: Time(now - 1000.0),
        };
    }
    Snapshot {
        now: Time(now),
        tariff: StepFunction::flat(EnergyPrice::per_kwh(0.2, 1.3)),
        budget: None,
        lateness: Lateness {
            turnaround_share: 0.1,
            late_fixed: Seconds(900.0),
            aging: Some(Seconds(86_400.0)),
        },
        restart: Seconds(120.0),
        wear: DEFAULT_WEAR,
        horizon: None,
        gpu_types: TYPES
            .iter()
            .map(|(name, _, idle, watts, _)| GpuTypeInfo {
                name: (*name).into(),
                idle: Watts(*idle),
                max: Watts(watts * 1.1),
            })
            .collect(),
        nodes,
        namespaces: vec![],
        jobs,
        prices: None,
        intended: vec![],
    }
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |i: usize, or: usize| args.get(i).and_then(|a| a.parse().ok()).unwrap_or(or);
    let method: MethodName = args.first().and_then(|a| a.parse().ok()).unwrap_or_default();
    let trials = number(5, 1000) as u64;
    let gap = args.get(6).and_then(|a| a.parse().ok()).unwrap_or(0.0);
    let options = Options { method, trials, gap, ..Options::default() };
    let (mut gaps, mut worst, mut proven, mut times) = (0.0, 0.0_f64, 0, Vec::new());
    let seeds = number(4, 1);
    for seed in 0..seeds {
        let mut snapshot = instance(number(1, 1000), number(2, 100), 42 + seed as u64);
        for repeat in 0..number(3, 3) {
            let start = Instant::now();
            let plan = match plan(&snapshot, &options) {
                Ok(plan) => plan,
                Err(error) => return println!("{error}"),
            };
            let ms = start.elapsed().as_secs_f64() * 1e3;
            let running = plan.jobs.values().filter(|j| j.decision.placement().is_some()).count();
            let gap = plan.gap.map_or_else(|| "no bound".into(), |gap| format!("gap {:.4} %", gap * 100.0));
            if seeds == 1 {
                println!(
                    "{method}: {ms:.2} ms, cost {:.6}, {gap}, {running} run, {} trials",
                    plan.cost, plan.trials
                );
            }
            times.push(ms);
            if repeat == 0 {
                gaps += plan.gap.unwrap_or(0.0) / seeds as f64;
                worst = worst.max(plan.gap.unwrap_or(0.0));
                proven += usize::from(plan.gap.is_some_and(|gap| gap < 1e-6));
            }
            // From the second time on with the prices of the first.
            snapshot.prices = plan.prices;
        }
    }
    times.sort_by(f64::total_cmp);
    println!(
        "{method}: {seeds} instances, gap mean {:.4} %, worst {:.4} %, proven {proven}; median {:.2} ms, worst {:.2} ms",
        gaps * 100.0,
        worst * 100.0,
        times[times.len() / 2],
        times[times.len() - 1]
    );
}
