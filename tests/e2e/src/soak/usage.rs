//! What our programs hold while everything happens to them: memory and open files, as the kernel counts them.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use andreas_api::quantity::units;
use anyhow::{Context as _, Result, ensure};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde_json::Value;

use crate::chart::{self, AGENTS};
use crate::cluster::Cluster;
use crate::keeper::memory_mib;

/// Between two looks.
const EVERY: Duration = Duration::from_secs(10);
/// So old a process is when its first figures count: caches are filled, connections made.
const SETTLED: Duration = Duration::from_secs(60);
/// Looked at for so long after that, a process has shown whether its program holds more and more.
const LONG: Duration = Duration::from_secs(300);
/// More open files than at first, for connections that come and go.
const FILES_MORE: usize = 64;
/// Memory compared with that at first: jobs stay in the API server, and so in caches, when they have ended. A factor, and MiB beside it.
const MEMORY_MORE: (f64, f64) = (1.5, 16.0);
const MIB: f64 = 1.0 / (1024.0 * 1024.0);
/// Container of the chart, and where its limit of memory stands in the values.
const LIMITS: [(&str, &str); 4] = [
    ("operator", "/operator/resources/limits/memory"),
    ("extender", "/extender/resources/limits/memory"),
    ("agent", "/agent/resources/agent/limits/memory"),
    ("setter", "/agent/resources/setter/limits/memory"),
];

/// What a process holds.
#[derive(Clone, Copy, Debug)]
struct Held {
    mib: f64,
    files: usize,
}

impl Held {
    /// Nothing when it is gone.
    fn by(pid: u32) -> Option<Self> {
        let (mib, _) = memory_mib(pid)?;
        Some(Self { mib, files: std::fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count() })
    }

    fn grew_too_much_to(self, last: Self) -> bool {
        let (times, more) = MEMORY_MORE;
        last.files > self.files + FILES_MORE || last.mib > self.mib * times + more
    }
}

/// A process from its first look to its last.
#[derive(Debug)]
struct Life {
    begin: Instant,
    /// Once it had settled.
    first: Option<Held>,
    last: Held,
    end: Instant,
}

/// What was seen of each program.
#[derive(Debug, Default)]
pub(super) struct Usage {
    looked: Option<Instant>,
    lives: BTreeMap<(&'static str, u32), Life>,
    highest: BTreeMap<&'static str, Held>,
}

impl Usage {
    /// Looks at every process, when it is time.
    pub(super) async fn look(&mut self, c: &Cluster) -> Result<()> {
        let now = Instant::now();
        if self.looked.is_some_and(|looked| now - looked < EVERY) {
            return Ok(());
        }
        self.looked = Some(now);
        for (program, pid) in processes(c).await? {
            if let Some(held) = Held::by(pid) {
                self.see(program, pid, held, now);
            }
        }
        Ok(())
    }

    fn see(&mut self, program: &'static str, pid: u32, held: Held, now: Instant) {
        let new = Life { begin: now, first: None, last: held, end: now };
        let life = self.lives.entry((program, pid)).or_insert(new);
        if life.first.is_none() && now - life.begin >= SETTLED {
            life.first = Some(held);
        }
        (life.last, life.end) = (held, now);
        let highest = self.highest.entry(program).or_insert(held);
        *highest = Held { mib: highest.mib.max(held.mib), files: highest.files.max(held.files) };
    }

    /// No program took more memory than the chart allows it, and none holds more and more.
    ///
    /// # Errors
    /// Which one did.
    pub(super) fn check(&self) -> Result<()> {
        let values = std::fs::read_to_string(chart::folder().join("values.yaml"))?;
        let values: Value = serde_saphyr::from_str(&values)?;
        for (program, place) in LIMITS {
            let limit = values.pointer(place).and_then(Value::as_str).context(place)?;
            let limit = MIB * units(&Quantity(limit.to_owned())) as f64;
            let highest = self.highest.get(program).with_context(|| format!("{program} was never seen"))?;
            ensure!(highest.mib <= limit, "{program} took {:.0} MiB, and {place} is {limit:.0}", highest.mib);
        }
        for ((program, pid), life) in &self.lives {
            let grew = life.first.is_some_and(|first| first.grew_too_much_to(life.last));
            ensure!(!grew, "{program} {pid} holds more and more: {life:?}");
        }
        Ok(())
    }

    /// Whether a process of this program lived long enough to say that it does not hold more and more.
    pub(super) fn lived_long(&self, program: &str) -> bool {
        self.lives.iter().any(|((one, _), life)| *one == program && life.end - life.begin >= SETTLED + LONG)
    }
}

impl fmt::Display for Usage {
    /// The most that each program held, and the first and last figures of the process that lived longest.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (program, highest)) in self.highest.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}{program} at most {:.0} MiB and {} files", highest.mib, highest.files)?;
            let lives = self.lives.iter().filter(|((one, _), _)| one == program).map(|(_, life)| life);
            let longest = lives.max_by_key(|life| life.end - life.begin);
            if let Some((life, first)) = longest.and_then(|life| Some((life, life.first?))) {
                let (last, minutes) = (life.last, (life.end - life.begin).as_secs() / 60);
                write!(
                    f,
                    " (over {minutes} min {:.0} to {:.0} MiB, {} to {} files)",
                    first.mib, last.mib, first.files, last.files
                )?;
            }
        }
        Ok(())
    }
}

/// Those of our programs that run now.
async fn processes(c: &Cluster) -> Result<Vec<(&'static str, u32)>> {
    let operators = c.operators.iter().filter_map(|one| Some(("operator", one.process.pid()?)));
    let extender = c.extender.iter().filter_map(|process| Some(("extender", process.pid()?)));
    let mut found: Vec<_> = operators.chain(extender).collect();
    let pods = crate::nodes::client(&c.testbed).pods().await?;
    for pod in pods.iter().filter(|pod| pod.namespace == AGENTS && !pod.ended) {
        for (container, pid) in &pod.pids {
            let program = LIMITS.iter().map(|(program, _)| *program).find(|program| program == container);
            let pid = u32::try_from(*pid).ok().filter(|pid| *pid > 0);
            found.extend(program.zip(pid));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program looked at for an hour.
    fn after_an_hour(first: Held, last: Held) -> Usage {
        let (mut usage, begin) = (Usage::default(), Instant::now());
        for (program, _) in LIMITS {
            usage.see(program, 1, first, begin);
            usage.see(program, 1, first, begin + SETTLED);
            usage.see(program, 1, last, begin + Duration::from_secs(3_600));
        }
        usage
    }

    #[test]
    fn what_holds_more_and_more_is_named_and_what_comes_and_goes_is_not() {
        let held = |mib: f64, files| Held { mib, files };
        let usage = after_an_hour(held(30.0, 20), held(40.0, 60));
        usage.check().unwrap();
        assert!(usage.lived_long("extender") && usage.to_string().contains("30 to 40 MiB, 20 to 60 files"));
        for last in [held(30.0, 200), held(63.0, 20)] {
            let error = after_an_hour(held(30.0, 20), last).check().unwrap_err().to_string();
            assert!(error.contains("holds more and more"), "{error}");
        }
        let error = after_an_hour(held(70.0, 20), held(70.0, 20)).check().unwrap_err().to_string();
        assert!(error.contains("setter took 70 MiB") && error.contains("is 64"), "{error}");
    }

    #[test]
    fn our_own_memory_and_files_are_read() {
        let held = Held::by(std::process::id()).unwrap();
        assert!(held.mib > 0.5 && held.files >= 3, "{held:?}");
        assert!(Held::by(u32::MAX).is_none());
    }
}
