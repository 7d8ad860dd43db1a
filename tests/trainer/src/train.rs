//! The training loop: steps at the table's pace, in step with the gang, saved, reported, and broken where told.

use std::time::{Duration, Instant};

use crate::checkpoint::{Checkpoint, Store};
use crate::gang::{Gang, GangError, Rendezvous};
use crate::report::{Reporter, TrainingProgress};
use crate::settings::Settings;
use crate::stop::Stop;

/// Longer than any orchestrator's patience.
const FOR_EVER: Duration = Duration::from_secs(1 << 30);
/// A rank that loses a peer may be about to get the same SIGTERM.
const STOP_TOGETHER: Duration = Duration::from_secs(2);
/// Exit code when another attempt has the checkpoint and it was to be ours alone (EX_TEMPFAIL).
const EXIT_IN_USE: u8 = 75;
/// Of an error that a Python program does not catch.
const EXIT_ERROR: u8 = 1;

/// How a training ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Finished,
    Stopped,
    Failed { code: u8 },
}

/// Trains until the end, a stop, or what was told to go wrong.
pub(crate) fn train(settings: &Settings, stop: &Stop) -> Result<End, std::io::Error> {
    let store = match &settings.checkpoint_dir {
        Some(dir) if settings.rank == 0 => Some(Store::open(dir)?),
        _ => None,
    };
    if let Some(store) = store.as_ref().filter(|store| store.shared) {
        eprintln!("another attempt has the checkpoint open (start {})", store.starts);
        if settings.exclusive {
            return Ok(End::Failed { code: EXIT_IN_USE });
        }
    }
    let done = store.as_ref().and_then(Store::load).map_or(0.0, |checkpoint| checkpoint.epochs_done);
    let first = ((done * f64::from(settings.steps_per_epoch) + 1e-6) as u64).min(settings.total_steps());
    let attempt = settings.attempt.or(store.as_ref().map(|store| store.starts)).unwrap_or(1);
    say(
        settings,
        &format!(
            "attempt {attempt}: {} epochs of {} on {} x {} {}, {:.3} s per epoch, from step {first} of {}",
            settings.epochs,
            settings.model,
            settings.nodes,
            settings.gpus_per_node,
            settings.gpu_type,
            settings.seconds_per_epoch,
            settings.total_steps(),
        ),
    );
    if !stop.sleep(settings.start) {
        return Ok(End::Stopped);
    }
    let rendezvous = Rendezvous {
        rank: settings.rank,
        world: settings.nodes,
        master: (&settings.master.0, settings.master.1),
        limit: settings.rendezvous,
        stop,
    };
    let (gang, first) = match Gang::meet(&rendezvous, first) {
        Ok(met) => met,
        Err(error) => return Ok(after_gang_error(&error, stop)),
    };
    let reporter = Reporter::start(settings.report.clone().filter(|_| settings.rank == 0));
    let run = Run { settings, store, gang, reporter, stop, attempt, step: first, first, taken: Vec::new() };
    Ok(run.all())
}

struct Run<'a> {
    settings: &'a Settings,
    store: Option<Store>,
    gang: Gang,
    reporter: Reporter,
    stop: &'a Stop,
    attempt: u32,
    /// Steps done.
    step: u64,
    first: u64,
    /// Memory that was taken as told.
    taken: Vec<u8>,
}

