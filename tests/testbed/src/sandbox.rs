//! One folder and one group of processes that vanish together.
//!
//! A sandbox starts a *janitor*: a few lines of `sh` that wait for the end of a pipe whose other end only this process
//! holds. The pipe ends when the sandbox is dropped, and equally when this process is killed with SIGKILL or by Ctrl-C.
//! The janitor then kills every process whose environment carries the sandbox's mark and removes the folder. Because
//! children inherit the environment, grandchildren in process groups of their own are found as well.
//!
//! Why not `PR_SET_PDEATHSIG`: it fires when the *thread* that started the child ends, does not reach grandchildren,
//! and removes no folder.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// The environment variable that marks every process of a sandbox; its value is the sandbox's identity.
pub const MARK: &str = "ANDREAS_SANDBOX";

/// `$1` is the mark as it stands in `/proc/PID/environ`, the rest are paths to remove. Lines read are more paths.
const JANITOR: &str = r#"
trap '' INT TERM HUP QUIT
mark=$1; shift
while IFS= read -r path; do set -- "$@" "$path"; done
pass=0
while [ "$pass" -lt 50 ]; do
  found=$(grep -lsaxzF -- "$mark" /proc/[0-9]*/environ)
  [ -n "$found" ] || break
  for entry in $found; do pid=${entry#/proc/}; kill -9 "${pid%/environ}" 2>/dev/null; done
  pass=$((pass + 1))
  sleep 0.05
done
cd /
pass=0
# Something without the mark may still be writing on its way out.
until rm -rf -- "$@" 2>/dev/null || [ "$pass" -ge 50 ]; do
  pass=$((pass + 1))
  sleep 0.1
done
"#;

/// A sandbox could not be made or cleaned.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// The folder could not be made.
    #[error("cannot make the folder {path}")]
    Folder {
        /// The folder.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The janitor could not be started or spoken to.
    #[error("cannot run the janitor (sh)")]
    Janitor(#[source] io::Error),
    /// The path holds a line break, which the janitor's protocol cannot carry.
    #[error("a path with a line break cannot be cleaned up: {0:?}")]
    LineBreak(PathBuf),
}

/// A folder and the processes started for it; see the module's page.
#[derive(Debug)]
pub struct Sandbox {
    folder: PathBuf,
    mark: String,
    janitor: Mutex<Option<(Child, ChildStdin)>>,
}

impl Sandbox {
    /// A sandbox with a fresh temporary folder, readable by this user only, which is removed at the end.
    pub fn new(name: &str) -> Result<Self, SandboxError> {
        let base = std::env::temp_dir();
        let folder = tempfile::Builder::new()
            .prefix(&format!("andreas-{name}-"))
            .tempdir_in(&base)
            .map_err(|source| SandboxError::Folder { path: base, source })?
            .keep();
        Self::over(folder, false)
    }

    /// A sandbox over a folder of the caller's, which stays when the processes go.
    pub fn keeping(folder: &Path) -> Result<Self, SandboxError> {
        let failed = |source| SandboxError::Folder { path: folder.to_owned(), source };
        std::fs::create_dir_all(folder).map_err(failed)?;
        Self::over(folder.canonicalize().map_err(failed)?, true)
    }

    fn over(folder: PathBuf, kept: bool) -> Result<Self, SandboxError> {
        // The process id and the clock make the mark unique even for a folder used again.
        let mark =
            format!("{}:{}:{:?}", folder.display(), std::process::id(), Instant::now()).replace(' ', "");
        let mut janitor = Command::new("sh")
            .args(["-c", JANITOR, "janitor"])
            .arg(format!("{MARK}={mark}"))
            .args((!kept).then_some(&folder))
            // A sandbox inside a sandbox: the outer janitor must not kill the inner one before it has swept.
            .env_remove(MARK)
            .current_dir("/")
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(SandboxError::Janitor)?;
        let pipe = janitor.stdin.take().expect("the janitor's standard input is piped");
        Ok(Self { folder, mark, janitor: Mutex::new(Some((janitor, pipe))) })
    }

    /// The sandbox's folder (absolute).
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Name and value of the variable that every process of this sandbox must carry to be cleaned up.
    pub fn mark(&self) -> (&'static str, OsString) {
        (MARK, OsString::from(&self.mark))
    }

    /// Has one more path removed at the end.
    pub fn also_remove(&self, path: &Path) -> Result<(), SandboxError> {
        use std::io::Write as _;
        use std::os::unix::ffi::OsStrExt as _;
        let bytes = path.as_os_str().as_bytes();
        if bytes.contains(&b'\n') {
            return Err(SandboxError::LineBreak(path.to_owned()));
        }
        let mut janitor = self.janitor.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some((_, pipe)) = janitor.as_mut() {
            pipe.write_all(&[bytes, b"\n"].concat()).map_err(SandboxError::Janitor)?;
        }
        Ok(())
    }

    /// Ends every process of the sandbox and removes its folder; returns when that is done, at the latest after 30 s.
    pub fn close(&self) {
        let janitor = self.janitor.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take();
        let Some((mut janitor, pipe)) = janitor else { return };
        drop(pipe);
        let until = Instant::now() + Duration::from_secs(30);
        while matches!(janitor.try_wait(), Ok(None)) {
            if Instant::now() > until {
                tracing::warn!(folder = %self.folder.display(), "the janitor is still at work after 30 s");
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        self.close();
    }
}
