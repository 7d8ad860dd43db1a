//! Original GPU settings, on a disk that outlives the container.
//!
//! NVML reports the default, minimum and maximum limit, but not a limit set earlier by an administrator. So
//! the limit in force is recorded before the first change and kept until it is restored. It is the GPU's ceiling: no limit of ours
//! is above it. A reboot voids the record, because the driver loses all settings.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use crate::setting::{Setting, Uuid};

/// Maximum size of a record, bytes.
const MAX_RECORD_BYTES: u64 = 1024 * 1024;

/// Most limits of ours that are recorded before one of them is confirmed.
const MAX_UNCONFIRMED: usize = 4;
/// Difference up to which two limits are the same, mW.
const ROUNDING_MW: u32 = 1_000;

/// Why the record cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// A file cannot be read or written.
    #[error("{path}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// Another setter holds the lock.
    #[error("another setter holds {0}")]
    Held(PathBuf),
    /// The thread that waits for the lock cannot be started.
    #[error("no thread to wait on")]
    NoThread(#[source] std::io::Error),
}

/// Original settings of one GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct OriginalSettings {
    /// Power limit in force before the first change, mW: the ceiling. `None` if it was not changed.
    pub limit_mw: Option<u32>,
    /// Power limits of ours that may be in force, mW: the last one, and before it is confirmed the one before. Empty in records of earlier
    /// builds.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub set_mw: Vec<u32>,
    /// Whether the setter locked the clocks. Their original state cannot be read.
    pub clocks: bool,
}

impl OriginalSettings {
    /// Whether the requested limit may be one that the setter set. Another one is another writer's.
    #[must_use]
    pub fn may_be_ours(&self, requested_mw: u32) -> bool {
        self.set_mw.is_empty() || self.set_mw.iter().any(|set| is_same_limit(*set, requested_mw))
    }

    /// Records a limit that is about to be set. Before it is confirmed, any of the last ones may be in force.
    pub fn add_limit(&mut self, limit_mw: u32) {
        self.set_mw.retain(|set| *set != limit_mw);
        self.set_mw.push(limit_mw);
        let excess = self.set_mw.len().saturating_sub(MAX_UNCONFIRMED);
        self.set_mw.drain(..excess);
    }

    /// What remains of it once `setting` is confirmed.
    pub fn confirm(&mut self, setting: Setting) {
        self.clocks &= setting.clock_mhz.is_some();
        self.set_mw = setting.limit_mw.into_iter().collect();
        self.limit_mw = self.limit_mw.filter(|_| setting.limit_mw.is_some());
    }
}

/// Whether two limits are the same. Drivers may round what was requested.
#[must_use]
pub fn is_same_limit(one_mw: u32, other_mw: u32) -> bool {
    one_mw.abs_diff(other_mw) <= ROUNDING_MW
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Content {
    boot_id: String,
    gpus: BTreeMap<Uuid, OriginalSettings>,
}

/// The record of one node.
#[derive(Debug)]
pub struct Record {
    path: PathBuf,
    boot_id: String,
    gpus: BTreeMap<Uuid, OriginalSettings>,
    /// The lock, held while this value lives; the kernel releases it when the process dies.
    _lock: File,
}

impl Record {
    /// Opens the record in `folder`, creating both if missing. A record that does not parse is kept aside and
    /// counts as empty.
    ///
    /// # Errors
    /// When the folder cannot be used or another setter holds the lock.
    pub fn open(folder: &Path) -> Result<Self, RecordError> {
        let (lock, lock_path) = lock_file(folder)?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(|_| RecordError::Held(lock_path))?;
        Self::read(folder, lock)
    }

    /// Opens the record once no other setter holds the lock: at once, or after the active one ended in any
    /// way.
    ///
    /// # Errors
    /// When the folder cannot be used.
    pub async fn open_when_free(folder: &Path) -> Result<Self, RecordError> {
        match Self::open(folder) {
            Err(RecordError::Held(_)) => {}
            answer => return answer,
        }
        tracing::info!("standing by: another setter is at work");
        let (lock, lock_path) = lock_file(folder)?;
        let (locked, answer) = tokio::sync::oneshot::channel();
        // A thread blocked in the kernel: it costs nothing and wakes when the holder dies. If the process
        // ends first, the thread is abandoned.
        std::thread::Builder::new()
            .name("standby".into())
            .stack_size(64 * 1024)
            .spawn(move || {
                let waited = loop {
                    match flock(&lock, FlockOperation::LockExclusive) {
                        Err(rustix::io::Errno::INTR) => {}
                        answer => break answer.map(|()| lock),
                    }
                };
                // There is no receiver while the process is shutting down.
                let _ = locked.send(waited);
            })
            .map_err(RecordError::NoThread)?;
        match answer.await {
            Ok(Ok(lock)) => Self::read(folder, lock),
            _ => Err(RecordError::Held(lock_path)),
        }
    }

    fn read(folder: &Path, lock: File) -> Result<Self, RecordError> {
        let path = folder.join("before.json");
        let boot_id = boot_id();
        let content = read(&path).map_err(|source| RecordError::Io { path: path.clone(), source })?;
        let gpus = if content.boot_id == boot_id { content.gpus } else { BTreeMap::new() };
        Ok(Self { path, boot_id, gpus, _lock: lock })
    }

    /// Original settings by UUID.
    #[must_use]
    pub fn gpus(&self) -> &BTreeMap<Uuid, OriginalSettings> {
        &self.gpus
    }

    /// Replaces the record, first on disk, then in memory. Writes nothing if nothing changed.
    ///
    /// # Errors
    /// When the disk write fails; the old record stays valid.
    pub fn replace(&mut self, gpus: BTreeMap<Uuid, OriginalSettings>) -> Result<(), RecordError> {
        if self.gpus == gpus {
            return Ok(());
        }
        let content = Content { boot_id: self.boot_id.clone(), gpus };
        let text = serde_json::to_vec(&content).expect("a map of plain values is JSON");
        let temporary = self.path.with_extension("new");
        let written = (|| {
            let mut file =
                OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&temporary)?;
            file.write_all(&text)?;
            file.sync_all()?;
            std::fs::rename(&temporary, &self.path)?;
            self.path.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
        })();
        written.map_err(|source| RecordError::Io { path: self.path.clone(), source })?;
        self.gpus = content.gpus;
        Ok(())
    }
}

fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default()
}

/// The opened lock file and its path. Creates folder and file if missing.
fn lock_file(folder: &Path) -> Result<(File, PathBuf), RecordError> {
    let at = |path: &Path| {
        let path = path.to_owned();
        move |source| RecordError::Io { path, source }
    };
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(at(folder))?;
    let path = folder.join("setter.lock");
    let file = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&path);
    Ok((file.map_err(at(&path))?, path))
}

fn read(path: &Path) -> std::io::Result<Content> {
    let file = match File::open(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Content::default()),
        file => file?,
    };
    let length = file.metadata()?.len();
    let content = if length > MAX_RECORD_BYTES { None } else { serde_json::from_reader(file).ok() };
    Ok(content.unwrap_or_else(|| {
        tracing::error!(path = %path.display(), "the record does not parse: kept aside");
        let _ = std::fs::rename(path, path.with_extension("broken"));
        Content::default()
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(limit: u32) -> BTreeMap<Uuid, OriginalSettings> {
        BTreeMap::from([(
            "GPU-a".to_owned(),
            OriginalSettings { limit_mw: Some(limit), set_mw: vec![200_000], clocks: true },
        )])
    }

    #[tokio::test]
    async fn a_second_setter_waits_until_the_first_has_gone_and_finds_its_record() {
        let folder = tempfile::tempdir().unwrap();
        let mut works = Record::open(folder.path()).unwrap();
        let path = folder.path().to_owned();
        let standby = tokio::spawn(async move { Record::open_when_free(&path).await });
        // What must not happen needs some time to happen in.
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        assert!(!standby.is_finished());
        works.replace(one(250_000)).unwrap();
        drop(works);
        assert_eq!(standby.await.unwrap().unwrap().gpus(), &one(250_000));
    }

    #[test]
    fn a_record_is_found_again_unless_the_machine_was_restarted() {
        let folder = tempfile::tempdir().unwrap();
        let mut record = Record::open(folder.path()).unwrap();
        record.replace(one(250_000)).unwrap();
        assert!(matches!(Record::open(folder.path()), Err(RecordError::Held(_))), "one setter at a time");
        drop(record);
        assert_eq!(Record::open(folder.path()).unwrap().gpus(), &one(250_000));

        let path = folder.path().join("before.json");
        let text = std::fs::read_to_string(&path).unwrap().replacen("bootId\":\"", "bootId\":\"x", 1);
        std::fs::write(&path, text).unwrap();
        assert!(Record::open(folder.path()).unwrap().gpus().is_empty(), "another boot");
        let boot = boot_id();
        let gpus = r#"{"GPU-a": {"limitMw": 250000, "clocks": true}}"#;
        std::fs::write(&path, format!(r#"{{"bootId": {boot:?}, "gpus": {gpus}}}"#)).unwrap();
        let earlier = Record::open(folder.path()).unwrap().gpus()["GPU-a"].clone();
        assert_eq!((earlier.limit_mw, earlier.clocks), (Some(250_000), true), "of an earlier build");
        assert!(earlier.may_be_ours(300_000), "it did not say what it had set");
        std::fs::write(&path, "{\"gpus\":").unwrap();
        assert!(Record::open(folder.path()).unwrap().gpus().is_empty(), "broken");
        assert!(folder.path().join("before.broken").exists());
    }
}
