//! The state of a run on disk: steps done. Written beside and renamed over, so that a kill never leaves half a file.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct State {
    /// Epochs done; fractions are steps within an epoch.
    epochs: f64,
}

/// Where the state is kept; nowhere when there is no folder.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    file: Option<PathBuf>,
}

impl Checkpoint {
    /// In this folder.
    pub fn in_folder(folder: Option<&Path>) -> Self {
        Self { file: folder.map(|f| f.join("state.json")) }
    }

    /// Epochs done so far; 0 where nothing can be read.
    pub fn load(&self) -> f64 {
        let Some(bytes) = self.file.as_ref().and_then(|f| std::fs::read(f).ok()) else { return 0.0 };
        match serde_json::from_slice::<State>(&bytes) {
            Ok(state) if state.epochs.is_finite() && state.epochs >= 0.0 => state.epochs,
            _ => {
                eprintln!("checkpoint cannot be read, starting anew");
                0.0
            }
        }
    }

    /// Keeps the state.
    ///
    /// # Errors
    /// When the folder cannot be written.
    pub fn save(&self, epochs: f64) -> std::io::Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        if let Some(folder) = file.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let beside = file.with_extension("new");
        let mut out = std::fs::File::create(&beside)?;
        out.write_all(&serde_json::to_vec(&State { epochs })?)?;
        out.sync_all()?;
        std::fs::rename(beside, file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_saved_is_loaded_and_garbage_is_a_fresh_start() {
        let folder = tempfile::tempdir().unwrap();
        let kept = Checkpoint::in_folder(Some(folder.path()));
        assert_eq!(kept.load(), 0.0);
        kept.save(3.5).unwrap();
        assert_eq!(kept.load(), 3.5);
        std::fs::write(folder.path().join("state.json"), "{\"epochs\": -1}").unwrap();
        assert_eq!(kept.load(), 0.0);
    }
}
