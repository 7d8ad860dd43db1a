//! The environment: torchrun's names, the checkpoint folder, the progress address, and `TRAINER_*`.

use std::path::PathBuf;
use std::time::Duration;

use crate::pace::{Pace, PaceError};

/// What the environment says. Fractions are of the whole run, 0 to 1.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// `TRAINER_MODEL`: a name in the table, and in the log.
    pub model: String,
    /// `TRAINER_EPOCHS`: length of the whole run.
    pub epochs: u32,
    /// Seconds of one epoch here: `TRAINER_SECONDS_PER_EPOCH`, else `TRAINER_TABLE`, else the built-in table.
    pub seconds_per_epoch: f64,
    /// `TRAINER_STEPS_PER_EPOCH`; by default steps of about a fifth of a second.
    pub steps_per_epoch: u32,
    /// `PET_NODE_RANK`, `PET_NNODES`, `PET_NPROC_PER_NODE`.
    pub rank: usize,
    pub nodes: usize,
    pub gpus_per_node: usize,
    /// `PET_MASTER_ADDR`, `PET_MASTER_PORT`.
    pub master: (String, u16),
    /// `TRAINER_RENDEZVOUS_SECONDS`: how long to wait for the other ranks.
    pub rendezvous: Duration,
    /// `ANDREAS_GPU_TYPE`.
    pub gpu_type: String,
    /// `ANDREAS_ATTEMPT`, when the orchestrator counts.
    pub attempt: Option<u32>,
    /// `CHECKPOINT_DIR`.
    pub checkpoint_dir: Option<PathBuf>,
    /// `TRAINER_SAVE_SECONDS`: how long a save takes.
    pub save: Duration,
    /// `TRAINER_EXCLUSIVE`: end at once when another attempt uses the checkpoint.
    pub exclusive: bool,
    /// `TRAINER_START_SECONDS`: before the first step (imports, data).
    pub start: Duration,
    pub report: Option<ReportTo>,
    pub faults: Faults,
    /// `TRAINER_IGNORE_TERM`.
    pub ignore_term: bool,
    /// `TRAINER_TERM_EXIT`: exit code after a stop, 143 unless given.
    pub term_exit: u8,
    /// `TRAINER_STOP_AT`: early end with exit 0.
    pub stop_at: Option<f64>,
}

/// Where progress goes: `KUBEFLOW_TRAINER_SERVER_URL`, `..._CA_CERT`, `..._TOKEN`.
#[derive(Debug, Clone)]
pub(crate) struct ReportTo {
    pub url: String,
    pub ca_file: Option<PathBuf>,
    pub token_file: Option<PathBuf>,
    /// `TRAINER_REPORT_SECONDS`: least time between two posts.
    pub every: Duration,
}

/// What shall go wrong.
#[derive(Debug, Clone, Default)]
pub(crate) struct Faults {
    /// `TRAINER_FAIL_AT`, with `TRAINER_EXIT_CODE` (1).
    pub fail_at: Option<f64>,
    pub exit_code: u8,
    /// `TRAINER_HANG_AT`.
    pub hang_at: Option<f64>,
    /// `TRAINER_STAY_AT`: the whole gang does this step again and again, until it is stopped.
    pub stay_at: Option<f64>,
    /// `TRAINER_OOM_AT`, only on `TRAINER_OOM_TYPES` (comma separated) when given.
    pub oom_at: Option<f64>,
    pub oom_types: Option<Vec<String>>,
    /// `TRAINER_ALLOCATE_AT`: takes `TRAINER_ALLOCATE_MIB` (1024) of the machine's memory, and keeps them.
    pub allocate_at: Option<f64>,
    pub allocate_mib: u32,
    /// `TRAINER_FAIL_ATTEMPTS`: only in the first so many attempts.
    pub attempts: Option<u32>,
    /// `TRAINER_FAIL_RANK`: which rank it hits (0).
    pub rank: usize,
}

/// The environment makes no sense.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SettingsError {
    #[error("{name}={value}: {wanted}")]
    Value { name: &'static str, value: String, wanted: &'static str },
    #[error(transparent)]
    Pace(#[from] PaceError),
    #[error("PET_NODE_RANK={rank} but PET_NNODES={nodes}")]
    Rank { rank: usize, nodes: usize },
}

type Env<'a> = &'a dyn Fn(&str) -> Option<String>;

