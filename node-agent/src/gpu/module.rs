//! Which kernel module is loaded. The kernel says so in every container, also where no library works with it.

use std::path::{Path, PathBuf};
use std::time::Duration;

/// File in which the kernel names the version of the loaded module.
pub const VERSION_FILE: &str = "/sys/module/nvidia/version";
/// Why a process ends once [`replaced`] returns.
pub const REPLACED: &str = "another driver was loaded: a new container sees its library";

/// Interval of reads.
const EVERY: Duration = Duration::from_secs(10);

/// The loaded version; `None`: no module is loaded.
fn version(file: &Path) -> Option<String> {
    std::fs::read_to_string(file).ok().map(|text| text.trim().to_owned())
}

/// Returns once another version is loaded than at this call. A container keeps the library that was mounted when it was made.
/// While no module is loaded nothing is known: the same one may come back.
pub fn replaced(file: PathBuf) -> impl Future<Output = ()> {
    let first = version(&file);
    async move {
        loop {
            tokio::time::sleep(EVERY).await;
            if version(&file).is_some_and(|now| first.as_ref() != Some(&now)) {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether the wait ends where these versions are loaded one after the other; `None`: none is.
    async fn ends(loaded: &[Option<&str>]) -> bool {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("version");
        let load = |version: &Option<&str>| match version {
            Some(version) => std::fs::write(&file, format!("{version}\n")).expect("written"),
            None => drop(std::fs::remove_file(&file)),
        };
        let (first, later) = loaded.split_first().expect("versions");
        load(first);
        let mut end = std::pin::pin!(replaced(file.clone()));
        for version in later {
            load(version);
            if tokio::time::timeout(2 * EVERY, &mut end).await.is_ok() {
                return true;
            }
        }
        false
    }

    #[tokio::test(start_paused = true)]
    async fn another_version_ends_the_wait_and_a_module_that_is_unloaded_does_not() {
        let (old, new) = (Some("550.54.15"), Some("570.86.10"));
        for same in [[old, old, old], [old, None, old], [old, None, None], [None, None, None]] {
            assert!(!ends(&same).await, "{same:?}");
        }
        // A container made without a driver has no library.
        for other in [[old, new], [None, new]] {
            assert!(ends(&other).await, "{other:?}");
        }
        assert!(ends(&[old, None, new]).await);
    }
}
