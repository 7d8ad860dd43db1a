//! Programs that a test makes and runs.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

/// Writes programs, by name, into a folder that exists.
///
/// Another process writes the files that are run. A file that this process writes may be open in a child that
/// another thread has just forked, and Linux runs no program that is open for writing (`ETXTBSY`).
///
/// # Errors
/// When a file cannot be written, or `cp` fails.
pub fn write_executables<T: AsRef<[u8]>>(
    folder: &Path,
    programs: impl IntoIterator<Item = (impl AsRef<Path>, T)>,
) -> io::Result<()> {
    let aside = tempfile::tempdir()?;
    let mut copy = Command::new("cp");
    copy.arg("-p");
    for (name, text) in programs {
        let path = aside.path().join(name);
        fs::write(&path, text)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        copy.arg(path);
    }
    if copy.get_args().len() == 1 {
        return Ok(());
    }
    // With a slash at its end it is a folder, or an error.
    let copied = copy.arg(folder.join("")).output()?;
    if copied.status.success() {
        return Ok(());
    }
    Err(io::Error::other(String::from_utf8_lossy(&copied.stderr).trim().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_run_while_other_threads_fork() {
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let folder = tempfile::tempdir().unwrap();
                    for turn in 0..20 {
                        let name = format!("program-{turn}");
                        write_executables(folder.path(), [(&name, "#!/bin/sh\necho ran\n")]).unwrap();
                        let ran = Command::new(folder.path().join(&name)).output().unwrap();
                        assert_eq!(ran.stdout, b"ran\n");
                    }
                });
            }
        });
    }

    #[test]
    fn a_folder_that_is_missing_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let error = write_executables(&folder.path().join("missing/below"), [("a", "")]).unwrap_err();
        assert!(error.to_string().contains("missing"), "{error}");
    }
}
