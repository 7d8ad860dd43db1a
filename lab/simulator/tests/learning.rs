//! Replays in which times are predicted: what learning is worth, and that they repeat.

// Helpers of tests may unwrap as tests do.
#![allow(clippy::unwrap_used)]

use std::path::Path;

use andreas_planner::{MethodName, Options, Snapshot, plan};
use andreas_predictor::mean_over_median;
use andreas_simulator::readers::{self, Format, TraceRange};
use andreas_simulator::{Conditions, Knowledge, PredictionError, Replayed, Scenario, replay};

fn scenario(jobs: usize) -> Scenario {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let trace = root.join("tests/fixtures/elasticflow/cluster02-first400.csv.gz");
    let range = TraceRange { take: jobs, ..TraceRange::default() };
    readers::scenario(Format::Itp, &trace, &root.join("clusters/mixed.yaml"), range).unwrap()
}

/// Replays, and the mean difference (log) of the medians of the times shown from the true ones.
fn run(scenario: &Scenario, knowledge: Knowledge, mape: f64) -> (Replayed, f64) {
    let options = Options { method: MethodName::RandomizedGreedy, trials: 5, ..Options::default() };
    let error = PredictionError { mape, seed: 3, ..PredictionError::default() };
    let conditions = Conditions { error, knowledge, ..Conditions::default() };
    let (mut off, mut count) = (0.0, 0.0);
    let mut decide = |snapshot: &Snapshot| {
        for job in &snapshot.jobs {
            let truth = scenario.jobs.iter().find(|j| j.id == job.id).unwrap();
            for row in job.estimates.iter() {
                let same = |r: &&andreas_planner::Estimate| r.gpu_type == row.gpu_type && r.gpus == row.gpus;
                let epoch = truth.estimates.iter().find(same).unwrap().epoch;
                off += (row.epoch.0 / mean_over_median(row.rel_std) / epoch.0).ln().abs();
                count += 1.0;
            }
        }
        plan(snapshot, &options)
    };
    let replayed = replay(scenario, &conditions, &mut decide, &mut |_| {}).unwrap();
    assert_eq!(replayed.summary.unfinished, 0);
    (replayed, off / count)
}

#[test]
fn what_the_planner_is_shown_comes_nearer_to_the_truth_by_learning() {
    let scenario = scenario(40);
    let (_, known) = run(&scenario, Knowledge::Tables, 0.0);
    let (learning, learned) = run(&scenario, Knowledge::Learning, 0.0);
    let (_, frozen) = run(&scenario, Knowledge::Unlearned, 0.0);
    assert_eq!(known, 0.0);
    assert!(learned < 0.6 * frozen, "{learned:.3} {frozen:.3}");
    // The same again is the same again.
    assert_eq!(run(&scenario, Knowledge::Learning, 0.0).0, learning);
}

#[test]
fn a_table_that_is_off_is_corrected_by_epochs() {
    let scenario = scenario(40);
    let (_, learned) = run(&scenario, Knowledge::Learning, 0.43);
    let (_, frozen) = run(&scenario, Knowledge::Unlearned, 0.43);
    assert!(learned < 0.8 * frozen, "{learned:.3} {frozen:.3}");
}

#[test]
fn an_unknown_job_may_have_everything_and_pays_for_more_until_its_first_epoch() {
    let scenario = scenario(30);
    let (mut unknown, mut known) = (0, 0);
    let options = Options { method: MethodName::RandomizedGreedy, trials: 5, ..Options::default() };
    let conditions = Conditions { knowledge: Knowledge::Learning, ..Conditions::default() };
    let mut decide = |snapshot: &Snapshot| {
        for job in &snapshot.jobs {
            let truth = scenario.jobs.iter().find(|j| j.id == job.id).unwrap();
            assert_eq!(job.estimates.len(), truth.estimates.len());
            assert_eq!(job.movable, job.unknown.is_none());
            match job.unknown {
                Some(rule) => {
                    assert!(job.estimates.iter().all(|row| row.gpus >= rule.least));
                    unknown += 1;
                }
                None => known += 1,
            }
        }
        plan(snapshot, &options)
    };
    let replayed = replay(&scenario, &conditions, &mut decide, &mut |_| {}).unwrap();
    assert!(unknown > 20 && known > 20 && replayed.summary.unfinished == 0, "{unknown} {known}");
}
