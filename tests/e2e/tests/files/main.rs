//! Files of the project that must agree with the code: no cluster is needed.
#![allow(missing_docs, clippy::unwrap_used)]

mod boards;
mod chart_golden;
mod chart_platforms;
mod examples;
mod lengths;
mod links;
mod metrics_files;
mod reference;
mod release;
mod workload;
