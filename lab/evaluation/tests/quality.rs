//! How far off on published measurements, as bounds: a change that makes predictions worse is red. The bounds are what was measured
//! with a quarter to spare; `andreas-lab profile evaluate` prints the figures, `lab/docs/predictor.md` has them.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use andreas_evaluation::table::{Sample, boards};
use andreas_evaluation::{Baseline, HoldOut, Outcome, Setting, evaluate, evaluate_baseline, median, splits};
use common::table;

fn asked(samples: &[Sample], setting: Setting) -> (Outcome, Outcome) {
    // Many jobs on many types are many fits: every third question is enough to see them get worse.
    let each = if matches!(setting, Setting::NewType(_)) { 3 } else { 1 };
    let splits: Vec<_> = splits(samples, setting, HoldOut::Job, None).into_iter().step_by(each).collect();
    let gpus = boards(samples, andreas_model::board_power);
    (evaluate(&splits, &gpus), evaluate_baseline(&splits, Baseline::Physics))
}

#[test]
fn known_settings_beat_a_plain_physics_fit_on_every_model_and_intervals_hold() {
    let (outcome, physics) = asked(&table("pollux_t4", 64), Setting::Known(1));
    let error = median(outcome.epoch_errors());
    assert!(error < 0.055, "{error:.3}");
    let physics = physics.by_job();
    for (job, outcome) in outcome.by_job() {
        let (ours, theirs) = (median(outcome.epoch_errors()), median(physics[job].epoch_errors()));
        assert!(ours < theirs, "{job}: {ours:.3} {theirs:.3}");
    }
    let covered = outcome.coverage(false);
    assert!((0.86..0.97).contains(&covered), "{covered:.3}");
}

#[test]
fn four_early_measurements_tell_the_rest_of_a_node() {
    let (outcome, _) = asked(&table("pollux_t4", 1), Setting::First(4));
    let error = median(outcome.epoch_errors());
    assert!(error < 0.125, "{error:.3}");
    let (outcome, _) = asked(&table("elasticflow", 1), Setting::First(2));
    let error = median(outcome.epoch_errors());
    assert!(error < 0.105, "{error:.3}");
}

#[test]
fn a_new_gpu_type_is_known_from_others_and_better_after_one_measurement() {
    let samples = table("gavel", 1);
    let (none, _) = asked(&samples, Setting::NewType(0));
    let (one, _) = asked(&samples, Setting::NewType(1));
    let (none, one) = (median(none.epoch_errors()), median(one.epoch_errors()));
    assert!(none < 0.30 && one < 0.22 && one < none, "{none:.3} {one:.3}");
}
