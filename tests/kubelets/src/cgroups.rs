//! The place of nodes in the machine's cgroups: a folder of each node in every hierarchy, which the node sees as the root.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};

/// The folders of one cluster; dropped, they are removed.
#[derive(Debug)]
pub(crate) struct Cgroups {
    /// Mount point and mount options of each hierarchy of version 1; `unified` for version 2 alone.
    hierarchies: Vec<(PathBuf, String)>,
    name: String,
}

impl Cgroups {
    /// For a cluster of that name, which no other on the machine has.
    pub fn new(name: &str) -> Result<Self> {
        let mounts = std::fs::read_to_string("/proc/mounts").context("reading /proc/mounts")?;
        Ok(Self { hierarchies: hierarchies(&mounts), name: name.to_owned() })
    }

    /// A node's folder, relative to the root of each hierarchy.
    pub fn of(&self, node: &str) -> String {
        format!("{}/{node}", self.name)
    }

    /// A line for each hierarchy: mount point, options.
    pub fn lines(&self) -> String {
        self.hierarchies.iter().map(|(path, options)| format!("{} {options}\n", path.display())).collect()
    }

    /// Removes a node's folders once its processes have gone.
    pub fn remove(&self, node: &str) {
        self.remove_all(&self.of(node));
    }

    /// A process that is just ending still counts: it is tried for two seconds.
    fn remove_all(&self, folder: &str) {
        for _ in 0..40 {
            let left = self.hierarchies.iter().filter(|(root, _)| !removed(&root.join(folder))).count();
            if left == 0 {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Cgroups {
    fn drop(&mut self) {
        self.remove_all(&self.name);
    }
}

/// Only cgroups without children and processes can be removed, the innermost first.
fn removed(folder: &Path) -> bool {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.path().is_dir() && !removed(&entry.path()) {
            return false;
        }
    }
    std::fs::remove_dir(folder).is_ok() || !folder.exists()
}

/// The hierarchies of `/proc/mounts`.
fn hierarchies(mounts: &str) -> Vec<(PathBuf, String)> {
    let common = ["rw", "ro", "relatime", "nosuid", "nodev", "noexec", "clone_children"];
    let mut found = Vec::new();
    for line in mounts.lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        let [_, path, kind, options, ..] = fields[..] else { continue };
        if kind == "cgroup" {
            let own = options.split(',').filter(|o| !common.contains(o) && !o.starts_with("release_agent="));
            found.push((PathBuf::from(path), own.collect::<Vec<_>>().join(",")));
        }
    }
    if found.is_empty() {
        found.push((PathBuf::from("/sys/fs/cgroup"), "unified".to_owned()));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hierarchies_of_both_versions() {
        let first = "cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,nosuid,relatime,cpu,cpuacct 0 0\n\
                     cgroup /sys/fs/cgroup/systemd cgroup rw,xattr,name=systemd,release_agent=/x 0 0\n\
                     tmpfs /sys/fs/cgroup tmpfs rw 0 0";
        let expected =
            [("/sys/fs/cgroup/cpu,cpuacct", "cpu,cpuacct"), ("/sys/fs/cgroup/systemd", "xattr,name=systemd")];
        assert_eq!(hierarchies(first), expected.map(|(p, o)| (PathBuf::from(p), o.to_owned())));
        let second = "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0";
        assert_eq!(hierarchies(second), [(PathBuf::from("/sys/fs/cgroup"), "unified".to_owned())]);
    }
}
