//! What the trainer is told: by flags or, in a container, by the environment.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::Parser;

/// Trains at the pace of a table, reports, checkpoints, stops and resumes: a stand-in for a training script on nodes
/// without GPUs.
#[derive(Clone, Debug, Parser)]
#[command(name = "andreas-trainer", version, about)]
pub struct Settings {
    /// Model, a row of the table.
    #[arg(long, env = "TRAINER_MODEL", default_value = "resnet50")]
    pub model: String,
    /// JSON file: {model: {GPU type: {GPUs in total: seconds per epoch}}}.
    #[arg(long, env = "TRAINER_TABLE")]
    pub table: Option<PathBuf>,
    /// Seconds per epoch instead of the table: a number, or {GPU type: {GPUs in total: seconds}}.
    #[arg(long, env = "TRAINER_SECONDS_PER_EPOCH")]
    pub seconds_per_epoch: Option<String>,
    /// Epochs of the whole run.
    #[arg(long, env = "TRAINER_EPOCHS", default_value_t = 1)]
    pub epochs: u32,
    /// GPU type.
    #[arg(long, env = "ANDREAS_GPU_TYPE", default_value = "")]
    pub gpu_type: String,
    /// Number of the attempt.
    #[arg(long, env = "ANDREAS_ATTEMPT", default_value_t = 1)]
    pub attempt: u32,

    /// Workers.
    #[arg(long, env = "PET_NNODES", default_value_t = 1)]
    pub nodes: u32,
    /// GPUs of this worker.
    #[arg(long, env = "PET_NPROC_PER_NODE", default_value_t = 1)]
    pub gpus_per_node: u32,
    /// Index of this worker.
    #[arg(long, env = "PET_NODE_RANK", default_value_t = 0)]
    pub rank: u32,
    /// Host name of worker 0.
    #[arg(long, env = "PET_MASTER_ADDR", default_value = "127.0.0.1")]
    pub master_addr: String,
    /// Port of the rendezvous on worker 0.
    #[arg(long, env = "PET_MASTER_PORT", default_value_t = 29500)]
    pub master_port: u16,
    /// How long the workers wait for each other, s.
    #[arg(long, env = "TRAINER_RENDEZVOUS_SECONDS", default_value_t = 120.0)]
    pub rendezvous_seconds: f64,

    /// Folder of checkpoints; none: a stop loses the run.
    #[arg(long, env = "CHECKPOINT_DIR")]
    pub checkpoint_dir: Option<PathBuf>,

    /// Full address to post progress to; none: no reports.
    #[arg(long, env = "KUBEFLOW_TRAINER_SERVER_URL")]
    pub report_url: Option<String>,
    /// PEM file with the CA of that address.
    #[arg(long, env = "KUBEFLOW_TRAINER_SERVER_CA_CERT")]
    pub report_ca: Option<PathBuf>,
    /// File with the bearer token for that address.
    #[arg(long, env = "KUBEFLOW_TRAINER_SERVER_TOKEN")]
    pub report_token: Option<PathBuf>,
    /// Shortest time between two reports, s.
    #[arg(long, env = "TRAINER_REPORT_SECONDS", default_value_t = 1.0)]
    pub report_seconds: f64,
    /// Report nothing (any value).
    #[arg(long, env = "TRAINER_NO_PROGRESS")]
    pub no_progress: Option<String>,

    /// Exit code after SIGTERM; 143 is the habit of PyTorch's launchers.
    #[arg(long, env = "TRAINER_TERM_EXIT", default_value_t = 143)]
    pub term_exit: i32,
    /// Do not react to SIGTERM (any value).
    #[arg(long, env = "TRAINER_IGNORE_TERM")]
    pub ignore_term: Option<String>,
    /// Fail when this fraction of the run is done.
    #[arg(long, env = "TRAINER_FAIL_AT")]
    pub fail_at: Option<f64>,
    /// Exit code of that failure.
    #[arg(long, env = "TRAINER_EXIT_CODE", default_value_t = 1)]
    pub exit_code: i32,
    /// Fail, hang or run out of memory only in the first so many attempts.
    #[arg(long, env = "TRAINER_FAIL_ATTEMPTS", default_value_t = u32::MAX)]
    pub fail_attempts: u32,
    /// Worker that fails, hangs or runs out of memory.
    #[arg(long, env = "TRAINER_FAIL_RANK", default_value_t = 0)]
    pub fail_rank: u32,
    /// Hang, without ending, when this fraction of the run is done.
    #[arg(long, env = "TRAINER_HANG_AT")]
    pub hang_at: Option<f64>,
    /// Run out of GPU memory when this fraction of the run is done.
    #[arg(long, env = "TRAINER_OOM_AT")]
    pub oom_at: Option<f64>,
    /// GPU types, separated by commas, whose memory is too small; all when absent.
    #[arg(long, env = "TRAINER_OOM_TYPES", value_delimiter = ',')]
    pub oom_types: Vec<String>,
    /// End early and well when this fraction of the run is done.
    #[arg(long, env = "TRAINER_STOP_AT")]
    pub stop_at: Option<f64>,
}

