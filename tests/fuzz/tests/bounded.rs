//! The bounded run: every input of the corpus, and mutations of them, the same ones in every run.

// Helpers of tests may unwrap as tests do.
#![allow(clippy::unwrap_used)]

use andreas_fuzz::{TARGETS, bounded, corpus};

fn run(name: &str) {
    let target = TARGETS.iter().find(|t| t.name == name).unwrap();
    bounded::run(target.name, target.run, &corpus(target));
}

macro_rules! bounded {
    ($($name:ident)*) => {
        $(#[test] fn $name() { run(stringify!($name)); })*

        #[test]
        fn every_target_has_a_bounded_run() {
            let named = [$(stringify!($name)),*];
            assert_eq!(named.to_vec(), TARGETS.iter().map(|t| t.name).collect::<Vec<_>>());
        }
    };
}

bounded!(
    adopted_workloads api_objects certificates certificate_secrets job_manifests
    kubelet_pod_resources list_answers pod_logs profiles program_descriptions progress_reports
    quantities queries scheduler_requests setter_lines setter_record watch_answers
);
