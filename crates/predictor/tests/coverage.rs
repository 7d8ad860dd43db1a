//! Intervals of 90 % hold the truth of 88 to 94 %: by job, over all jobs of all tables, each table's jobs held out from their own table alone.
//! One table has too few jobs to tell: of five or seven the standard error is 4 to 19 points. (Watts are one table's seven jobs.)
//!
//! The same where every job is of a namespace of its own and has only strangers to learn from, as a namespace's first one has.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use andreas_predictor::evaluation::{HoldOut, Outcome, Setting, ask, questions};
use andreas_predictor::table::{Sample, boards};
use common::tables::table;

fn covered(setting: Setting, jobs: usize) {
    covered_by(|sample| sample, setting, jobs);
}

fn covered_among_other_tenants(setting: Setting, jobs: usize) {
    let alone = |sample: Sample| Sample { profile: format!("{0}/{0}", sample.profile), ..sample };
    covered_by(alone, setting, jobs);
}

fn covered_by(named: impl Fn(Sample) -> Sample, setting: Setting, jobs: usize) {
    let mut all = Outcome::default();
    for name in ["pollux_t4", "elasticflow", "gavel", "zeus"] {
        let samples: Vec<Sample> = table(name, u32::MAX).into_iter().map(&named).collect();
        let gpus = boards(&samples, andreas_core::board_power);
        all.join(name, ask(&questions(&samples, setting, HoldOut::Job, None), &gpus));
    }
    assert_eq!(all.jobs(), jobs);
    for power in [false, true] {
        let (covered, error) = (all.coverage(power), all.coverage_error(power));
        assert!((0.88..=0.94).contains(&covered), "power {power}: {covered:.3} ± {error:.3}");
    }
}

#[test]
fn after_the_first_measurement() {
    covered(Setting::First(1), 56);
}

#[test]
fn after_two() {
    covered(Setting::First(2), 56);
}

#[test]
fn after_four() {
    covered(Setting::First(4), 34);
}

#[test]
fn on_a_new_gpu_type() {
    covered(Setting::NewType(0), 32);
}

#[test]
fn on_a_new_gpu_type_after_one_measurement() {
    covered(Setting::NewType(1), 25);
}

#[test]
fn in_known_settings() {
    covered(Setting::Known(1), 63);
}

#[test]
fn among_other_tenants_after_the_first_measurement() {
    covered_among_other_tenants(Setting::First(1), 56);
}

#[test]
fn among_other_tenants_after_two() {
    covered_among_other_tenants(Setting::First(2), 56);
}

#[test]
fn among_other_tenants_after_four() {
    covered_among_other_tenants(Setting::First(4), 34);
}

#[test]
fn among_other_tenants_on_a_new_gpu_type() {
    covered_among_other_tenants(Setting::NewType(0), 32);
}

#[test]
fn among_other_tenants_on_a_new_gpu_type_after_one_measurement() {
    covered_among_other_tenants(Setting::NewType(1), 25);
}

#[test]
fn among_other_tenants_in_known_settings() {
    covered_among_other_tenants(Setting::Known(1), 63);
}
