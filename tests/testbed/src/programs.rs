//! Finds the control plane's programs, building them once when they are missing.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::sync::OnceCell;

/// All programs a test bed uses.
const NAMES: [&str; 6] =
    ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "helm"];

/// The programs could not be found or built.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ProgramsError {
    /// A program is missing in the folder.
    #[error("no program {name} in {folder}")]
    Missing {
        /// The program.
        name: &'static str,
        /// The folder.
        folder: PathBuf,
    },
    /// The build script could not be run.
    #[error("cannot run {script}: {reason}")]
    Script {
        /// The script.
        script: PathBuf,
        /// Why.
        reason: String,
    },
    /// The build failed; its own messages went to standard error.
    #[error("{script} failed ({status}); its messages are above")]
    Build {
        /// The script.
        script: PathBuf,
        /// Its exit status.
        status: String,
    },
}

/// A folder with etcd, kube-apiserver, kube-controller-manager, kube-scheduler, kubectl and helm.
#[derive(Debug, Clone)]
pub struct Programs {
    folder: PathBuf,
}

impl Programs {
    /// The programs of `KUBEBUILDER_ASSETS` when it holds all of them, else those of `tests/tools/build`: built on first
    /// use (about five minutes on two cores, progress on standard error), found in the cache from then on.
    pub async fn find() -> Result<Self, ProgramsError> {
        static FOUND: OnceCell<Programs> = OnceCell::const_new();
        FOUND.get_or_try_init(Self::find_or_build).await.cloned()
    }

    /// The programs of this folder.
    pub fn in_folder(folder: impl Into<PathBuf>) -> Result<Self, ProgramsError> {
        let folder = folder.into();
        match NAMES.into_iter().find(|name| !folder.join(name).is_file()) {
            Some(name) => Err(ProgramsError::Missing { name, folder }),
            None => Ok(Self { folder }),
        }
    }

    async fn find_or_build() -> Result<Self, ProgramsError> {
        if let Some(given) = std::env::var_os("KUBEBUILDER_ASSETS")
            && let Ok(all) = Self::in_folder(&given)
        {
            return Ok(all);
        }
        Self::in_folder(built("control-plane").await?)
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// One program's path, for example `kube-scheduler`.
    pub fn path(&self, name: impl AsRef<OsStr>) -> PathBuf {
        self.folder.join(name.as_ref())
    }
}

/// The folder with one set of the programs that `tests/tools/build` knows (`control-plane`, `nodes`, `nvidia`, `prometheus`): built
/// on first use, progress on standard error; found in the cache from then on.
///
/// # Errors
/// When the script cannot be run, or fails.
pub async fn built(set: &str) -> Result<PathBuf, ProgramsError> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tools/build");
    let failed = |reason: String| ProgramsError::Script { script: script.clone(), reason };
    let output = tokio::process::Command::new(&script)
        .arg(set)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .kill_on_drop(true)
        .output()
        .await
        .map_err(|error| failed(error.to_string()))?;
    if !output.status.success() {
        return Err(ProgramsError::Build { script, status: output.status.to_string() });
    }
    let folder = String::from_utf8(output.stdout).map_err(|error| failed(error.to_string()))?;
    Ok(PathBuf::from(folder.trim_end()))
}
