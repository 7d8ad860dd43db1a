//! Checkpoints: one file, replaced at once, that says how much of the run is done.

use std::fs::{self, File, TryLockError};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

const FILE: &str = "checkpoint.json";
const LOCK: &str = ".lock";
const ATTEMPTS: &str = ".attempts";
const OVERLAPS: &str = "overlaps.log";

/// What a checkpoint holds. In epochs, so that a run resumed on other GPUs, with other steps, knows where it is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Checkpoint {
    pub epochs_done: f64,
    pub model: String,
    pub gpu_type: String,
    pub gpus: usize,
    /// Attempt that wrote it; 0 when nobody counts.
    pub attempt: u32,
    /// RFC 3339.
    pub saved_at: String,
}

/// The folder of checkpoints, ours for as long as this lives.
#[derive(Debug)]
pub(crate) struct Store {
    dir: PathBuf,
    /// Held for its lock.
    _lock: Option<File>,
    /// Another process of this run has the folder open.
    pub shared: bool,
    /// Starts so far with this folder, this one included.
    pub starts: u32,
}

impl Store {
    /// Opens the folder, counts the start, and notes in `overlaps.log` when another attempt has it open.
    pub fn open(dir: &Path) -> std::io::Result<Self> {
        fs::create_dir_all(dir)?;
        let lock = File::options().create(true).append(true).open(dir.join(LOCK))?;
        let shared = match lock.try_lock() {
            Ok(()) => false,
            Err(TryLockError::WouldBlock) => true,
            Err(TryLockError::Error(error)) => {
                eprintln!("checkpoint folder cannot be locked: {error}");
                false
            }
        };
        if shared {
            let mut log = File::options().create(true).append(true).open(dir.join(OVERLAPS))?;
            writeln!(log, "{} process {}", jiff::Timestamp::now(), std::process::id())?;
        }
        let counted =
            fs::read_to_string(dir.join(ATTEMPTS)).ok().and_then(|text| text.trim().parse::<u32>().ok());
        let starts = counted.unwrap_or(0).saturating_add(1);
        replace(&dir.join(ATTEMPTS), starts.to_string().as_bytes())?;
        Ok(Self { dir: dir.to_owned(), _lock: Some(lock), shared, starts })
    }

    /// The last checkpoint; none when there is none that can be read.
    pub fn load(&self) -> Option<Checkpoint> {
        let bytes = fs::read(self.dir.join(FILE)).ok()?;
        match serde_json::from_slice::<Checkpoint>(&bytes) {
            Ok(checkpoint) if checkpoint.epochs_done.is_finite() && checkpoint.epochs_done >= 0.0 => {
                Some(checkpoint)
            }
            Ok(_) => None,
            Err(error) => {
                eprintln!("checkpoint cannot be read, starting anew: {error}");
                None
            }
        }
    }

    pub fn save(&self, checkpoint: &Checkpoint) -> std::io::Result<()> {
        replace(&self.dir.join(FILE), &serde_json::to_vec(checkpoint).map_err(std::io::Error::other)?)
    }
}

/// Write beside, flush to disk, rename: a reader or a crash sees the old one or the new one.
fn replace(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let beside = path.with_file_name(format!("{name}.{}.new", std::process::id()));
    let mut file = File::create(&beside)?;
    file.write_all(bytes)?;
    file.sync_data()?;
    fs::rename(beside, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_survives_and_rubbish_does_not_stop_a_run() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        assert_eq!((store.load(), store.shared, store.starts), (None, false, 1));
        let checkpoint = Checkpoint {
            epochs_done: 2.5,
            model: "m".into(),
            gpu_type: "T4".into(),
            gpus: 2,
            attempt: 1,
            saved_at: "2030-01-01T00:00:00Z".into(),
        };
        store.save(&checkpoint).unwrap();
        let second = Store::open(dir.path()).unwrap();
        assert!(second.shared && dir.path().join(OVERLAPS).exists(), "two attempts at once are noticed");
        assert_eq!((second.load(), second.starts), (Some(checkpoint), 2));
        drop((store, second));
        fs::write(dir.path().join(FILE), "{half").unwrap();
        let third = Store::open(dir.path()).unwrap();
        assert_eq!((third.load(), third.shared), (None, false));
    }
}