impl Run<'_> {
    fn all(mut self) -> End {
        self.reporter.report(TrainingProgress { claimed: Some(0), ..self.standing() });
        let end = self.steps();
        if end == End::Finished {
            self.reporter.report(TrainingProgress { claimed: Some(100), ..self.standing() });
            say(self.settings, &format!("finished at step {} of {}", self.step, self.settings.total_steps()));
        }
        self.reporter.finish();
        end
    }

    fn steps(&mut self) -> End {
        let settings = self.settings;
        let pace = Duration::from_secs_f64(settings.seconds_per_epoch / f64::from(settings.steps_per_epoch));
        let began = Instant::now();
        while self.step < settings.total_steps() {
            if let Some(end) = self.fault() {
                return end;
            }
            if settings.stop_at.is_some_and(|at| self.share() >= at) {
                self.save();
                return End::Finished;
            }
            // Against the start, not the last step, so that waiting for others and saving do not add up.
            let stays = self.stays();
            let due = if stays {
                Instant::now() + pace
            } else {
                began + pace.mul_f64((self.step - self.first + 1) as f64)
            };
            if !self.stop.sleep_until(due) {
                return self.stopped();
            }
            match self.gang.barrier(self.step, self.stop) {
                Ok(()) => {}
                Err(GangError::Stopped) => return self.stopped(),
                Err(error) => {
                    let end = after_gang_error(&error, self.stop);
                    return if end == End::Stopped { self.stopped() } else { end };
                }
            }
            if stays {
                continue;
            }
            self.step += 1;
            self.reporter.report(self.standing());
            if self.step.is_multiple_of(u64::from(settings.steps_per_epoch)) {
                self.save();
            }
        }
        End::Finished
    }

    /// Whether it was told to stay at this point of the run.
    fn stays(&self) -> bool {
        let faults = &self.settings.faults;
        let applies = faults.attempts.is_none_or(|attempts| self.attempt <= attempts);
        applies && faults.stay_at.is_some_and(|at| self.share() >= at)
    }

    fn share(&self) -> f64 {
        self.step as f64 / self.settings.total_steps().max(1) as f64
    }

    fn epochs_done(&self) -> f64 {
        self.step as f64 / f64::from(self.settings.steps_per_epoch)
    }

    fn standing(&self) -> TrainingProgress {
        let total_steps = self.settings.total_steps();
        TrainingProgress { step: self.step, total_steps, epoch: self.epochs_done(), claimed: None }
    }

    fn stopped(&self) -> End {
        self.save();
        say(self.settings, &format!("stopped at step {} of {}", self.step, self.settings.total_steps()));
        End::Stopped
    }

    fn save(&self) {
        let Some(store) = &self.store else { return };
        std::thread::sleep(self.settings.save);
        let checkpoint = Checkpoint {
            epochs_done: self.epochs_done(),
            model: self.settings.model.clone(),
            gpu_type: self.settings.gpu_type.clone(),
            gpus: self.settings.nodes * self.settings.gpus_per_node,
            attempt: self.attempt,
            saved_at: jiff::Timestamp::now().to_string(),
        };
        if let Err(error) = store.save(&checkpoint) {
            eprintln!("checkpoint not written: {error}");
        }
    }

    /// What was told to go wrong at this point of the run.
    fn fault(&mut self) -> Option<End> {
        let (settings, faults) = (self.settings, &self.settings.faults);
        if faults.attempts.is_some_and(|attempts| self.attempt > attempts) || settings.rank != faults.rank {
            return None;
        }
        let share = self.share();
        let due = |at: Option<f64>| at.is_some_and(|at| share >= at);
        if due(faults.fail_at) {
            eprintln!(
                "RuntimeError: training failed at step {} as told (exit {})",
                self.step, faults.exit_code
            );
            return Some(End::Failed { code: faults.exit_code });
        }
        if due(faults.allocate_at) && self.taken.is_empty() {
            say(settings, &format!("taking {} MiB", faults.allocate_mib));
            // Written to, not only reserved.
            self.taken = vec![1; faults.allocate_mib as usize * 1024 * 1024];
        }
        let too_small =
            |types: &Vec<String>| types.iter().any(|name| settings.gpu_type.contains(name.as_str()));
        if due(faults.oom_at) && faults.oom_types.as_ref().is_none_or(too_small) {
            eprintln!(
                "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of \
                 14.58 GiB of which 512.00 MiB is free."
            );
            return Some(End::Failed { code: EXIT_ERROR });
        }
        if due(faults.hang_at) {
            say(settings, &format!("hanging at step {}", self.step));
            self.stop.sleep(FOR_EVER);
            // What hangs cannot save.
            return Some(End::Stopped);
        }
        None
    }
}

/// A stop reaches all ranks within moments; a peer that left for it is no failure.
fn after_gang_error(error: &GangError, stop: &Stop) -> End {
    if matches!(error, GangError::Lost(_)) && stop.sleep(STOP_TOGETHER) {
        eprintln!("{error}");
        return End::Failed { code: EXIT_ERROR };
    }
    if let GangError::Timeout(_) = error {
        eprintln!("{error}");
        return End::Failed { code: EXIT_ERROR };
    }
    End::Stopped
}

fn say(settings: &Settings, text: &str) {
    println!("[rank {}] {text}", settings.rank);
}
