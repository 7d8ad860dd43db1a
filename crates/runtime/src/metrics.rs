//! Metrics declared once: name, type, labels and help of each are one constant, used for registration and for
//! `docs/metrics.md`.
//!
//! Names follow Prometheus: base units at the end of the name, `_total` on counters. Label values come from
//! closed or bounded sets. Tenant text is limited to namespaces, never names of jobs or pods. Prometheus sets
//! the target labels (`job`, `instance`, `namespace`, `pod`, `node`), so a tenant's namespace is
//! `job_namespace`.

use std::fmt;
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::exemplar::Exemplar;
use prometheus_client::registry::{Metric as Registered, Registry, Unit};

use crate::clock;

/// The type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only rises, from 0 at process start.
    Counter,
    /// Rises and falls.
    Gauge,
    /// Observations in buckets, with their sum and count.
    Histogram,
}

impl Kind {
    /// As in `# TYPE`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// The description of a metric, without values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric {
    /// Name in queries: with unit, and with `_total` on counters. Series of a histogram add `_bucket`, `_sum`
    /// and `_count`.
    pub name: &'static str,
    /// Its type.
    pub kind: Kind,
    /// Its labels, without `le` of histograms.
    pub labels: &'static [&'static str],
    /// Help text, without a full stop.
    pub help: &'static str,
}

/// Label names with values from closed sets.
pub type Labels<const N: usize> = [(&'static str, &'static str); N];

/// Allowed units at the end of names, all base units.
const UNITS: [&str; 7] = ["seconds", "watts", "joules", "bytes", "hertz", "ratio", "timestamp_seconds"];

impl Metric {
    /// A counter; its name ends with `_total`.
    #[must_use]
    pub const fn counter(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Self {
        Self { name, kind: Kind::Counter, labels, help }
    }

    /// A gauge.
    #[must_use]
    pub const fn gauge(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Self {
        Self { name, kind: Kind::Gauge, labels, help }
    }

    /// A histogram.
    #[must_use]
    pub const fn histogram(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Self {
        Self { name, kind: Kind::Histogram, labels, help }
    }

    /// The unit in its name.
    #[must_use]
    pub fn unit(&self) -> Option<&'static str> {
        let base = self.base();
        // The longest match: `timestamp_seconds` is not `seconds`.
        UNITS.into_iter().filter(|unit| base.ends_with(&format!("_{unit}"))).max_by_key(|unit| unit.len())
    }

    /// The name without `_total`, as in OpenMetrics' `# TYPE`.
    fn base(&self) -> &'static str {
        match self.kind {
            Kind::Counter => self.name.strip_suffix("_total").unwrap_or(self.name),
            Kind::Gauge | Kind::Histogram => self.name,
        }
    }

    /// Parts of the name that the library joins again.
    fn parts(&self) -> (String, Option<Unit>) {
        let unit = self.unit().map(|unit| unit.rsplit('_').next().unwrap_or(unit));
        match unit.and_then(|unit| Some((self.base().strip_suffix(unit)?.strip_suffix('_')?, unit))) {
            Some((stem, unit)) => (stem.to_owned(), Some(Unit::Other(unit.to_owned()))),
            None => (self.base().to_owned(), None),
        }
    }

    /// Adds the metric with its values to `registry`; returns the values, which are shared.
    pub fn register<M: Registered + Clone>(&self, registry: &mut Registry, values: M) -> M {
        let shared = values.clone();
        match self.parts() {
            (name, Some(unit)) => registry.register_with_unit(name, self.help, unit, shared),
            (name, None) => registry.register(name, self.help, shared),
        }
        values
    }

    /// Adds the metric to `registry` without a value yet, or at 0.
    pub fn create<M: Registered + Clone + Default>(&self, registry: &mut Registry) -> M {
        self.register(registry, M::default())
    }

    /// Writes the metric with values computed at the scrape.
    ///
    /// # Errors
    /// When the writer fails.
    pub fn encode(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        values: impl FnOnce(&mut Values<'_>) -> fmt::Result,
    ) -> fmt::Result {
        let (name, unit) = self.parts();
        let kind = match self.kind {
            Kind::Counter => MetricType::Counter,
            Kind::Gauge => MetricType::Gauge,
            Kind::Histogram => MetricType::Histogram,
        };
        let help = format!("{}.", self.help);
        let encoder = encoder.encode_descriptor(&name, &help, unit.as_ref(), kind)?;
        values(&mut Values { encoder, is_counter: self.kind == Kind::Counter })
    }
}

/// Collects the values of a metric at a scrape.
pub struct Values<'a> {
    encoder: MetricEncoder<'a>,
    is_counter: bool,
}

impl Values<'_> {
    /// Writes the value without labels.
    ///
    /// # Errors
    /// When the writer fails.
    pub fn plain(&mut self, value: f64) -> fmt::Result {
        write(&mut self.encoder, self.is_counter, value)
    }

    /// Writes the value for one set of labels.
    ///
    /// # Errors
    /// When the writer fails.
    pub fn write(&mut self, labels: &impl EncodeLabelSet, value: f64) -> fmt::Result {
        write(&mut self.encoder.encode_family(labels)?, self.is_counter, value)
    }
}

fn write(encoder: &mut MetricEncoder<'_>, is_counter: bool, value: f64) -> fmt::Result {
    if is_counter {
        encoder.encode_counter::<[(&str, &str); 0], f64, f64>(&value, None::<&Exemplar<_, f64>>)
    } else {
        encoder.encode_gauge(&value)
    }
}

