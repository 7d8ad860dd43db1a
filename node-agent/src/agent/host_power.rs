//! Draw of the machine beside its GPUs, from the processors' energy counters (RAPL) in the kernel's powercap files.
//!
//! | file below a zone | what |
//! |---|---|
//! | `name` | `package-0`, `dram`, `psys`, `core`, ... |
//! | `energy_uj` | counter, microjoules; readable by root only |
//! | `max_energy_range_uj` | where it begins anew |
//!
//! (Linux, *Power Capping Framework*.) Counted are packages and the memory zones in them; cores are a part of packages. Where
//! there is a platform zone (`psys`), it alone counts. The copies below `intel-rapl-mmio` show the same counters.

use std::path::{Path, PathBuf};
use std::time::Duration;

use andreas_api::gpu_node::HostPower;

/// Interval between two readings.
const INTERVAL: Duration = Duration::from_secs(10);
/// A longer interval says nothing: a counter may have begun anew twice.
const MAX_GAP: Duration = Duration::from_secs(120);
/// Interval between two searches where there is nothing.
const SEARCH: Duration = Duration::from_secs(600);
/// Most zones.
const MAX_ZONES: usize = 64;
/// Highest draw that a machine is believed to have, W.
const MAX_WATTS: f64 = 100_000.0;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ZoneKind {
    Package,
    Dram,
    Platform,
}

#[derive(Clone, Debug)]
struct Zone {
    folder: PathBuf,
    kind: ZoneKind,
    /// Where the counter begins anew, microjoules.
    range: u64,
    last: Option<u64>,
}

/// Energy of one interval.
#[derive(Clone, Debug, PartialEq)]
pub struct HostInterval {
    /// Energy, J.
    pub joules: f64,
    /// Length, s.
    pub seconds: f64,
    /// What it covers, as in the status.
    pub source: &'static str,
}

/// The machine's energy counters.
#[derive(Debug)]
pub struct HostMeter {
    folder: PathBuf,
    zones: Vec<Zone>,
    searched: Option<Duration>,
    read: Option<Duration>,
    latest: Option<HostPower>,
}

impl HostMeter {
    /// Counters below `folder`, usually `/sys/class/powercap`. Reads nothing yet.
    #[must_use]
    pub fn new(folder: &Path) -> Self {
        Self { folder: folder.to_owned(), zones: Vec::new(), searched: None, read: None, latest: None }
    }

    /// The draw of the last interval; `None` where it cannot be read.
    #[must_use]
    pub fn latest(&self) -> Option<&HostPower> {
        self.latest.as_ref()
    }

    /// Reads the counters if that is due. `now`: a monotonic clock. Returns the energy of an interval that has ended.
    pub fn update(&mut self, now: Duration) -> Option<HostInterval> {
        if self.zones.is_empty() {
            if self.searched.is_some_and(|at| now.saturating_sub(at) < SEARCH) {
                return None;
            }
            self.searched = Some(now);
            self.zones = find(&self.folder);
        }
        let since = self.read;
        if since.is_some_and(|at| now.saturating_sub(at) < INTERVAL) {
            return None;
        }
        let mut microjoules = 0_u64;
        let mut complete = true;
        for zone in &mut self.zones {
            let Some(counter) = number(&zone.folder.join("energy_uj")) else {
                tracing::info!(zone = %zone.folder.display(), "a counter of the host's energy cannot be read");
                (self.zones, self.read, self.latest) = (Vec::new(), None, None);
                return None;
            };
            match zone.last.replace(counter) {
                Some(last) if counter >= last => microjoules = microjoules.saturating_add(counter - last),
                // It began anew.
                Some(last) => {
                    let passed = zone.range.saturating_sub(last).saturating_add(counter);
                    microjoules = microjoules.saturating_add(passed);
                }
                None => complete = false,
            }
        }
        self.read = Some(now);
        let gap = now.saturating_sub(since?);
        let source = self.source()?;
        if !complete || gap > MAX_GAP || gap.is_zero() {
            self.latest = None;
            return None;
        }
        let (joules, seconds) = (microjoules as f64 / 1e6, gap.as_secs_f64());
        let watts = joules / seconds;
        if watts > MAX_WATTS {
            self.latest = None;
            return None;
        }
        self.latest = Some(HostPower { watts: watts.round() as i32, source: source.into() });
        Some(HostInterval { joules, seconds, source })
    }

    fn source(&self) -> Option<&'static str> {
        let has = |kind: ZoneKind| self.zones.iter().any(|zone| zone.kind == kind);
        match (has(ZoneKind::Platform), has(ZoneKind::Package), has(ZoneKind::Dram)) {
            (true, _, _) => Some("RaplPlatform"),
            (false, true, true) => Some("RaplPackagesAndDram"),
            (false, true, false) => Some("RaplPackages"),
            (false, false, _) => None,
        }
    }
}