impl Settings {
    pub fn from_env(env: Env<'_>) -> Result<Self, SettingsError> {
        let count =
            |name, default: u32| number(env, name, "a whole number of at least 1", |n: &u32| *n > 0, default);
        let (nodes, gpus_per_node) =
            (count("PET_NNODES", 1)? as usize, count("PET_NPROC_PER_NODE", 1)? as usize);
        let rank = number(env, "PET_NODE_RANK", "a rank", |_: &usize| true, 0)?;
        if rank >= nodes {
            return Err(SettingsError::Rank { rank, nodes });
        }
        let gpu_type = env("ANDREAS_GPU_TYPE").unwrap_or_default();
        let model = env("TRAINER_MODEL").unwrap_or_else(|| "resnet50".to_owned());
        let pace = Pace::from_env(env, &model)?;
        let seconds_per_epoch = pace.seconds_per_epoch(&gpu_type, nodes * gpus_per_node)?;
        let default_steps = (seconds_per_epoch / 0.2).round().clamp(1.0, 1000.0) as u32;
        let code = |name, default| number(env, name, "an exit code, 0 to 255", |_: &u8| true, default);
        Ok(Self {
            epochs: count("TRAINER_EPOCHS", 1)?,
            steps_per_epoch: count("TRAINER_STEPS_PER_EPOCH", default_steps)?,
            seconds_per_epoch,
            model,
            rank,
            nodes,
            gpus_per_node,
            master: (
                env("PET_MASTER_ADDR").unwrap_or_else(|| "127.0.0.1".to_owned()),
                number(env, "PET_MASTER_PORT", "a port", |_: &u16| true, 29500)?,
            ),
            rendezvous: seconds(env, "TRAINER_RENDEZVOUS_SECONDS", 600.0)?,
            gpu_type,
            attempt: match env("ANDREAS_ATTEMPT") {
                Some(_) => Some(count("ANDREAS_ATTEMPT", 1)?),
                None => None,
            },
            checkpoint_dir: env("CHECKPOINT_DIR").map(PathBuf::from),
            save: seconds(env, "TRAINER_SAVE_SECONDS", 0.0)?,
            exclusive: flag(env, "TRAINER_EXCLUSIVE"),
            start: seconds(env, "TRAINER_START_SECONDS", 0.0)?,
            report: match env("KUBEFLOW_TRAINER_SERVER_URL").filter(|_| !flag(env, "TRAINER_NO_PROGRESS")) {
                Some(url) => Some(ReportTo {
                    url,
                    ca_file: env("KUBEFLOW_TRAINER_SERVER_CA_CERT").map(PathBuf::from),
                    token_file: env("KUBEFLOW_TRAINER_SERVER_TOKEN").map(PathBuf::from),
                    every: seconds(env, "TRAINER_REPORT_SECONDS", 1.0)?,
                }),
                None => None,
            },
            faults: Faults {
                fail_at: fraction(env, "TRAINER_FAIL_AT")?,
                exit_code: code("TRAINER_EXIT_CODE", 1)?,
                hang_at: fraction(env, "TRAINER_HANG_AT")?,
                stay_at: fraction(env, "TRAINER_STAY_AT")?,
                oom_at: fraction(env, "TRAINER_OOM_AT")?,
                oom_types: env("TRAINER_OOM_TYPES")
                    .map(|list| list.split(',').map(|name| name.trim().to_owned()).collect()),
                allocate_at: fraction(env, "TRAINER_ALLOCATE_AT")?,
                allocate_mib: count("TRAINER_ALLOCATE_MIB", 1024)?,
                attempts: match env("TRAINER_FAIL_ATTEMPTS") {
                    Some(_) => Some(number(env, "TRAINER_FAIL_ATTEMPTS", "a number", |_: &u32| true, 0)?),
                    None => None,
                },
                rank: number(env, "TRAINER_FAIL_RANK", "a rank", |_: &usize| true, 0)?,
            },
            ignore_term: flag(env, "TRAINER_IGNORE_TERM"),
            term_exit: code("TRAINER_TERM_EXIT", 143)?,
            stop_at: fraction(env, "TRAINER_STOP_AT")?,
        })
    }

    /// Steps of the whole run.
    pub fn total_steps(&self) -> u64 {
        u64::from(self.epochs) * u64::from(self.steps_per_epoch)
    }
}

fn flag(env: Env<'_>, name: &str) -> bool {
    env(name).is_some_and(|value| !["0", "false", "no"].contains(&value.as_str()))
}

fn number<T: std::str::FromStr>(
    env: Env<'_>,
    name: &'static str,
    wanted: &'static str,
    fits: impl Fn(&T) -> bool,
    default: T,
) -> Result<T, SettingsError> {
    let Some(value) = env(name) else { return Ok(default) };
    value.trim().parse().ok().filter(fits).ok_or(SettingsError::Value { name, value, wanted })
}

fn seconds(env: Env<'_>, name: &'static str, default: f64) -> Result<Duration, SettingsError> {
    let fits = |value: &f64| (0.0..=1e9).contains(value);
    number(env, name, "seconds", fits, default).map(Duration::from_secs_f64)
}

fn fraction(env: Env<'_>, name: &'static str) -> Result<Option<f64>, SettingsError> {
    let fits = |value: &f64| (0.0..=1.0).contains(value);
    let given = number(env, name, "a fraction of the run, 0 to 1", fits, f64::NAN)?;
    Ok(Some(given).filter(|value| !value.is_nan()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Result<Settings, SettingsError> {
        Settings::from_env(&|name| {
            pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn a_bare_environment_is_one_process_without_checkpoint() {
        let settings = read(&[]).unwrap();
        assert_eq!((settings.nodes, settings.rank, settings.term_exit), (1, 0, 143));
        assert!(settings.report.is_none() && settings.checkpoint_dir.is_none());
    }

    #[test]
    fn what_makes_no_sense_is_said() {
        for (name, value) in [
            ("TRAINER_EPOCHS", "0"),
            ("TRAINER_EPOCHS", "ten"),
            ("TRAINER_FAIL_AT", "1.5"),
            ("TRAINER_SECONDS_PER_EPOCH", "{"),
            ("PET_NODE_RANK", "1"),
            ("TRAINER_EXIT_CODE", "999"),
            ("TRAINER_ALLOCATE_MIB", "0"),
        ] {
            let error = read(&[(name, value)]).unwrap_err().to_string();
            assert!(error.contains(name), "{name}={value}: {error}");
        }
    }

    #[test]
    fn steps_are_about_a_fifth_of_a_second() {
        let steps = |pace| read(&[("TRAINER_SECONDS_PER_EPOCH", pace)]).unwrap().steps_per_epoch;
        assert_eq!((steps("0.05"), steps("1"), steps("1e6")), (1, 5, 1000));
    }
}
