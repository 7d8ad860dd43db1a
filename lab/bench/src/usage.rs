//! CPU time and memory of processes, as the kernel counts them.

use std::collections::BTreeMap;
use std::fs;

use andreas_testbed::Process;

use andreas_e2e::cluster::Cluster;
pub(super) use andreas_e2e::keeper::memory_mib;

/// Ticks per second of the times in `/proc/PID/stat`: the same on every Linux since 2.4.
const USER_HZ: f64 = 100.0;

/// CPU seconds by program, since each was started.
#[derive(Clone, Debug, Default)]
pub(super) struct Cpu(pub BTreeMap<String, f64>);

impl Cpu {
    /// Of every process of the cluster, and of ourselves as `load`.
    pub fn of(cluster: &Cluster) -> Self {
        let mut seconds = BTreeMap::new();
        for part in cluster.testbed.status() {
            let used = part.pid.and_then(cpu_seconds).unwrap_or(0.0);
            seconds.insert(part.component.name().to_owned(), used);
        }
        let ours = cluster.operators.iter().map(|o| ("operator", &*o.process));
        let ours = ours.chain(cluster.extender.iter().map(|p| ("extender", p)));
        for (name, process) in ours.chain(cluster.scheduler.iter().map(|p| ("our scheduler", p))) {
            let used = process.pid().and_then(cpu_seconds).unwrap_or(0.0);
            *seconds.entry(name.to_owned()).or_insert(0.0) += used;
        }
        seconds.insert("load".to_owned(), cpu_seconds(std::process::id()).unwrap_or(0.0));
        Self(seconds)
    }

    /// What was used since `before`, seconds.
    pub fn since(&self, before: &Self) -> Self {
        let used = |name: &String| before.0.get(name).copied().unwrap_or(0.0);
        Self(self.0.iter().map(|(name, now)| (name.clone(), (now - used(name)).max(0.0))).collect())
    }

    /// Of one program, seconds.
    pub fn of_program(&self, name: &str) -> f64 {
        self.0.get(name).copied().unwrap_or(0.0)
    }

    /// Of everything but the load, seconds.
    pub fn of_all(&self) -> f64 {
        self.0.iter().filter(|(name, _)| *name != "load").map(|(_, seconds)| seconds).sum()
    }
}

/// User and system time of all threads that ever were, seconds.
pub(super) fn cpu_seconds(pid: u32) -> Option<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name is in parentheses and may hold anything; utime and stime are the 12th and 13th field after it.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let (user, system): (f64, f64) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    Some((user + system) / USER_HZ)
}

/// Proportional set size, MiB: a page that several processes map counts in equal parts.
pub(super) fn proportional_mib(pid: u32) -> Option<f64> {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    Some(line.trim().trim_end_matches("kB").trim().parse::<f64>().ok()? / 1024.0)
}

/// Peak memory of a process, MiB; 0 when it is gone.
pub(super) fn peak_mib(process: &Process) -> f64 {
    process.pid().and_then(memory_mib).map_or(0.0, |(_, peak)| peak)
}

/// A process and all its descendants.
pub(super) fn tree(root: u32) -> Vec<u32> {
    let mut found = vec![root];
    let mut next = 0;
    while let Some(&pid) = found.get(next) {
        next += 1;
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        for task in tasks {
            let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            found.extend(children.split_whitespace().filter_map(|child| child.parse::<u32>().ok()));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_time_and_memory_are_read() {
        let before = cpu_seconds(std::process::id()).unwrap();
        let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
        // Work until a tick has been counted.
        let mut sum = 0u64;
        while cpu_seconds(std::process::id()).unwrap() <= before && std::time::Instant::now() < until {
            sum = sum.wrapping_add((0..100_000u64).sum::<u64>());
        }
        assert!(cpu_seconds(std::process::id()).unwrap() > before, "{sum}");
        let (now, peak) = memory_mib(std::process::id()).unwrap();
        assert!(now > 0.5 && peak >= now, "{now} {peak}");
        let share = proportional_mib(std::process::id()).unwrap();
        assert!(share > 0.1 && share <= peak * 1.5, "{share} of {peak}");
    }

    #[test]
    fn children_belong_to_the_tree() {
        let mut child = std::process::Command::new("sleep").arg("30").spawn().unwrap();
        let found = tree(std::process::id()).contains(&child.id());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(found);
    }
}