type Paces = BTreeMap<String, BTreeMap<u32, f64>>;

/// The pace cannot be told.
#[derive(Debug, thiserror::Error)]
pub enum PaceError {
    /// The table cannot be read.
    #[error("cannot read the table {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The table, or the seconds per epoch, are not what they should be.
    #[error("{what} is no table of seconds per epoch")]
    Parse {
        /// Which of the two.
        what: &'static str,
        /// Why.
        source: serde_json::Error,
    },
    /// Nothing is known for these GPUs.
    #[error("no pace is known for {model} on {gpus} x {gpu_type:?}")]
    Unknown {
        /// The model.
        model: String,
        /// GPUs in total.
        gpus: u32,
        /// GPU type.
        gpu_type: String,
    },
    /// A pace that is no time.
    #[error("{0} seconds per epoch")]
    NotATime(f64),
}

impl Settings {
    /// GPUs of all workers.
    pub fn gpus(&self) -> u32 {
        self.nodes.saturating_mul(self.gpus_per_node).max(1)
    }

    /// Seconds of one epoch on these GPUs.
    ///
    /// # Errors
    /// When neither the environment nor the table knows.
    pub fn pace(&self) -> Result<f64, PaceError> {
        let seconds = self.look_up()?;
        if seconds.is_finite() && (0.0..=1e7).contains(&seconds) {
            Ok(seconds)
        } else {
            Err(PaceError::NotATime(seconds))
        }
    }

    fn look_up(&self) -> Result<f64, PaceError> {
        let unknown = || PaceError::Unknown {
            model: self.model.clone(),
            gpus: self.gpus(),
            gpu_type: self.gpu_type.clone(),
        };
        let paces: Paces = match (&self.seconds_per_epoch, &self.table) {
            (Some(text), _) => {
                if let Ok(seconds) = text.trim().parse() {
                    return Ok(seconds);
                }
                serde_json::from_str(text)
                    .map_err(|source| PaceError::Parse { what: "TRAINER_SECONDS_PER_EPOCH", source })?
            }
            (None, Some(path)) => {
                let text =
                    std::fs::read(path).map_err(|source| PaceError::Read { path: path.clone(), source })?;
                let mut models: BTreeMap<String, Paces> = serde_json::from_slice(&text)
                    .map_err(|source| PaceError::Parse { what: "TRAINER_TABLE", source })?;
                models.remove(&self.model).ok_or_else(unknown)?
            }
            (None, None) => return Err(unknown()),
        };
        paces.get(&self.gpu_type).and_then(|of| of.get(&self.gpus())).copied().ok_or_else(unknown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(pace: &str, gpu_type: &str, nodes: u32, each: u32) -> Settings {
        let args = ["trainer", "--seconds-per-epoch", pace, "--gpu-type", gpu_type];
        Settings { nodes, gpus_per_node: each, ..Settings::parse_from(args) }
    }

    #[test]
    fn the_pace_is_that_of_type_and_total() {
        let table = r#"{"A": {"1": 2.0, "8": 0.5}}"#;
        assert_eq!(settings(table, "A", 2, 4).pace().unwrap(), 0.5);
        assert_eq!(settings("0.25", "anything", 1, 1).pace().unwrap(), 0.25);
    }

    #[test]
    fn what_is_not_known_is_said() {
        assert!(matches!(settings(r#"{"A": {"1": 2.0}}"#, "B", 1, 1).pace(), Err(PaceError::Unknown { .. })));
        assert!(matches!(settings("{", "A", 1, 1).pace(), Err(PaceError::Parse { .. })));
        assert!(matches!(settings("NaN", "A", 1, 1).pace(), Err(PaceError::NotATime(_))));
    }
}