fn number(path: &Path) -> Option<u64> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Folders in `folder` that are zones of this parent, in order.
fn zones_in(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    let names = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let of_parent = |name: &str| {
        let number = name.strip_prefix(prefix).and_then(|rest| rest.strip_prefix(':'));
        number.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let mut zones: Vec<PathBuf> = names
        .filter(|entry| entry.file_name().to_str().is_some_and(of_parent))
        .map(|entry| entry.path())
        .collect();
    zones.sort();
    zones.truncate(MAX_ZONES);
    zones
}

/// The zones that count: those of the platform, else packages and their memory.
fn find(folder: &Path) -> Vec<Zone> {
    const CONTROL: &str = "intel-rapl";
    // The class folder has links to all zones, the folder of devices has them below the control type.
    let below = folder.join(CONTROL);
    let root = if zones_in(&below, CONTROL).is_empty() { folder.to_owned() } else { below };
    let zone = |folder: PathBuf, inner: bool| -> Option<Zone> {
        let name = std::fs::read_to_string(folder.join("name")).ok()?;
        let kind = match name.trim() {
            "psys" if !inner => ZoneKind::Platform,
            "dram" if inner => ZoneKind::Dram,
            name if !inner && name.starts_with("package-") => ZoneKind::Package,
            _ => return None,
        };
        Some(Zone { range: number(&folder.join("max_energy_range_uj"))?, folder, kind, last: None })
    };
    let mut zones = Vec::new();
    for package in zones_in(&root, CONTROL) {
        let prefix = package.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
        let inner = zones_in(&package, &prefix);
        zones.extend(zone(package, false));
        zones.extend(inner.into_iter().filter_map(|folder| zone(folder, true)));
    }
    if zones.iter().any(|zone| zone.kind == ZoneKind::Platform) {
        zones.retain(|zone| zone.kind == ZoneKind::Platform);
    }
    zones.truncate(MAX_ZONES);
    zones
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Machine(tempfile::TempDir);

    impl Machine {
        fn set(&self, zone: &str, name: &str, energy: u64) {
            let folder = self.0.path().join("intel-rapl").join(zone);
            std::fs::create_dir_all(&folder).unwrap();
            let energy = energy.to_string();
            for (file, text) in
                [("name", name), ("energy_uj", &energy), ("max_energy_range_uj", "1000000000")]
            {
                std::fs::write(folder.join(file), format!("{text}\n")).unwrap();
            }
        }
    }

    #[test]
    fn packages_and_memory_count_also_over_the_end_of_a_counter() {
        let machine = Machine(tempfile::tempdir().unwrap());
        machine.set("intel-rapl:0", "package-0", 999_000_000);
        machine.set("intel-rapl:0/intel-rapl:0:0", "core", 5);
        machine.set("intel-rapl:0/intel-rapl:0:1", "dram", 100_000_000);
        machine.set("intel-rapl:1", "package-1", 0);
        let mut meter = HostMeter::new(machine.0.path());
        let at = Duration::from_secs;
        assert_eq!((meter.update(at(0)), meter.latest()), (None, None), "one reading is no draw");
        // 1 J to the end of the counter and 499 J after it; 200 J; 300 J.
        machine.set("intel-rapl:0", "package-0", 499_000_000);
        machine.set("intel-rapl:0/intel-rapl:0:0", "core", 900_000_000);
        machine.set("intel-rapl:0/intel-rapl:0:1", "dram", 300_000_000);
        machine.set("intel-rapl:1", "package-1", 300_000_000);
        assert_eq!(meter.update(at(5)), None, "not due");
        let interval = meter.update(at(10)).unwrap();
        assert_eq!((interval.joules, interval.seconds), (1_000.0, 10.0));
        let power = meter.latest().unwrap();
        assert_eq!((power.watts, power.source.as_str()), (100, "RaplPackagesAndDram"));
        assert_eq!((meter.update(at(400)), meter.latest()), (None, None), "after a gap nothing is said");
    }

    #[test]
    fn a_counter_of_the_platform_counts_alone_and_what_cannot_be_read_is_left_out() {
        let machine = Machine(tempfile::tempdir().unwrap());
        let at = Duration::from_secs;
        assert_eq!(HostMeter::new(machine.0.path()).update(at(0)), None, "no counters");
        machine.set("intel-rapl:0", "package-0", 0);
        machine.set("intel-rapl:1", "psys", 0);
        machine.set("intel-rapl-mmio:0", "package-0", 0);
        let mut meter = HostMeter::new(machine.0.path());
        meter.update(at(0));
        machine.set("intel-rapl:0", "package-0", 70_000_000);
        machine.set("intel-rapl:1", "psys", 90_000_000);
        meter.update(at(10));
        assert_eq!(
            meter.latest().map(|power| (power.watts, power.source.as_str())),
            Some((9, "RaplPlatform"))
        );
        std::fs::remove_file(machine.0.path().join("intel-rapl/intel-rapl:1/energy_uj")).unwrap();
        assert_eq!((meter.update(at(20)), meter.latest()), (None, None));
    }
}
