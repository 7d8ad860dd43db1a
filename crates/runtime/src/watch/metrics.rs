//! Metrics of watches.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

crate::metrics! {
    /// Metrics of every program that watches the API server.
    pub const WATCHES;

    FAILURES = counter("andreas_watch_failures_total", &["kind", "reason"],
        "Lists and watches that failed, by kind and reason");
    QUARANTINED = gauge("andreas_watch_quarantined", &["kind"],
        "Objects that exist now and cannot be decoded, by kind");
}

/// Counters of all watches of one process. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct WatchMetrics {
    failures: Family<Failure, Counter>,
    quarantined: Family<Kind, Gauge>,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Kind {
    kind: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Failure {
    kind: String,
    reason: &'static str,
}

impl WatchMetrics {
    /// Creates the counters and adds them to `registry`.
    pub fn register(registry: &mut Registry) -> Self {
        Self { failures: FAILURES.create(registry), quarantined: QUARANTINED.create(registry) }
    }

    /// The counters of one kind.
    pub(super) fn for_kind(&self, kind: &str) -> KindMetrics {
        let label = Kind { kind: kind.to_owned() };
        KindMetrics {
            kind: kind.to_owned(),
            quarantined: self.quarantined.get_or_create_owned(&label),
            failures: self.failures.clone(),
        }
    }
}

#[derive(Debug)]
pub(super) struct KindMetrics {
    kind: String,
    pub(super) quarantined: Gauge,
    failures: Family<Failure, Counter>,
}

impl KindMetrics {
    pub(super) fn failed(&self, reason: &'static str) {
        self.failures.get_or_create(&Failure { kind: self.kind.clone(), reason }).inc();
    }
}
