//! A small training program: trains at a table's pace, reports, checkpoints, stops and resumes.
//!
//! It does what a good training script does, without GPUs: the workers of a gang meet at worker 0 and go on in step;
//! worker 0 reports progress and writes checkpoints; SIGTERM makes it save and leave; a new attempt resumes. Faults
//! can be asked for, so that every way in which a run may end can be shown.

mod checkpoint;
mod gang;
mod report;
mod settings;
mod train;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, Result};
use clap::Parser as _;

use crate::settings::Settings;

fn main() {
    // One line, the last of the log: a kubelet shows it as the termination message.
    let code = run().unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        1
    });
    std::process::exit(code)
}

fn run() -> Result<i32> {
    let settings = Settings::parse();
    let asked = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGTERM, asked.clone()).context("SIGTERM")?;
    let deaf = settings.ignore_term.is_some();
    train::run(&settings, &move || !deaf && asked.load(Ordering::Relaxed))
}
