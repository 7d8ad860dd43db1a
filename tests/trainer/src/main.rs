//! `andreas-trainer`: a small training program, told by its environment what to train and what shall go wrong.
//!
//! *What it holds.* `settings`: the environment; `pace`: seconds per epoch by GPU type and count; `train`: the loop;
//! `stop`: SIGTERM; `gang`: rendezvous and a barrier per step between ranks; `checkpoint`; `report`: progress in Kubeflow Trainer's
//! protocol, as Hugging Face's callback posts it.
//!
//! *What flows in and out.* Environment, SIGTERM and checkpoints in; progress, checkpoints, log lines and an exit code
//! out: 0 finished, 143 stopped with a checkpoint, 1 and others as told, 2 for an environment that makes no sense.
//!
//! *What must never be here.* Anything of ANDREAS: it must run under any orchestrator that speaks torchrun's names.

mod checkpoint;
mod gang;
mod pace;
mod report;
mod settings;
mod stop;
mod train;

use std::io::Write as _;
use std::process::ExitCode;

use settings::Settings;
use stop::Stop;
use train::End;

/// The environment makes no sense.
const EXIT_USAGE: u8 = 2;

/// What `--help` says.
const HELP: &str = include_str!("../README.md");

fn main() -> ExitCode {
    // Other arguments are those of the program that it stands for.
    if matches!(std::env::args().nth(1).as_deref(), Some("--help" | "-h")) {
        let _ = std::io::stdout().write_all(HELP.as_bytes());
        return ExitCode::SUCCESS;
    }
    let settings =
        match Settings::from_env(&|name| std::env::var(name).ok().filter(|value| !value.is_empty())) {
            Ok(settings) => settings,
            Err(error) => {
                eprintln!("andreas-trainer: {error}");
                return ExitCode::from(EXIT_USAGE);
            }
        };
    let looked_at = match Stop::on_signals(settings.ignore_term) {
        Ok(stop) => stop,
        Err(error) => {
            eprintln!("andreas-trainer: signals: {error}");
            return ExitCode::FAILURE;
        }
    };
    match train::train(&settings, &looked_at) {
        Ok(End::Finished) => ExitCode::SUCCESS,
        Ok(End::Stopped) => ExitCode::from(settings.term_exit),
        Ok(End::Failed { code }) => ExitCode::from(code),
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
