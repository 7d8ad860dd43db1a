//! Finds the workspace's own programs, built beside the program that asks.

use std::path::{Path, PathBuf};

/// The program has not been built.
#[derive(Debug, thiserror::Error)]
#[error("{name} is not built: no {looked_for}. Build it first: cargo build {profile_flag}--bin {name}")]
pub struct BinaryNotFound {
    name: String,
    looked_for: String,
    profile_flag: &'static str,
}

/// The path of a binary of this workspace, in the target folder of the running program (a test, an example or a
/// command of the workspace). `ANDREAS_BIN_DIR`, when set, names another folder to look in first.
pub fn workspace_binary(name: &str) -> Result<PathBuf, BinaryNotFound> {
    find(name, &[""])
}

/// The path of a shared library of this workspace, which `cargo build` leaves among the dependencies.
pub fn workspace_library(name: &str) -> Result<PathBuf, BinaryNotFound> {
    // A build of programs alone leaves a former copy beside them.
    find(name, &["deps", ""])
}

fn find(name: &str, below: &[&str]) -> Result<PathBuf, BinaryNotFound> {
    let mut folders: Vec<PathBuf> =
        std::env::var_os("ANDREAS_BIN_DIR").map(PathBuf::from).into_iter().collect();
    if let Some(folder) = std::env::current_exe().ok().as_deref().and_then(Path::parent) {
        // target/PROFILE/deps/TEST and target/PROFILE/examples/EXAMPLE, or target/PROFILE/PROGRAM itself.
        let inner = folder.ends_with("deps") || folder.ends_with("examples");
        folders.push(if inner { folder.parent().unwrap_or(folder) } else { folder }.to_owned());
    }
    let places =
        || folders.iter().flat_map(|folder| below.iter().map(move |part| folder.join(part).join(name)));
    places().find(|path| path.is_file()).ok_or_else(|| BinaryNotFound {
        name: name.to_owned(),
        looked_for: folders
            .iter()
            .map(|f| f.join(name).display().to_string())
            .collect::<Vec<_>>()
            .join(", no "),
        profile_flag: if folders.iter().any(|folder| folder.ends_with("release")) {
            "--release "
        } else {
            ""
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_binary_is_answered_with_the_command_that_builds_it() {
        let error = workspace_binary("no-such-program").unwrap_err().to_string();
        assert!(error.contains("cargo build") && error.contains("--bin no-such-program"), "{error}");
    }
}
