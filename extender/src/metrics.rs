//! Metrics of the extender.

use std::time::Duration;

use andreas_runtime::metrics::{Labels, Metric, PROCESS, register_process};
use andreas_runtime::watch::WATCHES;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

andreas_runtime::metrics! {
    /// The extender's own.
    const OWN;

    REQUESTS = counter("andreas_extender_requests_total", &["verb", "result"],
        "Calls of the scheduler, by verb and result: foreign, accepted, refused, error, rejected");
    SECONDS = histogram("andreas_extender_request_duration_seconds", &["verb"], "Time to answer, by verb");
    REFUSALS = counter("andreas_extender_refusals_total", &["reason"],
        "Pods of TrainingJobs that were refused, by reason");
    READY = gauge("andreas_extender_cache_ready", &[],
        "1 once the first complete list of TrainingJobs is in");
}

/// All metrics of the extender.
#[must_use]
pub fn all() -> Vec<Metric> {
    [OWN, WATCHES, PROCESS].concat()
}

/// The extender verbs of kube-scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Filter nodes.
    Filter,
    /// Score nodes.
    Prioritize,
    /// Create the Binding.
    Bind,
}

impl Verb {
    /// Name in the path and in the metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Filter => "filter",
            Self::Prioritize => "prioritize",
            Self::Bind => "bind",
        }
    }
}

/// Result of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A pod of another owner: passed unchanged, or bound without checks.
    Foreign,
    /// A worker pod, placed on its node.
    Accepted,
    /// A worker pod, refused by a final decision.
    Refused,
    /// No result could be given now.
    Error,
    /// The call was malformed or exceeded a limit.
    Rejected,
}

impl Outcome {
    fn as_str(self) -> &'static str {
        match self {
            Self::Foreign => "foreign",
            Self::Accepted => "accepted",
            Self::Refused => "refused",
            Self::Error => "error",
            Self::Rejected => "rejected",
        }
    }
}

/// All metrics. Clones share them.
#[derive(Clone, Debug)]
pub struct Metrics {
    requests: Family<Labels<2>, Counter>,
    seconds: Family<Labels<1>, Histogram, fn() -> Histogram>,
    refusals: Family<Labels<1>, Counter>,
    /// 1 after the first complete list of TrainingJobs.
    pub cache_ready: Gauge,
}

/// From 0.1 ms (a cache read) to 5 s (kube-scheduler's bind timeout).
fn buckets() -> Histogram {
    Histogram::new([0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0])
}

impl Metrics {
    /// Creates the metrics and adds them to `registry`.
    pub fn register(registry: &mut Registry) -> Self {
        let this = Self {
            requests: REQUESTS.create(registry),
            seconds: SECONDS.register(registry, Family::new_with_constructor(buckets as fn() -> Histogram)),
            refusals: REFUSALS.create(registry),
            cache_ready: READY.create(registry),
        };
        // Create each series at 0: `increase()` does not see a counter that starts at 1.
        for verb in [Verb::Filter, Verb::Bind] {
            for outcome in [Outcome::Accepted, Outcome::Refused, Outcome::Error, Outcome::Rejected] {
                let _ = this.requests.get_or_create(&[("verb", verb.as_str()), ("result", outcome.as_str())]);
            }
        }
        register_process(registry, env!("CARGO_PKG_VERSION"));
        this
    }

    /// Counts a call.
    pub fn answered(&self, verb: Verb, outcome: Outcome, took: Duration) {
        let verb = verb.as_str();
        self.requests.get_or_create(&[("verb", verb), ("result", outcome.as_str())]).inc();
        self.seconds.get_or_create(&[("verb", verb)]).observe(took.as_secs_f64());
    }

    /// Counts a refusal of a worker pod.
    pub fn refused(&self, reason: &'static str) {
        self.refusals.get_or_create(&[("reason", reason)]).inc();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use andreas_runtime::testing::{classic, deviations, ill_named};

    #[test]
    fn the_list_holds_what_is_exposed_and_nothing_else() {
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry);
        metrics.answered(Verb::Filter, Outcome::Refused, Duration::from_millis(1));
        metrics.refused("node");
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        let own: Vec<_> = all().into_iter().filter(|metric| !WATCHES.contains(metric)).collect();
        assert_eq!(deviations(&classic(&text), &own), Vec::<String>::new());
        assert_eq!(ill_named(&all()), Vec::<String>::new());
    }
}
