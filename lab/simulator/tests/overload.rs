//! A cluster that is overloaded for days: no GPU is idle while jobs wait, and what makes jobs faster makes them cheaper.

// Helpers of tests may unwrap as tests do.
#![allow(clippy::unwrap_used)]

use std::fmt::Write;
use std::path::Path;

use andreas_model::Seconds;
use andreas_planner::{MethodName, Options, Snapshot, plan};
use andreas_simulator::readers::{self, Format, TraceRange};
use andreas_simulator::{Conditions, Knowledge, PredictionError, ProductPolicy, Scenario, Summary, replay};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

const DAY: f64 = 86_400.0;
const MODELS: [&str; 6] = ["resnet50", "vgg16", "inception3", "deepspeech2", "bert", "gpt2"];

/// Half of the mixed cluster, and a trace for it: runs of days that come first, then many of hours, most on 8 GPUs.
fn weeks(seed: u64, jobs: usize) -> Scenario {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut trace =
        String::from("job,submission_time,num_iteration,model_name,deadline,batch_size,num_gpu,duration\n");
    let mut submit = 0.0;
    for job in 0..jobs {
        let mut uniform = |from: f64, to: f64| from + (to - from) * rng.random_range(0.0..1.0);
        let long = job < jobs / 15;
        let (gap, seconds, gpus): (f64, f64, &[u32]) = if long {
            (3000.0, uniform(2.5, 7.0) * DAY, &[4, 8, 8])
        } else {
            let normal = (-2.0 * uniform(1e-9, 1.0).ln()).sqrt() * uniform(0.0, std::f64::consts::TAU).cos();
            (3000.0, (9.6 + 1.3 * normal).exp().clamp(600.0, 2e5), &[1, 2, 4, 8, 8, 8, 8])
        };
        submit -= gap * uniform(1e-9, 1.0).ln();
        let deadline = submit + seconds * uniform(1.05, 2.2);
        let mut one_of = |count: usize| rng.random_range(0..count);
        let (model, batch, gpus) = (MODELS[one_of(6)], [64, 128, 256][one_of(3)], gpus[one_of(gpus.len())]);
        let iterations = seconds * 10.0;
        writeln!(
            trace,
            "{job},{submit:.0},{iterations:.0},{model},{deadline:.0},{batch},{gpus},{seconds:.0}"
        )
        .unwrap();
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("weeks.csv");
    std::fs::write(&file, trace).unwrap();
    let cluster = Path::new(env!("CARGO_MANIFEST_DIR")).join("clusters/mixed.yaml");
    let mut scenario = readers::scenario(Format::Itp, &file, &cluster, TraceRange::default()).unwrap();
    let mut nodes = scenario.nodes.iter().cloned().zip(0..).collect::<Vec<_>>();
    nodes.retain(|(_, i)| i % 2 == 0);
    scenario.nodes = nodes.into_iter().map(|(node, _)| node).collect();
    scenario
}

/// The same with gangs over two and four nodes that take so much longer than on one node.
fn spread(mut scenario: Scenario, two: f64, four: f64) -> Scenario {
    for effect in scenario.jobs.iter_mut().flat_map(|job| &mut job.spread) {
        effect.time_factor = if effect.nodes == 2 { two } else { four };
    }
    scenario
}

/// More waiting jobs than this are an overload.
const OVERLOAD: usize = 12;
/// How much dearer one run of such a trace may be than another one by chance: two standard deviations of perturbed runs. Prices that do
/// not clear make it 1.8 to 3.3 times as dear.
const NOISE: f64 = 1.1;
/// Most of GPU time that may be idle under overload. Prices that leave a type alone leave a fifth idle; gangs that do not fit what is
/// free leave up to a twentieth.
const IDLE: f64 = 0.08;

struct Run {
    sum: Summary,
    /// Share of GPU time that was idle under overload.
    idle: f64,
}

fn run(scenario: &Scenario, knowledge: Knowledge, seed: u64) -> Run {
    let options = Options { method: MethodName::RandomizedGreedy, seed, trials: 50, ..Options::default() };
    let error = PredictionError { seed, ..PredictionError::default() };
    // What learning costs by itself: without the product's rules, which all known does not have.
    let policy = ProductPolicy { aging: None, min_run: Seconds::ZERO, ..ProductPolicy::default() };
    let conditions = Conditions { error, knowledge, policy, ..Conditions::default() };
    let gpus: u32 = scenario.nodes.iter().map(|node| node.gpus.0).sum();
    // Under overload: when the last decision was made and the GPUs that it left idle; and GPU seconds so far.
    let (mut last, mut idle, mut total) = (None, 0.0, 0.0);
    let mut decide = |snapshot: &Snapshot| {
        if let Some((since, unused)) = last.take() {
            let seconds: f64 = snapshot.now.0 - since;
            (idle, total) = (idle + f64::from(unused) * seconds, total + f64::from(gpus) * seconds);
        }
        let plan = plan(snapshot, &options)?;
        let placed: Vec<u32> = plan
            .jobs
            .values()
            .filter_map(|job| job.decision.placement().map(|place| place.total_gpus().0))
            .collect();
        if plan.jobs.len() - placed.len() > OVERLOAD {
            last = Some((snapshot.now.0, gpus - placed.iter().sum::<u32>()));
        }
        Ok(plan)
    };
    let replayed = replay(scenario, &conditions, &mut decide, &mut |_| {}).unwrap();
    assert!(
        replayed.summary.unfinished == 0 && total > 0.0,
        "{} unfinished, {total}",
        replayed.summary.unfinished
    );
    Run { sum: replayed.summary, idle: idle / total }
}

#[test]
fn a_faster_network_never_costs_more_and_leaves_no_gpu_idle_while_jobs_wait() {
    let (mut ratios, mut idle) = (Vec::new(), Vec::new());
    for seed in 1..=6 {
        // Given gangs that take as long as on a usual network,
        let scenario = weeks(seed, 160);
        let usual = run(&spread(scenario.clone(), 1.1, 1.25), Knowledge::Tables, 0);
        idle.push(usual.idle);
        // when they take less, or no longer than on one node,
        for (two, four) in [(1.05, 1.1), (1.0, 1.0)] {
            let fast = run(&spread(scenario.clone(), two, four), Knowledge::Tables, 0);
            // then the cost is no higher but for noise, no job is moved all the time, and GPUs are in use.
            let (cost, of) = (fast.sum.total.0, usual.sum.total.0);
            assert!(cost <= NOISE * of, "seed {seed}, {two}: {cost} instead of {of}");
            assert!(fast.sum.restarts <= 3 * 160, "seed {seed}, {two}: {} restarts", fast.sum.restarts);
            ratios.push(cost / of);
            idle.push(fast.idle);
        }
    }
    assert!(mean(&ratios) <= 1.03, "{ratios:?}");
    assert!(mean(&idle) <= 0.03 && idle.iter().all(|idle| *idle <= IDLE), "of GPU time idle: {idle:?}");
}

fn mean(of: &[f64]) -> f64 {
    of.iter().sum::<f64>() / of.len() as f64
}

/// On 160 jobs, where the first, unknown ones are a large share. On 450 it is about half of that (`docs/results.md`).
#[test]
fn learning_costs_about_a_seventh_more_than_knowing_all_and_stops_jobs_no_more_often() {
    let scenario = weeks(1, 160);
    let all_known = run(&scenario, Knowledge::Tables, 0).sum;
    let learning = [1, 2, 3].map(|noise| run(&scenario, Knowledge::Learning, noise).sum);
    let ratios = learning.each_ref().map(|sum| sum.total.0 / all_known.total.0);
    let mean = mean(&ratios);
    // Prices that do not clear cost more than 1.4 times as much, with some noise or other.
    assert!(mean <= 1.15 && ratios.iter().all(|ratio| *ratio <= 1.2), "{ratios:?}");
    let restarts = learning.each_ref().map(|sum| sum.restarts);
    assert!(restarts.iter().all(|of| *of <= 3 * 160), "{restarts:?}");
}

/// Eight GPUs on two nodes; 300 small jobs of one to four minutes, and now and then one of four minutes on the four GPUs of a node, of ten
/// times the weight.
#[test]
fn a_gang_behind_small_jobs_that_nobody_stops_starts_once_a_few_of_them_have_ended() {
    const CLUSTER: &str = "
gpu_types: [{name: NVIDIA-A100-SXM4-80GB, idle_w: 50, max_w: 400}]
nodes: [{gpu_type: NVIDIA-A100-SXM4-80GB, gpus: 4, count: 2}]
tariff: {per_kwh: 0.20, pue: 1.3}
lateness: {price_per_hour: 0.02, turnaround_share: 0.1, miss_s: 900}
restart_s: 20
delays: {first_start_s: 5, stop_s: 5}
jobs: {reference: NVIDIA-A100-SXM4-80GB, epoch_s: 7, weight: 2, weight_by_gpus: {2: 20}, gpus: [1, 1], moldable: 0}
models: [{format: own, file: MODELS}]
";
    for seed in 1..=3 {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut trace = String::from(
            "job,submission_time,num_iteration,model_name,deadline,batch_size,num_gpu,duration\n",
        );
        let mut rows: Vec<(f64, f64, u32)> =
            (0..300).map(|i| (f64::from(i) * 0.1, rng.random_range(60.0..240.0), 1)).collect();
        rows.extend((0..4).map(|i| (500.0 + 600.0 * f64::from(i), 240.0, 4)));
        for (job, (submit, seconds, gpus)) in rows.into_iter().enumerate() {
            let deadline = submit + 86_400.0;
            writeln!(
                trace,
                "{job},{submit:.0},{:.0},resnet50,{deadline:.0},64,{gpus},{seconds:.0}",
                seconds * 10.0
            )
            .unwrap();
        }
        let folder = tempfile::tempdir().unwrap();
        let (file, cluster) = (folder.path().join("gangs.csv"), folder.path().join("cluster.yaml"));
        let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("clusters/models.json");
        std::fs::write(&file, trace).unwrap();
        std::fs::write(&cluster, CLUSTER.replace("MODELS", models.to_str().unwrap())).unwrap();
        let scenario = readers::scenario(Format::Itp, &file, &cluster, TraceRange::default()).unwrap();
        let conditions = Conditions { knowledge: Knowledge::Learning, ..Conditions::default() };
        let options = Options { method: MethodName::RandomizedGreedy, trials: 100, ..Options::default() };
        let replayed =
            replay(&scenario, &conditions, &mut |snapshot| plan(snapshot, &options), &mut |_| {}).unwrap();
        let gangs = replayed.jobs.iter().filter(|job| job.submit.0 >= 500.0);
        let waits: Vec<f64> = gangs.map(|job| job.start.unwrap().0 - job.submit.0).collect();
        // At its turn by cost it would start within four minutes, if the nodes were in one piece.
        assert!(waits.len() == 4 && waits.iter().all(|wait| *wait <= 600.0), "seed {seed}: {waits:?}");
    }
}
