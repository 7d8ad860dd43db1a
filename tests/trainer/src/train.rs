//! The loop: steps at the table's pace, and what may come between.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use crate::checkpoint::Checkpoint;
use crate::gang::Gang;
use crate::report::{Progress, Reporter};
use crate::settings::Settings;

/// Longest step, s: how soon a stop is noticed between steps.
const STEP_S: f64 = 0.1;
/// Longest sleep at a time: how soon a stop is noticed within a step.
const SLICE: Duration = Duration::from_millis(50);
/// After a peer is lost, how long to wait for the stop that probably took it.
const STOP_FOLLOWS: Duration = Duration::from_secs(2);

/// Trains to the end, to a stop, or to an asked-for fault; the exit code.
///
/// # Errors
/// When the pace is not known, the gang does not meet, or loses a member.
pub fn run(settings: &Settings, stopped: &dyn Fn() -> bool) -> Result<i32> {
    let pace = settings.pace()?;
    let checkpoint = Checkpoint::in_folder(settings.checkpoint_dir.as_deref());
    let steps_per_epoch = (pace / STEP_S).ceil().clamp(1.0, 10_000.0);
    let step_time = Duration::from_secs_f64(pace / steps_per_epoch);
    let steps = (f64::from(settings.epochs) * steps_per_epoch).round().max(1.0) as u64;
    let resumed = checkpoint.load();
    let met = Gang::meet(settings, resumed, stopped);
    if stopped() {
        return Ok(settings.term_exit);
    }
    let (mut gang, start) = met?;
    let mut step = ((start * steps_per_epoch).round() as u64).min(steps);
    println!(
        "{} on {} x {:?}: epoch {:.2} of {}, {pace} s each",
        settings.model,
        settings.gpus(),
        settings.gpu_type,
        step as f64 / steps_per_epoch,
        settings.epochs
    );
    let reporter = Reporter::start(settings);
    let report = |step: u64| Progress {
        step,
        steps,
        epoch: step as f64 / steps_per_epoch,
        remaining_s: steps.saturating_sub(step) as f64 * step_time.as_secs_f64(),
    };
    // Libraries report 0 when they begin, also on a resume.
    reporter.tell(Progress { step: 0, epoch: 0.0, ..report(0) });
    let save = |step: u64| {
        if settings.rank == 0
            && let Err(error) = checkpoint.save(step as f64 / steps_per_epoch)
        {
            eprintln!("checkpoint failed: {error}");
        }
    };
    let mut next = Instant::now();
    while step < steps {
        if let Some(code) = fault(settings, step as f64 / steps as f64, stopped) {
            return Ok(code);
        }
        if early_end(settings, step as f64 / steps as f64) {
            println!("early stop");
            reporter.finish();
            return Ok(0);
        }
        next += step_time;
        sleep_until(next, stopped);
        if stopped() {
            save(step);
            println!("stopped at epoch {:.2}", step as f64 / steps_per_epoch);
            return Ok(settings.term_exit);
        }
        if let Err(lost) = gang.step(step) {
            save(step);
            sleep_until(Instant::now() + STOP_FOLLOWS, stopped);
            if stopped() {
                return Ok(settings.term_exit);
            }
            return Err(lost).context("training cannot go on");
        }
        step += 1;
        reporter.tell(report(step));
        if step.is_multiple_of(steps_per_epoch as u64) {
            save(step);
        }
    }
    save(steps);
    println!("done");
    reporter.finish();
    Ok(0)
}

fn sleep_until(end: Instant, stopped: &dyn Fn() -> bool) {
    while !stopped() {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        std::thread::sleep(left.min(SLICE));
    }
}

fn early_end(settings: &Settings, done: f64) -> bool {
    settings.stop_at.is_some_and(|at| done >= at)
}

/// The exit code of an asked-for fault whose time has come.
fn fault(settings: &Settings, done: f64, stopped: &dyn Fn() -> bool) -> Option<i32> {
    if settings.rank != settings.fail_rank || settings.attempt > settings.fail_attempts {
        return None;
    }
    let due = |at: Option<f64>| at.is_some_and(|at| done >= at);
    if due(settings.fail_at) {
        eprintln!("RuntimeError: asked to fail at {:.0} %", done * 100.0);
        return Some(settings.exit_code);
    }
    let small = settings.oom_types.is_empty() || settings.oom_types.contains(&settings.gpu_type);
    if due(settings.oom_at) && small {
        eprintln!(
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 14.75 GiB"
        );
        return Some(1);
    }
    if due(settings.hang_at) {
        println!("hanging");
        while !stopped() {
            std::thread::sleep(SLICE);
        }
        return Some(settings.term_exit);
    }
    None
}
