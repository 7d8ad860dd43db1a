//! Random instances of one decision, the same in every run.

use andreas_model::{CostRate, EnergyPrice, GpuCount, Seconds, StepFunction, Time, Watts};
use andreas_planner::{
    DEFAULT_WEAR, Estimate, GpuTypeInfo, Job, JobState, Lateness, Node, Placement, Resources, Snapshot,
    Worker,
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

/// Jobs on nodes at one instant; a third of the nodes have four GPUs held by a running job.
pub fn instance(jobs: usize, nodes: usize, seed: u64) -> Snapshot {
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
