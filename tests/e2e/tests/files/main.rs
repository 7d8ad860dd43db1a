//! Files of the project that must agree with the code: no cluster is needed.
#![allow(missing_docs, clippy::unwrap_used)]

mod boards;
mod chart_golden;
mod chart_platforms;
mod commands;
mod evidence;
mod examples;
mod glibc;
mod images;
mod imports;
mod lengths;
mod links;
mod metrics_files;
mod reference;
mod release;
mod scripts;
mod state_structs;
mod words;
mod workflows;
mod workload;
