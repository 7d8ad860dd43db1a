//! Intervals of 90 % hold the truth of 85 to 95 %: by job, over all jobs of all tables, each table's jobs held out
//! from their own table alone. A table alone has too few jobs: of five or seven the standard error is 4 to 19
//! points. Watts are one table's seven jobs.
//!
//! The same where every job has a namespace of its own and starts from the published tables.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use andreas_evaluation::table::{Sample, boards};
use andreas_evaluation::{HoldOut, Outcome, Setting, evaluate, splits};
use common::table;

fn covered(setting: Setting, isolated: bool) {
    let mut all = Outcome::default();
    for name in ["pollux_t4", "elasticflow", "gavel", "zeus"] {
        let mut samples: Vec<Sample> = table(name, u32::MAX);
        for sample in samples.iter_mut().filter(|_| isolated) {
            sample.profile = format!("{0}/{0}", sample.profile);
        }
        let gpus = boards(&samples, andreas_model::board_power);
        all.join(name, evaluate(&splits(&samples, setting, HoldOut::Job, None), &gpus));
    }
    for power in [false, true] {
        let (covered, error) = (all.coverage(power), all.coverage_error(power));
        // Seven jobs cannot tell more of watts than their standard error.
        let reach = if power { error } else { 0.0 };
        assert!((0.85 - reach..=0.95 + reach).contains(&covered), "power {power}: {covered:.3} ± {error:.3}");
    }
}

#[test]
fn after_first_measurements() {
    [1, 2, 4].into_iter().for_each(|known| covered(Setting::First(known), false));
}

#[test]
fn on_a_new_gpu_type() {
    [0, 1].into_iter().for_each(|known| covered(Setting::NewType(known), false));
}

#[test]
fn in_known_settings() {
    covered(Setting::Known(1), false);
}

#[test]
fn of_a_tenants_first_job_after_first_measurements() {
    [1, 2, 4].into_iter().for_each(|known| covered(Setting::First(known), true));
}

#[test]
fn of_a_tenants_first_job_on_a_new_gpu_type() {
    [0, 1].into_iter().for_each(|known| covered(Setting::NewType(known), true));
}

#[test]
fn of_a_tenants_first_job_in_known_settings() {
    covered(Setting::Known(1), true);
}