/// Declares metrics as constants of the crate, and a list of all of them in their order:
/// `metrics! { /// What they are. pub const ALL; JOBS = gauge("andreas_jobs", &["phase"], "Jobs, by phase"); }`.
#[macro_export]
macro_rules! metrics {
    ($(#[$about:meta])* $seen:vis const $list:ident;
     $($name:ident = $made:ident($($part:expr),* $(,)?);)+) => {
        $(pub(crate) const $name: $crate::metrics::Metric = $crate::metrics::Metric::$made($($part),*);)+

        $(#[$about])*
        $seen const $list: &[$crate::metrics::Metric] = &[$($name),+];
    };
}

metrics! {
    /// Metrics of every program; see [`register_process`].
    pub const PROCESS;

    BUILD_INFO = gauge("andreas_build_info", &["version"], "1, with the program's version");
    CPU = counter("process_cpu_seconds_total", &[], "CPU time of the process, user and system");
    MEMORY = gauge("process_resident_memory_bytes", &[], "Resident memory of the process");
    SKEW = gauge("andreas_clock_skew_seconds", &[],
        "Wall clock of this process's machine less that of the API server, by the Date header of its last answer; positive is ahead");
}

/// Adds the process metrics to `registry`.
pub fn register_process(registry: &mut Registry, version: &'static str) {
    SKEW.register(registry, clock::skew());
    registry.register_collector(Box::new(Process { version }));
}

#[derive(Debug)]
struct Process {
    version: &'static str,
}

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        BUILD_INFO.encode(&mut encoder, |values| values.write(&[("version", self.version)], 1.0))?;
        if let Some(cpu) = cpu_time() {
            CPU.encode(&mut encoder, |values| values.plain(cpu.as_secs_f64()))?;
        }
        match resident_bytes() {
            Some(bytes) => MEMORY.encode(&mut encoder, |values| values.plain(bytes)),
            None => Ok(()),
        }
    }
}

/// CPU time in the scheduler's accounting (nanoseconds), including ended threads.
#[cfg(not(unix))]
fn cpu_time() -> Option<Duration> {
    None
}

/// CPU time in the scheduler's accounting (nanoseconds), including ended threads.
#[cfg(unix)]
fn cpu_time() -> Option<Duration> {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Some(Duration::new(u64::try_from(time.tv_sec).ok()?, u32::try_from(time.tv_nsec).ok()?))
}

fn resident_bytes() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{classic, deviations, ill_named};
    use prometheus_client::metrics::counter::Counter;
    use prometheus_client::metrics::family::Family;
    use prometheus_client::metrics::histogram::Histogram;

    const SPENT: Metric = Metric::counter("andreas_spent_joules_total", &["job_namespace"], "Spent");
    const TOOK: Metric = Metric::histogram("andreas_took_seconds", &[], "Took");
    const SEEN: Metric = Metric::gauge("andreas_seen_timestamp_seconds", &[], "Seen");

    #[derive(Debug)]
    struct Scraped;

    impl Collector for Scraped {
        fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
            SEEN.encode(&mut encoder, |values| values.plain(1.5))
        }
    }

    fn exposition() -> String {
        let mut registry = Registry::default();
        let spent = Family::<Vec<(String, String)>, Counter>::default();
        spent.get_or_create(&vec![("job_namespace".into(), "a\"} 1\nevil 2".into())]).inc_by(3);
        SPENT.register(&mut registry, spent);
        let took = Histogram::new([1.0]);
        took.observe(0.5);
        TOOK.register(&mut registry, took);
        registry.register_collector(Box::new(Scraped));
        register_process(&mut registry, "1.2.3");
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        text
    }

    #[test]
    fn what_is_exposed_is_what_is_listed() {
        let listed = [&[SPENT, TOOK, SEEN], PROCESS].concat();
        let text = classic(&exposition());
        assert_eq!(deviations(&text, &listed), Vec::<String>::new(), "{text}");
        assert!(text.contains("# TYPE andreas_spent_joules_total counter\n"), "{text}");
        assert!(text.contains(r#"andreas_spent_joules_total{job_namespace="a\"} 1\nevil 2"} 3"#), "{text}");
        assert!(text.contains("andreas_took_seconds_bucket{le=\"1.0\"} 1\n"), "{text}");
        assert!(!text.contains("EOF") && !text.contains("# UNIT"), "{text}");
        assert_eq!(ill_named(&listed), Vec::<String>::new());
    }

    #[test]
    fn what_is_not_listed_is_named() {
        let text = classic(&exposition());
        let other = Metric::counter("andreas_spent_joules_total", &["tenant"], "Else");
        let missing = Metric::gauge("andreas_missing", &[], "Missing");
        let wrong = deviations(&text, &[&[other, TOOK, missing], PROCESS].concat()).join("\n");
        for error in [
            "labels are to be",
            "Spent.",
            "andreas_missing is not there",
            "andreas_seen_timestamp_seconds is not",
        ] {
            assert!(wrong.contains(error), "{wrong}");
        }
        let ill = [Metric::gauge("andreas_jobs_total", &[], ""), Metric::gauge("andreasJobs", &["pod"], "x")];
        assert_eq!(ill_named(&ill).len(), 4);
    }

    #[test]
    fn the_unit_is_the_end_of_the_name() {
        assert_eq!(SPENT.unit(), Some("joules"));
        assert_eq!(SEEN.unit(), Some("timestamp_seconds"));
        assert_eq!(Metric::gauge("andreas_jobs", &[], "").unit(), None);
    }
}
